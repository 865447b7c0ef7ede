"""Ranks on machines reached by SSH: Dask's SSHCluster with TLS, for the duration of one run.

    python examples/over_ssh.py --hosts 10.0.0.1,10.0.0.2 --tls tls --host 10.0.0.1 \
        --dataset sbm:nodes=20000 --ranks 2 --out runs/ssh
    python examples/over_ssh.py --hosts 10.0.0.1,10.0.0.2 --tls tls --host 10.0.0.1 \
        --tables tables/ --work /data/graph --parts 2 --ranks 2

The first trains. The second does the whole chain of examples/chain.py: tables become a store, its nodes are renumbered
part by part, a run trains on that, and its model is evaluated and predicts, all by the same workers.

The first host gets the scheduler, and every host its workers. All other arguments go to `millrace run`; `--host` is the
address of *this* machine that the hosts reach. Every host has this Python, this folder, the run's folder, the tables
and `--work` under the same paths, and lets you in by a key (`~/.ssh/config` is read: user, port, key). `tls` holds
`ca.pem`, `cert.pem` and `key.pem`, made as docs/cluster.md says.

What to expect: what schedulers and workers say until all are there, then what `millrace` prints, and its exit code.
Ctrl-C in a run writes a checkpoint, stops the workers and leaves 130; the same command goes on, without `--tables` if
`--resume` is added. `make test` runs this script against an SSH server of its own. Needs the extra `launch`.
"""

import argparse
import signal
import subprocess
import sys
from pathlib import Path

import chain
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
    parser.add_argument("--host", default="127.0.0.1", help="an address of this machine that the hosts reach")
    chain.add_arguments(parser)
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
        # An interrupt is for the command that runs.
        signal.signal(signal.SIGINT, lambda *_: None)
        files = {"tls_ca": ca, "tls_cert": cert, "tls_key": key}
        settings = {"scheduler": cluster.scheduler_address, "host": here.host, **files}
        return subprocess.call(["sh", "-c", chain.script(here, settings, run)])


if __name__ == "__main__":
    sys.exit(main())
