"""Shorthands mean the same wherever they are given; words of other libraries get the key that is meant, or a true
sentence."""

import numpy as np
import pytest

from millrace.pipeline import cli
from millrace.pipeline.commands.shared.job_table import job_table
from millrace.pipeline.config.aliases import (
    FLAGS,
    KEYS,
    REMOVED,
    RENAMED,
    SENTENCES,
    SHORTHANDS,
    advice,
    expanded,
    instead_of_flag,
    merged,
)
from millrace.pipeline.config.load import Job, _known, resolve
from millrace.pipeline.config.records import build
from millrace.pipeline.setup.configure import configure
from millrace.stages.sample import SAMPLERS
from millrace.storage.errors import InputError
from millrace.tests.contracts.command import command

VALUES = {
    "hidden": 8, "layers": 2, "dropout": 0.25, "heads": 2, "fanout": [3, 2, 2], "batch_size": 7, "lr": 0.5,
    "weight_decay": 0.5, "metrics": ["loss"], "monitor": "loss", "loss": "huber", "task": "regression",
    "labels_of": "edges", "optimizer": "sgd", "patience": 3, "minibatches_per_step": 2, "reuse": "cycle", "scheduler": "tcp://a:1",
    "host": "10.0.0.1", "pairs": "p.csv", "relation": "buys", "decoder": "mlp", "negatives": "degree",
    "model": "gcn", "sampler": "labor", "partition": "hash", "learned": 64,
}  # fmt: skip


def test_every_shorthand_works_in_python_in_a_job_file_and_by_set(tmp_path):
    assert VALUES.keys() == SHORTHANDS.keys() | {"model", "sampler", "partition", "learned"}
    for word, value in VALUES.items():
        base = {"model": {"name": "gat"}} if word == "heads" else {}
        path = tmp_path / f"{word}.toml"
        text = str(value) if not isinstance(value, str) else f'"{value}"'
        path.write_text(f"{word} = {text}\n" + ('[model]\nname = "gat"\n' if base else ""))
        ways = [
            configure(base, **{word: value}) if word != "model" else resolve({word: value}),
            resolve({**base, word: value}),
            resolve(job_table(path, {}, [])),
            resolve(job_table(None, {}, [*(["model.name=gat"] if base else []), f"{word}={text}"])),
        ]
        assert all(job == ways[0] for job in ways), word
        main = {"partition": "method", "learned": "width"}.get(word, "name")
        section, key = SHORTHANDS.get(word, (word, main))
        held = getattr(ways[0], section)
        held = held[key] if isinstance(held, dict) else getattr(held, key)
        assert (held.name if word == "loss" else held) == value


def test_the_number_of_a_section_may_be_numpys():
    assert configure({}, learned=np.int64(8)).learned.width == 8
    with pytest.raises(InputError, match="or a whole number, the width"):
        configure({}, learned=True)


