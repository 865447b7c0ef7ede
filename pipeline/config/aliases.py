"""Other words for configuration keys: shorthands, which work everywhere, and words of other libraries, each with the
key to set here."""

from collections.abc import Collection, Mapping, Sequence
from numbers import Integral
from typing import Any

from ...storage.errors import InputError
from .plain_values import quoted

_SHORT = (
    "model.hidden model.layers model.dropout model.heads sampler.fanout train.batch_size train.lr "
    "train.weight_decay train.optimizer train.patience train.metrics train.minibatches_per_step train.monitor "
    "train.loss read.task read.labels_of read.pairs read.relation link.decoder link.negatives queue.reuse "
    "cluster.scheduler cluster.host"
)
SHORTHANDS: dict[str, tuple[str, ...]] = {key.rpartition(".")[2]: tuple(key.split(".")) for key in _SHORT.split()}
"""Shorthands for configuration keys: on the command line, in a job file and in Python."""

_FLAGS = "hidden layers dropout fanout batch_size lr reuse scheduler host epochs seed ranks dataset"
FLAGS = tuple(_FLAGS.split())
"""Shorthands that are flags of `run`."""

NAMED = {"model": "name", "sampler": "name", "partition": "method"}
"""Sections for which a plain string sets one key."""

NAMED_WITHIN: dict[tuple[str, ...], str] = {("train", "schedule"): "name", ("train", "loss"): "name"}
"""Tables within sections for which a plain string sets one key."""

NUMBERED = {"learned": "width"}
"""Sections for which a plain number sets one key."""

KEYS: dict[str, str] = {
    "epochs": "num_epochs n_epochs max_epochs nepochs",
    "seed": "random_seed random_state manual_seed",
    "ranks": "world_size num_ranks n_ranks nproc nproc_per_node num_processes",
    "threads": "num_threads n_threads nthreads omp_num_threads",
    "dataset": "data dataset_name data_path",
    "device": "accelerator",
    "model.name": "model_encoder_type model_type arch",
    "model.hidden": "hidden_channels hidden_dim hidden_size hidden_features num_hidden n_hidden hid",
    "model.layers": "num_layers n_layers nlayers num_encoder_layers num_gnn_layers",
    "model.heads": "num_heads n_heads nheads",
    "model.dropout": "p_dropout dropout_rate feat_drop drop_rate",
    "model.attention_dropout": "attn_drop att_dropout",
    "model.slope": "negative_slope",
    "model.activation": "act activation_fn nonlinearity",
    "sampler.fanout": "num_neighbors num_neighbours neighbors fanouts fan_out train_fanout",
    "train.lr": "learning_rate base_lr",
    "train.weight_decay": "wd l2 l2_reg wd_l2norm",
    "train.patience": "early_stopping early_stop early_stopping_patience early_stop_rounds use_early_stop",
    "train.monitor": "early_stopping_metric metric_for_best_model best_metric",
    "train.metrics": "metric eval_metric",
    "train.optimizer": "optim opt optimiser",
    "train.optimizer_options": "optim_args optimizer_kwargs optimizer_params",
    "train.loss": "loss_fn criterion loss_function objective class_loss_func regression_loss_func lp_loss_func",
    "train.loss.class_weights": "class_weight imbalance_class_weights",
    "train.loss.gamma": "focal_gamma",
    "train.schedule": "lr_scheduler lr_schedule lr_scheduler_type lr_decay",
    "train.schedule.warmup": "warmup_epochs warmup_steps warmup_ratio",
    "train.groups": "param_groups parameter_groups",
    "train.clip_norm": "grad_clip clip_grad_norm clip_grad gradient_clip_val max_grad_norm gradient_clipping",
    "train.ema": "ema_decay model_ema ema_rate",
    "train.evaluate_every": (
        "eval_every eval_steps check_val_every_n_epoch val_every eval_frequency val_check_interval no_validation"
    ),
    "train.minibatches_per_step": "accumulate_grad_batches gradient_accumulation_steps grad_accum",
    "partition.method": "partitioner partition_method part_method",
    "track": "report_to trackers task_tracker",
    "learned.width": "embedding_dim emb_dim node_emb_dim embedding_size",
    "learned.lr": "sparse_optimizer_lr sparse_lr emb_lr",
    "read": "options read_options",
    "read.target": "target_ntype predict_ntype target_node_type eval_target_ntype",
    "read.feature_columns": "node_feat_name feat_name feature_cols",
    "read.label_columns": "label_field label_col label_name",
    "link.negatives": (
        "neg_sampling negative_sampler negative_sampling train_negative_sampler train_etypes_negative_dstnode"
    ),
    "link.num_negatives": "neg_sampling_ratio neg_ratio num_neg num_neg_samples neg_per_pos num_negative_edges",
    "checkpoint.every_epochs": "save_every save_freq checkpoint_every save_model_frequency",
    "checkpoint.keep": "save_top_k topk_model_to_save",
    "model.norm": "gnn_norm batch_norm layer_norm",
    "model.bases": "num_bases n_bases",
    "sampler.weighted": "weight_attr",
    "sampler.strategy": "temporal_strategy",
    "train.batch_size": "train_batch_size",
    "train.loss.pos_weight": "multilabel_weights",
    "train.loss.temperature": "contrastive_loss_temperature",
    "read.task": "task_type multilabel",
    "read.relation": "target_etype train_etype eval_etype",
    "read.edge_feature_columns": "edge_feat_name",
    "read.labelled_edges": "remove_target_edge_type",
    "link.decoder": "lp_decoder_type decoder_type",
    "start_from": "restore_model pretrained",
}
"""Words of other libraries for a key, between spaces."""

