"""Choice of a system: by optimiser steps an hour, and by other goals."""

from collections.abc import Sequence

from ..config.systems import SYSTEMS
from .forecast import Forecast


def whole_seconds(f: Forecast, epochs: int) -> float:
    """Seconds of an epoch that trains every layer; with layer-by-layer training, of one epoch of each."""
    assert f.seconds_per_epoch is not None, "candidates that fit have had a trial"
    return f.seconds_per_epoch * f.epochs / epochs


def steps_per_hour(f: Forecast, epochs: int) -> float:
    """Optimiser steps of the whole model."""
    return 3600 * f.steps_per_epoch / max(1e-9, whole_seconds(f, epochs))


def network_bytes(f: Forecast) -> int:
    """Bytes sent between ranks in the whole run."""
    return sum(f.bytes.get("network", {}).values())


def choice(forecasts: Sequence[Forecast], epochs: int, linked: bool) -> tuple[str | None, str, dict[str, str]]:
    """The fitting system with most steps an hour, the reason, and the best one for each other goal.

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
    best = max(usual or fitting, key=lambda f: steps_per_hour(f, epochs))
    steps = float(f"{steps_per_hour(best, epochs):.3g}")
    why = f"it takes the most optimiser steps an hour, {steps:,.0f}, of those that fit"
    if usual and len(usual) < len(fitting):
        why += f" ({' and '.join(dict.fromkeys(f.system for f in fitting if f not in usual))}: for slow links)"
    goals = {
        "shortest pass over all labels": min(fitting, key=lambda f: whole_seconds(f, epochs)).label,
        "least memory": min(fitting, key=lambda f: f.memory_bytes).label,
    }
    if any(network_bytes(f) for f in fitting):
        goals["fewest bytes between ranks"] = min(fitting, key=network_bytes).label
    return best.label, why, goals