def test_what_comes_later_wins_and_two_words_for_one_key_must_agree(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('lr = 0.1\nmodel = "gcn"\n')
    assert resolve(job_table(path, {"lr": 0.2}, [])).train.lr == 0.2
    assert resolve(job_table(path, {"lr": 0.2}, ["train.lr=0.3"])).train.lr == 0.3
    assert (
        resolve(job_table(path, {"lr": 0.2}, ["train.lr=0.3", "lr=0.4", "hidden=8"])).model
        == resolve({"model": "gcn", "hidden": 8}).model
    )
    assert configure({"train": {"lr": 0.1}}, train={"lr": 0.2, "batch_size": 3}, lr=0.3).train.lr == 0.3
    assert expanded({"lr": 0.1, "train": {"lr": 0.1}}) == {"train": {"lr": 0.1}}
    with pytest.raises(InputError, match=r"'lr' is 0.1 and 'train.lr' is 0.2; they are one key: leave one out"):
        resolve({"lr": 0.1, "train": {"lr": 0.2}})
    with pytest.raises(InputError, match="expected a table"):
        merged({"train": 3}, ["train", "lr"], 1)
    with pytest.raises(InputError, match="expected a table"):
        resolve({"lr": 0.1, "train": 3})


@pytest.mark.parametrize(
    "first", ["", '[train]\nschedule = "cosine"', "[train.schedule]\nfinal = 0.5\nname = 'cosine'"]
)
def test_a_schedule_or_a_loss_that_is_a_name_is_a_table_too(first, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(first)
    named = [] if first else ["train.schedule=cosine"]
    found = resolve(job_table(path, {}, [*named, "train.schedule.warmup=2", "train.loss=focal", "train.loss.gamma=3"]))
    assert (found.train.schedule.name, found.train.schedule.warmup) == ("cosine", 2)
    assert found.train.schedule.final == (0.5 if "final" in first else 0)
    assert (found.train.loss.name, found.train.loss.gamma) == ("focal", 3)
    with pytest.raises(
        InputError, match=r"'train\.groups' is 'a'; expected a table, for 'train\.groups\.lr' to be in it"
    ):
        job_table(path, {}, ["train.groups=a", "train.groups.lr=1"])


def test_metrics_may_be_words_between_commas(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text("")
    assert resolve(job_table(path, {}, ["train.metrics=loss, macro_f1"])).train.metrics == ["loss", "macro_f1"]
    assert resolve({"train": {"metrics": "loss"}}).train.metrics == ["loss"]
    with pytest.raises(InputError, match="'los'"):
        resolve({"train": {"metrics": "los"}})


def test_words_of_other_libraries_name_keys_that_exist_and_are_none_themselves():
    from millrace.stages.models import MODELS

    known = {*_known(Job)}
    for section, registry in (("model", MODELS), ("sampler", SAMPLERS)):
        known |= {f"{section}.{field}" for kind in registry.values() for field in kind.__dataclass_fields__}
    assert not KEYS.keys() - known
    words = " ".join((*KEYS.values(), *SENTENCES.values())).split()
    assert len(words) == len(set(words))
    leaves = {key.rpartition(".")[2] for key in known}
    assert set(words) & leaves <= {"scheduler", "strategy"}, "which mean another thing beside other keys"


LIGHTNING = (
    "accelerator strategy devices num_nodes precision logger callbacks fast_dev_run max_epochs min_epochs max_steps "
    "min_steps max_time limit_train_batches limit_val_batches limit_test_batches limit_predict_batches overfit_batches "
    "val_check_interval check_val_every_n_epoch num_sanity_val_steps log_every_n_steps enable_checkpointing "
    "enable_progress_bar enable_model_summary accumulate_grad_batches gradient_clip_val gradient_clip_algorithm "
    "deterministic benchmark inference_mode use_distributed_sampler profiler detect_anomaly barebones plugins "
    "sync_batchnorm reload_dataloaders_every_n_epochs default_root_dir enable_autolog_hparams model_registry"
)
"""Arguments of the Trainer of Lightning."""
GRAPHSTORM = (
    "node_feat_name edge_feat_name fanout eval_fanout hidden_size num_layers num_encoder_layers use_mini_batch_infer "
    "save_embed_path topk_model_to_save task_tracker log_report_frequency dropout gnn_norm lr num_epochs batch_size "
    "sparse_optimizer_lr max_grad_norm grad_norm_type use_node_embeddings wd_l2norm use_self_loop eval_batch_size "
    "early_stop_burnin_rounds early_stop_rounds early_stop_strategy use_early_stop lm_tune_lr lm_train_nodes "
    "lm_infer_batch_size freeze_lm_encoder_epochs max_seq_len cache_lm_embed num_heads num_bases target_ntype "
    "label_field multilabel multilabel_weights imbalance_class_weights num_classes return_proba decoder_edge_feat "
    "remove_target_edge_type lp_decoder_type num_negative_edges num_negative_edges_eval train_negative_sampler "
    "eval_negative_sampler class_loss_func regression_loss_func lp_loss_func contrastive_loss_temperature target_etype "
    "train_etype eval_etype save_prediction_path infer_all_target_nodes textual_data_path restore_model_path "
    "exclude_training_targets reverse_edge_types_map report_eval_per_type task_type eval_metric part_config ip_config"
)
"""Options of GraphStorm's training."""


@pytest.mark.parametrize("word", f"{LIGHTNING} {GRAPHSTORM}".split())
def test_options_of_lightning_and_graphstorm_are_keys_or_known(word):
    assert word in SHORTHANDS or advice(word)


def test_a_word_that_is_an_option_of_another_sampler_is_no_word_of_lightning():
    with pytest.raises(InputError, match=r"'strategy'; set ranks: each rank trains"):
        resolve({"strategy": "ddp"})
    with pytest.raises(InputError, match=r"'neighbor' has no option 'strategy'; it is an option of 'temporal' "):
        build("sampler", SAMPLERS, {"name": "neighbor", "strategy": "last"})


@pytest.mark.parametrize(
    ("table", "phrase"),
    [
        *(
            ({word: 1}, f"unknown configuration key '{word}'; did you mean '{key}'?")
            for key, words in KEYS.items()
            for word in words.split()
        ),
        *(
            ({word: 1}, f"unknown configuration key '{word}'; {text}")
            for text, words in SENTENCES.items()
            for word in words.split()
            if word not in ("scheduler", "model.eps")
        ),
        (
            {"train": {"scheduler": "cosine"}},
            "'train.scheduler'; did you mean",
        ),
        ({"scheduler": "cosine"}, "'cluster.scheduler' is 'cosine': expected the address of a Dask scheduler"),
        ({"train": {"callbacks": []}}, "'train.callbacks'; it is code, not a key: pass callbacks="),
    ],
)
def test_a_word_of_another_library_is_told_what_to_set(table, phrase):
    with pytest.raises(InputError) as caught:
        resolve(table)
    assert phrase in str(caught.value)


def test_a_flag_that_is_named_instead_exists():
    import typer

    flags = {p.name for p in typer.main.get_command(cli.app).commands["run"].params}
    assert set(FLAGS) <= flags and {word for word in SHORTHANDS if word in flags} <= set(FLAGS)
    assert instead_of_flag("--num-epochs") == "no such option: --num-epochs; give --epochs"
    assert instead_of_flag("--hidden", {"epochs"}) == "no such option: --hidden; give --set model.hidden=..."
    assert instead_of_flag("--num-parts", {"parts", "out"}) == "no such option: --num-parts; give --parts"
    assert "each rank has one part" in str(instead_of_flag("--num-parts", {"out"}))
    assert instead_of_flag("--xyzzy") is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("partition sbm --num-parts 2", "no such option: --num-parts; give --parts"),
        ("predict run --output x.csv", "no such option: --output; give --out"),
        ("predict run --num-workers 2 --out x.csv", "no such option: --num-workers; give --workers"),
        ("predict run --num-epochs 3 --out x.csv", "No such option: --num-epochs"),
    ],
)
def test_the_flag_of_a_command_goes_before_a_key_that_it_does_not_read(words, said):
    code, _, error = command(*words.split())
    assert code == 2 and said in error and "--set" not in error.splitlines()[0]


def test_advice_on_a_word_of_nobody():
    assert advice("xyzzy") == ""
    assert advice("options") == "; did you mean 'read'?"
    assert advice("Learning_Rate") == "; did you mean 'train.lr'?"


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_renamed_key_is_refused_with_its_name_today(old, new):
    section, key = old.split(".")
    with pytest.raises(InputError, match=rf"unknown configuration key '{old}'; it is called '{new}' now"):
        resolve({section: {key: 1}})
    assert new in _known(Job)


@pytest.mark.parametrize(("old", "reason"), REMOVED.items())
def test_a_removed_key_is_refused_with_the_reason(old, reason):
    section, key = old.split(".")
    with pytest.raises(InputError, match=rf"unknown configuration key '{old}'; it was removed: {reason}; leave it out"):
        resolve({section: {key: 1}})
    assert old not in _known(Job)