RENAMED: dict[str, str] = {
    "bulk.hot": "bulk.cache_fraction",
    "bulk.ahead_bytes": "bulk.prefetch_bytes",
    "sar.ahead_bytes": "sar.prefetch_bytes",
    "train.products": "train.matmul_precision",
    "grappa.every": "grappa.repartition_every",
    "grappa.sweep": "grappa.rotation",
    "grappa.moved": "grappa.reshuffle_fraction",
    "retexo.hands_on": "retexo.propagate",
    "cluster.wait_note_s": "cluster.slow_peer_warning_s",
}
"""Keys renamed since an earlier version, with today's name."""

REMOVED: dict[str, str] = {
    "grappa.hops": "no correction did better than none in 720 runs",
    "grappa.kappa": "no correction did better than none in 720 runs",
    "grappa.strength": "no correction did better than none in 720 runs, with shrinking or without",
    "retexo.folds": "it raised no accuracy",
    "retexo.residual": "it raised no accuracy",
    "retexo.select_by": "retexo.mode decides how the best epoch of a layer is chosen",
}
"""Keys removed since an earlier version, with the reason."""

SENTENCES: dict[str, str] = {
    "set device to 'cuda' and ranks to the number of GPUs: each rank uses one GPU": (
        "gpus n_gpus num_gpus ngpus devices num_trainers use_cuda"
    ),
    "there are no loader processes; ranks sample in threads (threads), or Dask tasks do (cluster.producers, with "
    "queue.kind 'zarr')": (
        "num_workers n_workers num_samplers workers persistent_workers prefetch_factor filter_per_worker"
    ),
    "set train.matmul_precision to 'bfloat16' for mixed precision; dtype applies to everything else": (
        "amp fp16 bf16 mixed_precision precision autocast"
    ),
    "it is code, not a key: pass callbacks= to mr.run, or --code callback=MODULE:NAME on the command line": (
        "callbacks callback logger loggers"
    ),
    "optimizer options go together: set train.optimizer_options={'momentum': 0.9}, by torch's names": (
        "momentum betas eps nesterov amsgrad"
    ),
    "train nodes are shuffled in every epoch": "shuffle",
    "the last minibatch of an epoch is always trained on": "drop_last",
    "it follows from the dataset": (
        "in_channels out_channels num_classes n_classes in_feats in_dim out_dim num_features"
    ),
    "it is not a key: pass --out on the command line, or out= in Python": (
        "out output_dir out_dir save_dir log_dir checkpoint_dir run_dir logdir output default_root_dir "
        "save_model_path save_prediction_path"
    ),
    "it is not a key: pass --resume on the command line, or resume=True in Python": (
        "resume resume_from_checkpoint ckpt_path restore_model_path"
    ),
    "it is not a key: pass --samples on the command line, or samples= in Python": "samples",
    "each rank has one part (grappa: grappa.chunks parts): set ranks": "num_parts n_parts nparts parts",
    "set ranks, executor 'dask' and --scheduler for those of other machines": (
        "num_nodes nnodes ip_config master_addr rdzv_endpoint"
    ),
    "training ends after epochs, by train.patience, a callback's stop() or a signal": (
        "max_steps max_time min_epochs min_steps early_stop_burnin_rounds early_stop_strategy"
    ),
    "every draw is keyed by seed: reruns are the same": "deterministic",
    "millrace partition makes parts, and --set partition.owners=FOLDER reads them": "part_config",
    "set OGB_ROOT to the folder of OGB's datasets, or dataset to a path": "root data_dir data_root",
    "set ranks: each rank trains its share of the minibatches, and gradients are summed, as DDP does": (
        "strategy distributed_strategy ddp use_distributed_sampler local_rank local_world_size rank"
    ),
    "evaluation draws no minibatches: it takes all neighbours (under sampler 'temporal' those of sampler.fanout)": (
        "eval_fanout val_fanout test_fanout eval_batch_size val_batch_size test_batch_size use_mini_batch_infer "
        "limit_val_batches limit_test_batches limit_predict_batches num_sanity_val_steps"
    ),
    "evaluation ranks a held-out pair among all destinations or given negatives; by time, among 100 drawn ones": (
        "eval_negative_sampler num_negative_edges_eval fixed_test_size eval_etypes_negative_dstnode"
    ),
    "to try a job, check it with millrace run --dry-run, then set epochs to 1": (
        "fast_dev_run limit_train_batches overfit_batches barebones"
    ),
    "progress is printed and logged in the run's folder; verbose=False in Python prints nothing": (
        "log_every_n_steps log_report_frequency enable_progress_bar enable_model_summary logging_level logging_file"
    ),
    "millrace report tells where a run's seconds and bytes went": "profiler profile_path save_perf_results_path",
    "train.clip_norm bounds the 2-norm of a step's gradient": "gradient_clip_algorithm grad_norm_type",
    "checkpoints are always written; the keys of checkpoint say how often": "enable_checkpointing",
    "Millrace has no language models: embed texts first, and give the rows as features of nodes": (
        "lm_train_nodes lm_tune_lr lm_infer_batch_size freeze_lm_encoder_epochs max_seq_len cache_lm_embed "
        "node_lm_configs lm_model textual_data_path distill_lm_configs max_distill_step"
    ),
    "set learned.width: each node then learns a row of its own": (
        "use_node_embeddings construct_feat_ntype construct_feat_encoder construct_feat_fanout"
    ),
    "give it after the run to millrace predict, which writes predictions, scores or embeddings": (
        "save_embed_path save_embed_format return_proba infer_all_target_nodes"
    ),
    "it is an argument of mr.NeighborLoader and mr.LinkNeighborLoader, for a training loop of your own": (
        "input_nodes input_time time_attr edge_label_index edge_label edge_label_time disjoint subgraph_type "
        "is_sorted transform transform_sampler_output pin_memory"
    ),
    "no model of Millrace has it; a model of your own may: MODULE:NAME, or an nn.Module in Python": (
        "input_activate num_ffn_layers_in_input num_ffn_layers_in_gnn num_ffn_layers_in_decoder decoder_bias "
        "decoder_norm decoder_edge_feat num_decoder_basis edge_feat_mp_op out_emb_size"
    ),
    "Lightning's Trainer has it, and trains on mr.LightningNodeData and mr.LightningLinkData": (
        "benchmark inference_mode detect_anomaly plugins sync_batchnorm reload_dataloaders_every_n_epochs "
        "enable_autolog_hparams model_registry"
    ),
    "a relation is a reverse if it is named rev_NAME, or has exactly the reversed pairs of another": (
        "reverse_edge_types_map"
    ),
    "a minibatch's samples lack its own pairs": "exclude_training_targets",
    "result.per_relation has the metrics of each relation": "report_eval_per_type",
    "link.negatives 'given' trains against the negatives of read.pairs": "num_train_hard_negatives",
    "start_from takes a run's parameters, and --resume its optimizer too": (
        "restore_model_layers restore_optimizer_path"
    ),
    "it depends on the model (docs/models.md)": "use_self_loop",
    "gin trains its eps, which is 0 at first; no other model has one": "model.eps train_eps",
}
"""Advice for words without a matching key, between spaces."""

