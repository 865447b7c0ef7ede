"""Training in bfloat16 beside float32: test accuracy, processor time and the memory of a step, over some seeds.

python benchmarks/precision.py --model sage --seeds 5
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import millrace as mr

SOURCE = "sbm:nodes=20000,classes=16,degree=30,features=128,noise=2,train=0.5"


def main() -> None:
    """Run all pairs; print a line for each precision."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", default=SOURCE)
    parser.add_argument("--model", default="sage")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=1024)
    args = parser.parse_args()
    data = mr.open_dataset(args.dataset)
    seen: dict[str, list[tuple[float, float, float]]] = {"float32": [], "bfloat16": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(-1, args.seeds):  # the first compiles kernels
            for precision, found in seen.items():
                start = time.process_time()
                result = mr.run(
                    data, model=args.model, hidden=args.hidden, fanout=[15, 10, 5], batch_size=args.batch_size,
                    epochs=1 if seed < 0 else args.epochs, threads=1, seed=max(seed, 0), verbose=False,
                    train={"matmul_precision": precision, "evaluate_every": 0}, out=Path(folder) / f"{precision}{seed}",
                )  # fmt: skip
                spent = time.process_time() - start
                if seed >= 0:
                    found.append((result.test_accuracy or 0.0, spent, result.memory_bytes[0]["step"] / 2**20))
    for precision, found in seen.items():
        accuracy, seconds, mib = zip(*found)
        spread = statistics.stdev(accuracy) if len(accuracy) > 1 else 0.0
        print(
            f"{args.model} {precision}: test accuracy {statistics.mean(accuracy):.4f} ± {spread:.4f}, "
            f"{statistics.mean(seconds):.1f} s of processor, {statistics.mean(mib):.0f} MiB a step"
        )


if __name__ == "__main__":
    main()
