"""Ranks on machines reached by SSH: Dask's SSHCluster with TLS, for the duration of one run.

    python examples/over_ssh.py --hosts 10.0.0.1,10.0.0.2 --tls tls --host 10.0.0.1 \
        --dataset sbm:nodes=20000 --ranks 2 --out runs/ssh

The first host gets the scheduler, and every host its workers. All other arguments go to `millrace run`; `--host` is the
address of *this* machine that the hosts reach. Every host has this Python, this folder and the run's folder under the
same paths, and lets you in by a key (`~/.ssh/config` is read: user, port, key). `tls` holds `ca.pem`, `cert.pem` and
`key.pem`, made as docs/cluster.md says.

What to expect: what schedulers and workers say until all are there, then what `millrace run` prints, and its exit code.
Ctrl-C writes a checkpoint, stops the workers and leaves 130; the same command with `--resume` goes on. `make test` runs
this script against an SSH server of its own. Needs the extra `launch`.
"""

import argparse
import signal
import subprocess
import sys
from pathlib import Path

import dask.config
from distributed import Security, SSHCluster


def main() -> int:
    """Start the cluster, run, stop the cluster."""
    parser = argparse.ArgumentParser(
        description="Millrace over SSH; other arguments go to `millrace run`.", allow_abbrev=False
    )
    parser.add_argument(
        "--hosts", required=True, help="addresses, with commas between; the first one holds the scheduler too"
    )
    parser.add_argument("--tls", required=True, type=Path, help="folder of ca.pem, cert.pem and key.pem")
    parser.add_argument(
        "--each", type=int, default=1, help="workers on each host; each holds a rank or a sampling task (1)"
    )
    parser.add_argument("--interface", help="network interface of the hosts for Dask and the ranks, such as ib0")
    here, run = parser.parse_known_args()
    hosts = here.hosts.split(",")
    ca, cert, key = (str(here.tls.resolve() / name) for name in ("ca.pem", "cert.pem", "key.pem"))
    # SSHCluster hands this process's Dask configuration to the hosts: that is how they learn of TLS.
    dask.config.set({"distributed.comm.require-encryption": True, "distributed.comm.tls.ca-file": ca})
    for role in ("scheduler", "worker", "client"):
        dask.config.set({f"distributed.comm.tls.{role}.cert": cert, f"distributed.comm.tls.{role}.key": key})
    network = {"interface": here.interface} if here.interface else {}
    cluster = SSHCluster(
        [hosts[0], *hosts],
        scheduler_options={"protocol": "tls", "dashboard_address": "127.0.0.1:0", **network},
        worker_options={
            "protocol": "tls",
            "n_workers": here.each,
            "nthreads": 1,
            "memory_limit": 0,
            "dashboard": False,
            **network,
        },
        security=Security(require_encryption=True),
    )
    with cluster:
        # An interrupt is for the run, which writes a checkpoint before it ends.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        tls = ["--set", f"cluster.tls_ca={ca}", "--set", f"cluster.tls_cert={cert}", "--set", f"cluster.tls_key={key}"]
        return subprocess.call(
            [sys.executable, "-m", "millrace.pipeline", "run", "--scheduler", cluster.scheduler_address, *tls, *run]
        )


if __name__ == "__main__":
    sys.exit(main())