_KEY_OF = {word: key for key, words in KEYS.items() for word in words.split()}
_SENTENCE_OF = {word: sentence for sentence, words in SENTENCES.items() for word in words.split()}


def advice(word: str) -> str:
    """Advice for a word of another library, as the end of an error message; empty if the word is not known."""
    word = word.lower()
    if key := _KEY_OF.get(word):
        return f"; did you mean '{key}'?"
    return f"; {_SENTENCE_OF[word]}" if word in _SENTENCE_OF else ""


def instead_of_flag(flag: str, taken: Collection[str] = FLAGS) -> str | None:
    """Message for a flag that does not exist, naming the one of those `taken` to use, or a key; None if its word is not
    known."""
    word = flag.lstrip("-").replace("-", "_").lower()
    key = ".".join(SHORTHANDS.get(word, ())) or _KEY_OF.get(word)
    if key:
        short = next((short for short, path in SHORTHANDS.items() if ".".join(path) == key), key)
        return (
            f"no such option: {flag}; give {'--' + short.replace('_', '-') if short in taken else f'--set {key}=...'}"
        )
    if word not in _SENTENCE_OF:
        return None
    # Words of a sentence mean one thing, for which this command may have a flag.
    own = next((other for other in SENTENCES[_SENTENCE_OF[word]].split() if other in taken), None)
    return f"no such option: {flag}; {_SENTENCE_OF[word] if own is None else f'give --{own}'.replace('_', '-')}"


