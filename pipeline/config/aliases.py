"""Configuration keys by other words: shorthands, which work everywhere, and words of other libraries, each with what to
set here."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...storage.errors import InputError
from .plain_values import shown

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
    "minibatches_per_step": ("train", "minibatches_per_step"),
    "reuse": ("queue", "reuse"),
    "scheduler": ("cluster", "scheduler"),
    "host": ("cluster", "host"),
}
"""Words that are short for configuration keys: on the command line, in a job file and in Python."""

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
"""Words that are flags of `run`."""

NAMED = {"model": "name", "sampler": "name", "partition": "method"}
"""Sections of which a plain string is one key."""

KEYS: dict[str, tuple[str, ...]] = {
    "epochs": ("num_epochs", "n_epochs", "max_epochs", "nepochs"),
    "seed": ("random_seed", "random_state", "manual_seed"),
    "ranks": ("world_size", "num_ranks", "n_ranks", "nproc", "nproc_per_node", "num_processes"),
    "threads": ("num_threads", "n_threads", "nthreads", "omp_num_threads"),
    "dataset": ("data", "dataset_name", "data_path"),
    "device": ("accelerator",),
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
    "train.weight_decay": ("wd", "l2", "l2_reg"),
    "train.patience": ("early_stopping", "early_stop", "early_stopping_patience"),
    "train.optimizer": ("optim", "opt", "optimiser"),
    "train.evaluate_every": ("eval_every", "eval_steps", "check_val_every_n_epoch", "val_every"),
    "train.minibatches_per_step": ("accumulate_grad_batches", "gradient_accumulation_steps", "grad_accum"),
    "partition.method": ("partitioner", "partition_method", "part_method"),
    "checkpoint.every_epochs": ("save_every", "save_freq", "checkpoint_every"),
}
"""The words of other libraries that mean a key."""

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
"""Keys that had another name in an earlier version, each with its name today."""

REMOVED: dict[str, str] = {
    "grappa.hops": "no correction did better than none in 720 runs",
    "grappa.kappa": "no correction did better than none in 720 runs",
    "grappa.strength": "no correction did better than none in 720 runs, with shrinking or without",
    "retexo.folds": "it raised no accuracy",
    "retexo.residual": "it raised no accuracy",
    "retexo.select_by": "retexo.mode says what the best epoch of a layer is chosen by",
}
"""Keys of an earlier version that are gone, each with the reason."""

LR_IS_CONSTANT = "the learning rate is constant (train.lr)"

SENTENCES: dict[str, tuple[str, ...]] = {
    "set device to 'cuda' and ranks to the number of GPUs: each rank has one of its own": (
        "gpus",
        "n_gpus",
        "num_gpus",
        "ngpus",
        "devices",
        "use_cuda",
    ),
    "there are no loader processes; ranks sample in threads (threads), or tasks do (cluster.producers, with queue.kind 'zarr')": (
        "num_workers",
        "n_workers",
        "workers",
    ),
    "set train.matmul_precision to 'bfloat16' for mixed precision; dtype is that of everything else": (
        "amp",
        "fp16",
        "bf16",
        "mixed_precision",
        "precision",
        "autocast",
    ),
    "there are no callbacks; pass emit=, a function of each event, to mr.run": (
        "callbacks",
        "callback",
        "logger",
        "loggers",
    ),
    "there are no class weights, every train node weighs the same in the loss": (
        "class_weight",
        "class_weights",
        "pos_weight",
    ),
    f"there are no schedules, {LR_IS_CONSTANT}": (
        "scheduler",
        "lr_scheduler",
        "lr_schedule",
        "warmup",
        "warmup_steps",
        "lr_decay",
        "gamma",
    ),
    "the loss follows from the labels: cross entropy, or binary cross entropy where a node has several": (
        "loss",
        "loss_fn",
        "criterion",
    ),
    "the metric follows from the labels: accuracy, or micro-F1 where a node has several": ("metric", "metrics"),
    "an optimizer has torch's defaults but for train.lr and train.weight_decay": (
        "momentum",
        "betas",
        "eps",
        "nesterov",
        "amsgrad",
    ),
    "gradients are not clipped": (
        "grad_clip",
        "clip_grad_norm",
        "clip_grad",
        "gradient_clip_val",
        "max_grad_norm",
        "gradient_clipping",
    ),
    "train nodes are shuffled anew in every epoch": ("shuffle",),
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
    "it is no key: pass --out on the command line, or out= in Python": (
        "out",
        "output_dir",
        "out_dir",
        "save_dir",
        "log_dir",
        "checkpoint_dir",
        "run_dir",
        "logdir",
    ),
    "it is no key: pass --resume on the command line, or resume=True in Python": (
        "resume",
        "resume_from_checkpoint",
        "ckpt_path",
    ),
    "it is no key: pass --samples on the command line, or samples= in Python": ("samples",),
    "each rank has one part, or grappa.chunks of them: set ranks": ("num_parts", "n_parts", "nparts", "parts"),
    "set OGB_ROOT to the folder of OGB's datasets, or dataset to a path": ("root", "data_dir", "data_root"),
}
"""What to say where no key means the same."""

_KEY_OF = {word: key for key, words in KEYS.items() for word in words}
_SENTENCE_OF = {word: sentence for sentence, words in SENTENCES.items() for word in words}


def advice(word: str) -> str:
    """What to set in place of a word of another library, as the end of an error; the empty string where the word is not
    known."""
    word = word.lower()
    if (key := _KEY_OF.get(word)) is not None:
        return f"; did you mean '{key}'?"
    return f"; {_SENTENCE_OF[word]}" if word in _SENTENCE_OF else ""


def instead_of_flag(flag: str) -> str | None:
    """What to give in place of a flag that there is not; None where its word is not known."""
    word = flag.lstrip("-").replace("-", "_").lower()
    key = ".".join(SHORTHANDS.get(word, ())) or _KEY_OF.get(word)
    if key is not None:
        short = next((short for short, path in SHORTHANDS.items() if ".".join(path) == key), key)
        return (
            f"no such option: {flag}; give {'--' + short.replace('_', '-') if short in FLAGS else f'--set {key}=...'}"
        )
    return f"no such option: {flag}; {_SENTENCE_OF[word]}" if word in _SENTENCE_OF else None


def full_key(path: Sequence[str], value: Any) -> list[str]:
    """The key that a path means: a shorthand's, a section's own where it is named by a plain string, or the path
    itself."""
    if len(path) == 1 and path[0] in NAMED and isinstance(value, str):
        return [path[0], NAMED[path[0]]]
    return list(SHORTHANDS.get(path[0], path)) if len(path) == 1 else list(path)


def merged(base: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """`base` with the value at `path` replaced.

    Raises:
        InputError: a part of the path is a plain value, not a table.
    """
    table = dict(base)
    if len(path) == 1:
        table[path[0]] = value
        return table
    inner = table.get(path[0], {})
    if not isinstance(inner, Mapping):
        raise InputError(
            f"configuration key '{path[0]}' is {shown(inner)}; expected a table, for '{'.'.join(path)}' to be in it"
        )
    table[path[0]] = merged(inner, path[1:], value)
    return table


def expanded(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table with every shorthand replaced by the key that it is short for.

    Raises:
        InputError: both are given, and differ.
    """
    short = {word: full_key([word], value) for word, value in table.items() if full_key([word], value) != [word]}
    # A section named by a string must be a table before anything is put in it.
    result = {word: value for word, value in table.items() if word not in short}
    for word, path in sorted(short.items(), key=lambda item: item[0] not in NAMED):
        section = result.get(path[0])
        held = section.get(path[1], table[word]) if isinstance(section, Mapping) else table[word]
        if held != table[word]:
            raise InputError(
                f"'{word}' is {shown(table[word])} and '{'.'.join(path)}' is {shown(held)}; they are one key: leave one out"
            )
        result = merged(result, path, table[word])
    return result


def with_options(table: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A table with keys and shorthands over it, as keyword arguments give them."""
    result, full = expanded(table), {word: full_key([word], value) for word, value in options.items()}
    # A section that is given whole must not wipe out what a shorthand says.
    for word in sorted(options, key=lambda word: full[word] != [word]):
        result = merged(result, full[word], options[word])
    return result
