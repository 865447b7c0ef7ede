"""Other words for configuration keys: shorthands, which work everywhere, and words of other libraries, each with the
key to set here."""

from collections.abc import Collection, Mapping, Sequence
from numbers import Integral
from typing import Any

from ...storage.errors import InputError
from .plain_values import quoted

SHORTHANDS: dict[str, tuple[str, ...]] = {
    "hidden": ("model", "hidden"),
    "layers": ("model", "layers"),
    "dropout": ("model", "dropout"),
    "heads": ("model", "heads"),
    "fanout": ("sampler", "fanout"),
    "batch_size": ("train", "batch_size"),
    "lr": ("train", "lr"),
    "weight_decay": ("train", "weight_decay"),
    "optimizer": ("train", "optimizer"),
    "patience": ("train", "patience"),
    "metrics": ("train", "metrics"),
    "minibatches_per_step": ("train", "minibatches_per_step"),
    "monitor": ("train", "monitor"),
    "loss": ("train", "loss"),
    "task": ("read", "task"),
    "labels_of": ("read", "labels_of"),
    "pairs": ("read", "pairs"),
    "relation": ("read", "relation"),
    "decoder": ("link", "decoder"),
    "negatives": ("link", "negatives"),
    "reuse": ("queue", "reuse"),
    "scheduler": ("cluster", "scheduler"),
    "host": ("cluster", "host"),
}
"""Shorthands for configuration keys: on the command line, in a job file and in Python."""

FLAGS = (
    "hidden",
    "layers",
    "dropout",
    "fanout",
    "batch_size",
    "lr",
    "reuse",
    "scheduler",
    "host",
    "epochs",
    "seed",
    "ranks",
    "dataset",
)
"""Shorthands that are flags of `run`."""

NAMED = {"model": "name", "sampler": "name", "partition": "method"}
"""Sections for which a plain string sets one key."""

NAMED_WITHIN: dict[tuple[str, ...], str] = {("train", "schedule"): "name", ("train", "loss"): "name"}
"""Tables within sections for which a plain string sets one key."""

NUMBERED = {"learned": "width"}
"""Sections for which a plain number sets one key."""

KEYS: dict[str, tuple[str, ...]] = {
    "epochs": ("num_epochs", "n_epochs", "max_epochs", "nepochs"),
    "seed": ("random_seed", "random_state", "manual_seed"),
    "ranks": ("world_size", "num_ranks", "n_ranks", "nproc", "nproc_per_node", "num_processes"),
    "threads": ("num_threads", "n_threads", "nthreads", "omp_num_threads"),
    "dataset": ("data", "dataset_name", "data_path"),
    "device": ("accelerator",),
    "model.name": ("model_encoder_type", "model_type", "arch"),
    "model.hidden": (
        "hidden_channels",
        "hidden_dim",
        "hidden_size",
        "hidden_features",
        "num_hidden",
        "n_hidden",
        "hid",
    ),
    "model.layers": ("num_layers", "n_layers", "nlayers"),
    "model.heads": ("num_heads", "n_heads", "nheads"),
    "model.dropout": ("p_dropout", "dropout_rate", "feat_drop", "drop_rate"),
    "model.attention_dropout": ("attn_drop", "att_dropout"),
    "model.slope": ("negative_slope",),
    "model.activation": ("act", "activation_fn", "nonlinearity"),
    "sampler.fanout": ("num_neighbors", "num_neighbours", "neighbors", "fanouts", "fan_out"),
    "train.lr": ("learning_rate", "base_lr"),
    "train.weight_decay": ("wd", "l2", "l2_reg", "wd_l2norm"),
    "train.patience": (
        "early_stopping",
        "early_stop",
        "early_stopping_patience",
        "early_stop_rounds",
        "use_early_stop",
    ),
    "train.monitor": ("early_stopping_metric", "metric_for_best_model", "best_metric"),
    "train.metrics": ("metric", "eval_metric"),
    "train.optimizer": ("optim", "opt", "optimiser"),
    "train.optimizer_options": ("optim_args", "optimizer_kwargs", "optimizer_params"),
    "train.loss": ("loss_fn", "criterion", "loss_function", "objective"),
    "train.loss.class_weights": ("class_weight",),
    "train.loss.gamma": ("focal_gamma",),
    "train.schedule": ("lr_scheduler", "lr_schedule", "lr_scheduler_type", "lr_decay"),
    "train.schedule.warmup": ("warmup_epochs", "warmup_steps", "warmup_ratio"),
    "train.groups": ("param_groups", "parameter_groups"),
    "train.clip_norm": (
        "grad_clip",
        "clip_grad_norm",
        "clip_grad",
        "gradient_clip_val",
        "max_grad_norm",
        "gradient_clipping",
    ),
    "train.ema": ("ema_decay", "model_ema", "ema_rate"),
    "train.evaluate_every": (
        "eval_every",
        "eval_steps",
        "check_val_every_n_epoch",
        "val_every",
        "eval_frequency",
        "val_check_interval",
    ),
    "train.minibatches_per_step": ("accumulate_grad_batches", "gradient_accumulation_steps", "grad_accum"),
    "partition.method": ("partitioner", "partition_method", "part_method"),
    "track": ("report_to", "trackers"),
    "learned.width": ("embedding_dim", "emb_dim", "node_emb_dim", "embedding_size"),
    "learned.lr": ("sparse_optimizer_lr", "sparse_lr", "emb_lr"),
    "read": ("options", "read_options"),
    "read.target": ("target_ntype", "predict_ntype", "target_node_type"),
    "read.feature_columns": ("node_feat_name", "feat_name", "feature_cols"),
    "read.label_columns": ("label_field", "label_col", "label_name"),
    "link.negatives": ("neg_sampling", "negative_sampler", "negative_sampling", "train_negative_sampler"),
    "link.num_negatives": (
        "neg_sampling_ratio",
        "neg_ratio",
        "num_neg",
        "num_neg_samples",
        "neg_per_pos",
        "num_negative_edges",
    ),
    "checkpoint.every_epochs": ("save_every", "save_freq", "checkpoint_every", "save_model_frequency"),
    "checkpoint.keep": ("save_top_k", "topk_model_to_save"),
}
"""Words of other libraries for a key."""

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

