"""A training loop of your own under torchrun: torch's data parallelism, on Millrace's minibatches from one store.

    torchrun --standalone --nproc-per-node 2 examples/on_torchrun.py --dataset store/ --out runs/torchrun
    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 10.0.0.1:29400 --max-restarts 3 \
        examples/on_torchrun.py --tables tables/ --work /data/graph --job job.toml --sample

Millrace's own ranks (`millrace run`) are started by Dask, not by torchrun: here the ranks are torchrun's, and the loop
is yours to change. Each process maps the files of the store, of which a machine holds one copy, and gets the
minibatches of its rank. `--job` has the options of the sampler and of training (fanout, batch_size, epochs, lr, ...).

With `--tables` the first process does the chain of examples/chain.py up to the training: tables become a store, whose
nodes are renumbered part by part, and with `--sample` minibatches are drawn once, for all processes and restarts, with
`--pack` beside their feature rows; the others wait. `--work`, and what it is made from, lie where all machines see
them.

What to expect: the loss of each epoch and the accuracy of the test split, printed by the first process; its predictions
in OUT/predictions.parquet, and after each epoch OUT/model.pt, from which the same command goes on, and torchrun too
if a process dies. It is `mr.run` without exact validation by epoch, reports and losses of single ranks; gradients are
the mean over ranks, as torch has it. `make test` runs this script on two ranks.
"""

import argparse
import os
import subprocess
import tomllib
from datetime import timedelta
from pathlib import Path

import chain
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import millrace as mr


def join() -> None:
    """Make the process group."""
    store, rank, size = next(dist.rendezvous("env://"))
    # torchrun gives restarted processes the same store, in which gloo would find the addresses of the dead ones.
    store = dist.PrefixStore(f"start-{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    # The others wait while the first one prepares.
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(days=1))


def make_loader(here: argparse.Namespace) -> mr.Minibatches:
    """This rank's minibatches; the first process makes what they come from."""
    if here.tables is not None and dist.get_rank() == 0:
        subprocess.run(["sh", "-c", "\n".join(chain.preparation(here, {}))], check=True)
    dist.barrier()
    job = {} if here.job is None else tomllib.loads(Path(here.job).read_text())
    dataset = here.dataset if here.tables is None else f"{here.work}/parts"
    samples = f"{here.work}/samples" if here.sample or here.pack else None
    return mr.minibatches(dataset, samples=samples, features="mapped", graph="mapped", config=job)


def train(loader: mr.Minibatches, model: torch.nn.Module, lr: float, snapshot: Path) -> None:
    """Train the model from its last snapshot on, or from the beginning."""
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(parallel.parameters(), lr=lr)
    first = 0
    if snapshot.exists():
        kept = torch.load(snapshot)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        first = kept["epochs"]
    for epoch in range(first, loader.epochs):
        total = 0.0
        # In the last step of an epoch, a rank may have no minibatch.
        with parallel.join():
            for batch in loader.epoch(epoch):
                optimizer.zero_grad()
                loss = F.cross_entropy(parallel(batch.neighbourhoods, batch.h), batch.y)
                loss.backward()
                optimizer.step()
                total += loss.item() * len(batch.y)
        sums = torch.tensor([total])
        dist.all_reduce(sums)
        if dist.get_rank() == 0:
            loss_of_epoch = sums.item() / len(loader.dataset.split.train)
            print(f"epoch {epoch + 1}/{loader.epochs}: loss {loss_of_epoch:.4f}", flush=True)
            kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
            aside = snapshot.with_suffix(".new")
            torch.save(kept, aside)
            os.replace(aside, snapshot)


def main() -> None:
    """Prepare, train, evaluate and predict, as one of the processes that torchrun has started."""
    parser = argparse.ArgumentParser(description="Millrace's minibatches under torchrun.", allow_abbrev=False)
    parser.add_argument("--dataset", help="a store, in place of --tables")
    parser.add_argument("--hidden", type=int, default=64, help="width of the model (64)")
    parser.add_argument("--lr", type=float, default=0.003, help="learning rate (0.003)")
    chain.add_arguments(parser)
    here = parser.parse_args()
    join()
    loader = make_loader(here)
    torch.manual_seed(0)
    model = mr.GraphSAGE(hidden=here.hidden, layers=loader.num_layers).build(loader.num_features, loader.num_classes)
    out = Path(chain.run_folder(here) or f"{here.work}/run")
    out.mkdir(parents=True, exist_ok=True)
    train(loader, model, here.lr, out / "model.pt")
    if dist.get_rank() == 0:
        predictions = mr.predict(model, loader.dataset)
        test = loader.dataset.split.test
        right = predictions.classes[test] == loader.dataset.labels[test]
        print(f"test accuracy {right.mean():.4f} of {len(test):,} nodes")
        predictions.write(out / "predictions.parquet")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