def full_key(path: Sequence[str], value: Any) -> list[str]:
    """The key that a path stands for: a shorthand's key, a section's main key if the section is set by a plain string
    or number, or the path itself."""
    if len(path) == 1 and path[0] in NAMED and isinstance(value, str):
        return [path[0], NAMED[path[0]]]
    if isinstance(value, str) and tuple(path) in NAMED_WITHIN:
        return [*path, NAMED_WITHIN[tuple(path)]]
    if len(path) == 1 and path[0] in NUMBERED and isinstance(value, Integral) and not isinstance(value, bool):
        return [path[0], NUMBERED[path[0]]]
    return list(SHORTHANDS.get(path[0], path)) if len(path) == 1 else list(path)


def merged(base: Mapping[str, Any], path: Sequence[str], value: Any, within: tuple[str, ...] = ()) -> dict[str, Any]:
    """`base` with the value at `path` replaced.

    Args:
        base: a table.
        path: keys from there.
        value: the new value.
        within: the keys that lead to `base`.

    Raises:
        InputError: a part of the path is a plain value, not a table.
    """
    table = dict(base)
    if len(path) == 1:
        table[path[0]] = value
        return table
    inner, here = table.get(path[0], {}), (*within, path[0])
    if isinstance(inner, str) and here in NAMED_WITHIN:
        inner = {NAMED_WITHIN[here]: inner}
    if not isinstance(inner, Mapping):
        raise InputError(
            f"configuration key '{'.'.join(here)}' is {quoted(inner)}; expected a table, for "
            f"'{'.'.join((*within, *path))}' to be in it"
        )
    table[path[0]] = merged(inner, path[1:], value, here)
    return table


def expanded(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table with every shorthand replaced by its key.

    Raises:
        InputError: a shorthand and its key are both given, and differ.
    """
    short = {word: full_key([word], value) for word, value in table.items() if full_key([word], value) != [word]}
    # A section set by a plain string must become a table before anything is put into it.
    result = {word: value for word, value in table.items() if word not in short}
    for word, path in sorted(short.items(), key=lambda item: item[0] not in NAMED):
        section = result.get(path[0])
        held = section.get(path[1], table[word]) if isinstance(section, Mapping) else table[word]
        if held != table[word]:
            raise InputError(
                f"'{word}' is {quoted(table[word])} and '{'.'.join(path)}' is {quoted(held)}; they are one key: leave "
                "one out"
            )
        result = merged(result, path, table[word])
    return result


def with_options(table: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A table updated with keyword arguments, which may be keys or shorthands."""
    result, full = expanded(table), {word: full_key([word], value) for word, value in options.items()}
    # A section given as a whole must not overwrite a shorthand's value.
    for word in sorted(options, key=lambda word: full[word] != [word]):
        result = merged(result, full[word], options[word])
    return result
