"""Initial parameters and learnt features from a finished run, such as a RETEXO run that SAR is to tune end to end."""

from pathlib import Path

import torch
from torch import nn

from ...storage.errors import InputError
from ...storage.features import MappedFeatures
from ..config.load import Job, read_run_table, resolve
from .run_folder import JOB, LEARNED, MODEL, learned_rows

SHAPELESS = ("name", "activation", "aggregator", "slope")
"""Options of a model that change its computation but not the shapes of its parameters."""


def with_initial_parameters(model: nn.Module, job: Job) -> nn.Module:
    """The model with its initial parameters: its own, or those of the run in ``start_from``.

    Raises:
        InputError: the run is not finished, or has another model.
    """
    if job.start_from is None:
        return model
    folder = Path(job.start_from)
    path, own = folder / MODEL, model.state_dict()
    try:
        given = torch.load(path, weights_only=True)
    except Exception as e:
        reason = "there is no such file" if isinstance(e, FileNotFoundError) else " ".join(str(e).split())[:200]
        raise InputError(
            f"start_from: {path} cannot be read ({reason}); expected the folder of a finished run"
        ) from None
    before = resolve(read_run_table(folder / JOB))
    _check_same_options(before, job)
    _check_same_learned(before, job)
    # The heads of a model trained layer by layer are not part of the trained network.
    beyond = sorted(k for k in given if k not in own and not k.startswith("heads."))
    other = sorted(k for k, v in own.items() if k not in given or given[k].shape != v.shape)
    if beyond or other:
        k = (other or beyond)[0]
        seen, wanted = (list(state[k].shape) if k in state else "nothing" for state in (given, own))
        hint = ' (after retexo: model.norm = "layer")' if k.startswith("norms.") else ""
        message = f"it has {seen} for '{k}', and the model here {wanted}"
        raise InputError(
            f"start_from: {path} is of another model: {message}; give this run the same model options{hint}"
        )
    model.load_state_dict({k: given[k] for k in own})
    return model


def initial_learned(job: Job, num_nodes: int) -> MappedFeatures | None:
    """[V, D], the learnt features of the run in ``start_from``; None if the job has no such key, or learns none.

    Raises:
        InputError: that run has none, or those of other nodes.
        StoreError: they are damaged.
    """
    if job.start_from is None or not job.learned.width:
        return None
    path = Path(job.start_from) / LEARNED
    if not path.is_file():
        raise InputError(f"start_from: there is no {path}; expected the folder of a finished run with learnt features")
    rows = learned_rows(path.parent, job.learned.width)
    if rows.num_rows != num_nodes:
        raise InputError(
            f"start_from: {path} has learnt features of {rows.num_rows:,} nodes, but this run learns those of "
            f"{num_nodes:,}; give it the same nodes"
        )
    return rows


def _check_same_options(before: Job, now: Job) -> None:
    for key in SHAPELESS:
        if key in before.model and key in now.model and before.model[key] != now.model[key]:
            raise InputError(
                f"start_from: that run has model.{key} = {before.model[key]!r}, this one {now.model[key]!r}; give both "
                "the same"
            )


def _check_same_learned(before: Job, now: Job) -> None:
    """Refuse a run that reads other learnt columns, before shapes of parameters differ by them."""
    if _learns(before) != _learns(now):
        raise InputError(
            f"start_from: that run {_learns(before)}, and this one {_learns(now)}; give both the same learned.width "
            "and learned.beside"
        )


def _learns(job: Job) -> str:
    """Describe the learnt features of a run, in words."""
    if not job.learned.width:
        return "learns no features"
    where = "beside the dataset's" if job.learned.beside else "in place of the dataset's"
    return f"learns {job.learned.width} features of a node {where}"
