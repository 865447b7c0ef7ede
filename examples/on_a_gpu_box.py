"""Ranks on the GPUs of one machine, one each: Millrace starts dask-cuda's cluster, and ends it with the run.

    python examples/on_a_gpu_box.py --dataset digits --out runs/gpus

All arguments go to `millrace run`. What to expect: what `on_a_laptop.sh` prints, by as many ranks as there are GPUs.
Without a GPU one sentence says what is missing (exit code 2), such as

    millrace: device is "cuda", but this torch (2.13.0+cpu) is built without CUDA; install one with it,
    or use device = "cpu"

`millrace doctor` says the rest. More than one GPU needs the extra `gpu`. `make test` runs this script without any.
"""

import subprocess
import sys

import torch


def main() -> int:
    """Start a run with as many ranks as there are GPUs."""
    ranks = str(max(1, torch.cuda.device_count()))
    return subprocess.call(
        [sys.executable, "-m", "millrace.pipeline", "run", "--device", "cuda", "--ranks", ranks, *sys.argv[1:]]
    )


if __name__ == "__main__":
    sys.exit(main())