SENTENCES: dict[str, tuple[str, ...]] = {
    "set device to 'cuda' and ranks to the number of GPUs: each rank uses one GPU": (
        "gpus",
        "n_gpus",
        "num_gpus",
        "ngpus",
        "devices",
        "num_trainers",
        "use_cuda",
    ),
    "there are no loader processes; ranks sample in threads (threads), or Dask tasks do (cluster.producers, with "
    "queue.kind 'zarr')": (
        "num_workers",
        "n_workers",
        "num_samplers",
        "workers",
    ),
    "set train.matmul_precision to 'bfloat16' for mixed precision; dtype applies to everything else": (
        "amp",
        "fp16",
        "bf16",
        "mixed_precision",
        "precision",
        "autocast",
    ),
    "it is code, not a key: pass callbacks= to mr.run, or --code callback=MODULE:NAME on the command line": (
        "callbacks",
        "callback",
        "logger",
        "loggers",
    ),
    "optimizer options go together: set train.optimizer_options={'momentum': 0.9}, by torch's names": (
        "momentum",
        "betas",
        "eps",
        "nesterov",
        "amsgrad",
    ),
    "train nodes are shuffled in every epoch": ("shuffle",),
    "the last minibatch of an epoch is always trained on": ("drop_last",),
    "it follows from the dataset": (
        "in_channels",
        "out_channels",
        "num_classes",
        "n_classes",
        "in_feats",
        "in_dim",
        "out_dim",
        "num_features",
    ),
    "it is not a key: pass --out on the command line, or out= in Python": (
        "out",
        "output_dir",
        "out_dir",
        "save_dir",
        "log_dir",
        "checkpoint_dir",
        "run_dir",
        "logdir",
        "output",
        "default_root_dir",
        "save_model_path",
        "save_prediction_path",
    ),
    "it is not a key: pass --resume on the command line, or resume=True in Python": (
        "resume",
        "resume_from_checkpoint",
        "ckpt_path",
        "restore_model_path",
    ),
    "it is not a key: pass --samples on the command line, or samples= in Python": ("samples",),
    "each rank has one part (grappa: grappa.chunks parts): set ranks": ("num_parts", "n_parts", "nparts", "parts"),
    "set ranks, executor 'dask' and --scheduler for those of other machines": (
        "num_nodes",
        "nnodes",
        "ip_config",
        "master_addr",
        "rdzv_endpoint",
    ),
    "training ends after epochs, by train.patience, a callback's stop() or a signal": ("max_steps", "max_time"),
    "every draw is keyed by seed: reruns are the same": ("deterministic",),
    "millrace partition makes parts, and --set partition.owners=FOLDER reads them": ("part_config",),
    "set OGB_ROOT to the folder of OGB's datasets, or dataset to a path": ("root", "data_dir", "data_root"),
}
"""Advice for words without a matching key."""

_KEY_OF = {word: key for key, words in KEYS.items() for word in words}
_SENTENCE_OF = {word: sentence for sentence, words in SENTENCES.items() for word in words}


def advice(word: str) -> str:
    """Advice for a word of another library, as the end of an error message; empty if the word is not known."""
    word = word.lower()
    if (key := _KEY_OF.get(word)) is not None:
        return f"; did you mean '{key}'?"
    return f"; {_SENTENCE_OF[word]}" if word in _SENTENCE_OF else ""


def instead_of_flag(flag: str, taken: Collection[str] = FLAGS) -> str | None:
    """Message for a flag that does not exist, naming the one of those `taken` to use, or a key; None if its word is not
    known."""
    word = flag.lstrip("-").replace("-", "_").lower()
    key = ".".join(SHORTHANDS.get(word, ())) or _KEY_OF.get(word)
    if key is not None:
        short = next((short for short, path in SHORTHANDS.items() if ".".join(path) == key), key)
        return (
            f"no such option: {flag}; give {'--' + short.replace('_', '-') if short in taken else f'--set {key}=...'}"
        )
    if word not in _SENTENCE_OF:
        return None
    # Words of a sentence mean one thing, for which this command may have a flag.
    own = next((other for other in SENTENCES[_SENTENCE_OF[word]] if other in taken), None)
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
