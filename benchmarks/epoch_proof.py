"""Proof that the engines of `epoch.py` train the same thing: from the same parameters they have the same losses."""

from collections.abc import Callable
from typing import Any

STEPS = 3
"""On the same minibatch: the first loss proves the forward pass, the others gradients and steps."""
CLOSE = 1e-5
"""Relative difference of two losses that rounding explains."""


def prove(run: Callable[[Any], dict[str, Any]], engines: list[Any]) -> list[str]:
    """Let each engine take a few steps on one minibatch, whose neighbourhoods are whole, and print their losses.

    Args:
        run: trains an engine on that minibatch, an epoch a step.
        engines: those of a model, ours first.

    Returns:
        Engines that failed, or whose losses or nodes are not ours.
    """
    distinct = {(e.name, e.threads): e for e in engines}.values()
    found = [(f"{e.name} {e.threads}T", run(e)) for e in distinct]
    print(f"proof: losses of {STEPS} steps on one minibatch from the same parameters, and its nodes")
    said, ours = [], None
    for label, r in found:
        if "failed" in r:
            said.append(f"proof: {label} failed: {r['failed']}")
            continue
        losses, nodes = r["losses"][:STEPS], r["nodes"]
        print(f"  {label:12} {'  '.join(f'{x:.7f}' for x in losses)}  {nodes:.0f}", flush=True)
        ours = ours or (losses, nodes)
        if nodes != ours[1] or any(abs(a - b) > CLOSE * abs(b) for a, b in zip(losses, ours[0], strict=True)):
            said.append(
                f"proof: {label} has losses {losses} and {nodes:.0f} nodes; expected {ours[0]} and {ours[1]:.0f}"
            )
    return said
