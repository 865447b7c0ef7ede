"""Ranks on the GPUs of one machine, a worker of dask-cuda for each. This version of Millrace has no such ranks yet, and says so.

    python examples/on_a_gpu_box.py --dataset digits --out runs/gpus

All arguments go to `millrace run`. What to expect today, with GPUs or without (exit code 2):

    millrace: device is 'cuda', but this version trains on CPUs only; use device = "cpu"

Needs the extra `gpu` where there are GPUs. `make test` runs this script without any.
"""

import subprocess
import sys
from contextlib import ExitStack

import torch


def main() -> int:
    """Start a worker for each GPU there is, and a run with as many ranks."""
    gpus = torch.cuda.device_count()
    where = []
    with ExitStack() as stack:
        if gpus:
            from dask_cuda import LocalCUDACluster

            cluster = stack.enter_context(LocalCUDACluster(host="127.0.0.1", threads_per_worker=1, memory_limit=0))
            where = ["--scheduler", cluster.scheduler_address, "--ranks", str(gpus)]
        return subprocess.call([sys.executable, "-m", "millrace.pipeline", "run", "--device", "cuda", *where, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
