"""Choice of a system: by the time of the passes over the labels that a run asks for, and by other goals."""

from collections.abc import Sequence

from ..config.systems import SYSTEMS
from .forecast import Forecast

FEW = 100
"""Optimiser steps below which passes of full batches, a step each, are not compared with those of minibatches."""


def whole_seconds(f: Forecast, epochs: int) -> float:
    """Seconds of an epoch that trains every layer; with layer-by-layer training, of one epoch of each."""
    assert f.seconds_per_epoch is not None, "candidates that fit have had a trial"
    return f.seconds_per_epoch * f.epochs / epochs


def network_bytes(f: Forecast) -> int:
    """Bytes sent between ranks in the whole run."""
    return sum(f.bytes.get("network", {}).values())


def choice(forecasts: Sequence[Forecast], epochs: int, linked: bool) -> tuple[str | None, str, dict[str, str]]:
    """The fitting system that takes least time for the passes, the reason, and the best one for each other goal. One
    whose passes make few steps, and fewer than another's, is not chosen.

    Args:
        forecasts: forecasts of all systems.
        epochs: epochs that were asked for.
        linked: True if ranks are connected by a described link; otherwise they are on this machine.
    """
    fitting = [f for f in forecasts if f.fits]
    if not fitting:
        frugal = min(forecasts, key=lambda f: (f.device_bytes, f.memory_bytes))
        return None, f"nothing fits: {frugal.label} takes least, {frugal.arithmetic}", {}
    usual = [f for f in fitting if linked or not SYSTEMS.find(f.system).for_slow_links]
    steps = {f.label: f.steps_per_epoch * epochs for f in usual or fitting}
    trained = [f for f in usual or fitting if steps[f.label] >= min(FEW, max(steps.values()))]
    best = min(trained, key=lambda f: whole_seconds(f, epochs))
    seconds = f"{whole_seconds(best, epochs) * epochs:.3g} s, {steps[best.label]:,} optimiser steps"
    why = f"{epochs:,} passes over all labels take it least time of those that fit, {seconds}"
    asides = [f"{f.label}: only {steps[f.label]:,} steps" for f in usual or fitting if f not in trained]
    if usual and len(usual) < len(fitting):
        asides.append(f"{' and '.join(dict.fromkeys(f.system for f in fitting if f not in usual))}: for slow links")
    why += f" ({'; '.join(asides)})" if asides else ""
    goals = {
        "shortest pass over all labels": min(fitting, key=lambda f: whole_seconds(f, epochs)).label,
        "least memory": min(fitting, key=lambda f: f.memory_bytes).label,
    }
    if any(network_bytes(f) for f in fitting):
        goals["fewest bytes between ranks"] = min(fitting, key=network_bytes).label
    return best.label, why, goals
