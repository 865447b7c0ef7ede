"""Ranks in jobs of a Slurm cluster: dask-jobqueue submits the jobs, with TLS, for the duration of one run.

    python examples/on_slurm.py --tls tls --host 10.0.0.1 --workers 4 --cores 16 --memory 64GB \
        --queue normal --walltime 02:00:00 --dataset store/ --ranks 4 --out runs/slurm
    python examples/on_slurm.py --tls tls --host 10.0.0.1 --workers 4 --cores 16 --memory 64GB \
        --queue normal --walltime 08:00:00 --tables tables/ --work /scratch/graph --parts 4 --ranks 4

The first trains. The second does the whole chain of examples/chain.py: tables become a store, its nodes are renumbered
part by part, a run trains on that, and its model is evaluated and predicts, all by the same jobs.

Runs on a login node, or in a small job of its own; `--host` is its address that the jobs reach. Every worker is a Slurm
job of `--cores` cores, and holds a rank or runs tasks. The home of this Python, `tls` (see docs/cluster.md), the
dataset, `--work` and the run's folder are on a file system that all nodes share. All other arguments go to
`millrace run`. With `--render` the job script is printed, and nothing is submitted.

What to expect: nothing until Slurm has started all jobs, then what `millrace` prints, and its exit code; the jobs end
with it. A job that ends early is a lost rank (see docs/cluster.md); a job that meets its time limit is not replaced, so
ask for enough. The same command goes on after a stop, without `--tables` if `--resume` is added.

Rendered only: `make test` has no Slurm. It checks the directives, that Dask and Millrace take the arguments, and that
what is rendered trains where a shell stands in for Slurm. Needs the extra `launch`.
"""

import argparse
import signal
import subprocess
import sys
from pathlib import Path

import chain
from dask_jobqueue import SLURMCluster
from distributed import Client, Security


def main() -> int:
    """Ask for jobs, wait until all run, and train on them."""
    parser = argparse.ArgumentParser(
        description="Millrace on Slurm; other arguments go to `millrace run`.", allow_abbrev=False
    )
    parser.add_argument("--host", required=True, help="an address of this machine that the nodes reach")
    parser.add_argument(
        "--tls", required=True, type=Path, help="folder of ca.pem, cert.pem and key.pem that the nodes see too"
    )
    parser.add_argument("--workers", type=int, default=2, help="Slurm jobs, one worker each (2)")
    parser.add_argument("--cores", type=int, default=8, help="of each job (8)")
    parser.add_argument("--memory", default="16GB", help="of each job (16GB)")
    parser.add_argument("--walltime", default="01:00:00", help="of each job (01:00:00)")
    parser.add_argument("--queue", help="the partition of Slurm")
    parser.add_argument("--account")
    parser.add_argument("--interface", help="network interface of the nodes, such as ib0")
    parser.add_argument("--render", action="store_true", help="print the job script and stop")
    chain.add_arguments(parser)
    here, run = parser.parse_known_args()
    ca, cert, key = (str(here.tls.resolve() / name) for name in ("ca.pem", "cert.pem", "key.pem"))
    roles = {
        f"tls_{role}_{kind}": path
        for role in ("scheduler", "worker", "client")
        for kind, path in (("cert", cert), ("key", key))
    }
    cluster = SLURMCluster(
        job_name="millrace",
        cores=here.cores,
        memory=here.memory,
        processes=1,
        walltime=here.walltime,
        queue=here.queue,
        account=here.account,
        interface=here.interface,
        security=Security(tls_ca_file=ca, require_encryption=True, **roles),
        scheduler_options={"host": here.host, "port": 0, "dashboard_address": "127.0.0.1:0"},
        # Millrace's ranks are processes of their own: Dask's worker is neither to thread nor to limit anything.
        worker_extra_args=["--nthreads", "1", "--memory-limit", "0", "--no-dashboard"],
    )
    with cluster:
        if here.render:
            print(cluster.job_script(), end="")
            return 0
        cluster.scale(jobs=here.workers)
        with Client(cluster) as client:
            client.wait_for_workers(here.workers)
        # An interrupt is for the command that runs.
        signal.signal(signal.SIGINT, lambda *_: None)
        files = {"tls_ca": ca, "tls_cert": cert, "tls_key": key}
        settings = {"scheduler": cluster.scheduler_address, "host": here.host, **files}
        return subprocess.call(["sh", "-c", chain.script(here, settings, ["--set", f"threads={here.cores}", *run])])


if __name__ == "__main__":
    sys.exit(main())
