"""Several GPUs: epochs of each system by as many ranks as there are GPUs, which talk over NCCL, beside one rank; then
what needs RAPIDS, where it is installed.

The graph is that of full batches. First the losses: the same ranks on processors, over gloo, have the same.
"""

import statistics
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_full_batch import dataset
from gpu_lab import DIFFERENCE, Lab
from peers.train_task import FANOUT, HIDDEN, LR

EPOCHS, LAYERS = 4, len(FANOUT)
SAMPLED = {"sampler": {"name": "neighbor", "fanout": list(FANOUT)}}
SYSTEMS: dict[str, dict[str, Any]] = {
    "bulk": SAMPLED,
    "bulk, partitioned": SAMPLED | {"bulk": {"topology": "partitioned"}},
    "bulk, partitioned, drawn on the hosts": SAMPLED | {"bulk": {"topology": "partitioned"}, "kernel": "cpu"},
    "grappa": SAMPLED,
    "sar": {},
    "sar, one rank after the other": {"sar": {"mode": "rematerialize", "prefetch_bytes": 1 << 20}},
    "retexo": {},
}
"""Options of each system, whose name is the first word."""


def train(lab: Lab, data: Any, system: str, count: int, device: str) -> dict[str, Any]:
    """Seconds of the epochs but the first of each phase, the last loss, and bytes sent."""
    import millrace as mr

    config: dict[str, Any] = {
        "system": system.partition(",")[0],
        "device": device,
        "ranks": count,
        "model": {"name": "sage", "hidden": HIDDEN, "layers": LAYERS, "dropout": 0.0},
        "train": {"optimizer": "adam", "lr": LR, "evaluate_every": 0},
    } | SYSTEMS[system]
    if "sampler" in SYSTEMS[system]:
        config["batch_size"] = lab.batch
    with tempfile.TemporaryDirectory() as folder:
        done = mr.run(data, config=config, epochs=EPOCHS, out=Path(folder) / "run", verbose=False)
    took = [s for i, s in enumerate(done.seconds["per_epoch"]) if i % EPOCHS]
    return {"epoch_s": took, "loss": done.train_loss, "bytes": done.bytes}


def ranks(lab: Lab) -> None:
    """Part "ranks"."""
    found: dict[str, Any] = lab.details.setdefault("ranks", {})
    data, device, count = dataset(lab), lab.device.type, lab.ranks
    for system in SYSTEMS:
        with lab.attempt(f"ranks: {system}"):
            lab.check_time()
            lab.clear()
            one, several = (train(lab, data, system, n, device) for n in (1, count))
            found[system] = {"1": one, str(count): several}
            lab.add(
                f"epoch of {system}, {count} ranks",
                statistics.median(several["epoch_s"]),
                "s",
                peer=statistics.median(one["epoch_s"]),
                against="one rank",
            )
            here = train(lab, data, system, count, "cpu") if lab.on_gpu else several
            found[system]["processors"] = here
            if not abs(several["loss"] - here["loss"]) <= DIFFERENCE * here["loss"]:
                raise AssertionError(f"the loss is {several['loss']}; on processors it is {here['loss']}")


def rapids(lab: Lab) -> None:
    """Part "rapids": every check of `rapids.py`."""
    if find_spec("cudf") is None:
        lab.say("  RAPIDS is not installed here: pip install '.[gpu]'")
        return
    import rapids as checks

    lab.clear()
    if checks.main():
        raise AssertionError("a check of rapids.py failed, see above")
