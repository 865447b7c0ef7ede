"""Simulated clients: the nodes of each, the rank that simulates it, and the bytes that it would send and receive."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...stages.partition.base import make_book
from ...stages.partition.clustered import Clustered
from ...stages.partition.given import Given
from ...stages.placement.clients import client_traffic, packed, read_traffic, write_clients
from ...storage.array_kinds import IdArray
from ...storage.errors import InputError
from .prepare import Prepared
from .sampling import Sampling


def check_cut(sampling: Sampling) -> None:
    """Refuse owners that do not fit the graph, before anything is written.

    Raises:
        InputError: there are other nodes, or owners that are no ranks.
    """
    cut, job = sampling.system.partition.partitioner, sampling.job
    if isinstance(cut, Given):
        parts = sampling.system.parts_before(job.ranks)
        cut.assign(sampling.dataset.graph, parts, job.seed_of("minibatches"))


def check_owners(prepared: Prepared) -> None:
    """Refuse clients or owners that do not fit the graph, before anything is written.

    Raises:
        InputError: more clients than nodes, owners that are not ranks or clients, or clients that could not be
            reproduced on resume.
    """
    graph, clients, cut = prepared.dataset.graph, prepared.system.clients, prepared.system.partition.partitioner
    if isinstance(clients, int) and clients > graph.num_nodes:
        raise InputError(
            f'retexo.clients is {clients}, but there are {graph.num_nodes} nodes; use "nodes" for a client for each'
        )
    if isinstance(clients, int) and isinstance(cut, Clustered):
        raise InputError(
            f"retexo.clients is {clients}, whose nodes are computed again when the run is resumed, but "
            f"'{cut.algorithm}' may cut differently each time; use partition.method = \"metis-work\""
        )
    if isinstance(cut, Given):
        if clients == "nodes":
            raise InputError(
                'owners are given, but retexo.clients is "nodes", which makes each node its own client; leave one of '
                "them out"
            )
        cut.assign(graph, prepared.job.ranks if clients == "ranks" else clients, prepared.job.seed_of("minibatches"))


def with_clients(prepared: Prepared, folder: Path) -> Prepared:
    """Assign nodes to clients and clients to ranks, and record both in the run's folder."""
    job, graph, partition = prepared.job, prepared.dataset.graph, prepared.system.partition
    clients, nodes = prepared.system.clients, np.arange(graph.num_nodes)
    if isinstance(clients, int):
        seed, train = job.seed_of("minibatches"), prepared.dataset.split.train
        client = make_book(partition.partitioner, graph, clients, seed, train).part(nodes)
    else:
        client, clients = nodes.astype(np.int32), graph.num_nodes
    write_clients(folder, client, client_traffic(graph, client, clients), prepared.fingerprint)
    return replace(prepared, system=prepared.system.cut_by(Given(packed(client, clients, job.ranks).part(nodes))))


def client_record(prepared: Prepared, folder: Path, phases: list[dict[str, Any]]) -> dict[str, Any]:
    """Bytes of rows and of parameters that the clients of a finished run would have sent and received.

    In every round each client with train nodes (or with any node of the training graph, if a phase learns from the one
    before) sends an update of all parameters of the phase and receives the result. At the end of a phase each client
    receives the best parameters.
    """
    client, traffic = read_traffic(folder)
    dtype = np.dtype(prepared.job.dtype).itemsize
    row_bytes = sum(p["row_bytes"] * (p["graphs"] if p["phase"] else 1) for p in phases)
    split = prepared.dataset.split
    trains, is_taught = np.zeros((2, len(traffic.rows_in)), bool)
    trains[client[split.train]] = True
    absent = np.concatenate([split.val, split.test]) if prepared.system.options["inductive"] else []
    is_taught[np.delete(client, absent)] = True
    best = sum(p["parameters"] for p in phases) * dtype
    rounds = np.zeros(len(trains), np.int64)
    for p in phases:
        rounds[is_taught if p["taught_rows"] else trains] += p["parameters"] * p["epochs"] * dtype
    return {
        "count": len(traffic.rows_in),
        "with_train_nodes": int(trains.sum()),
        "rows_bytes_in": _spread(traffic.rows_in * row_bytes),
        "rows_bytes_out": _spread(traffic.rows_out * row_bytes),
        "parameter_bytes": _spread(best + 2 * rounds),
    }


def _spread(values: IdArray) -> dict[str, float]:
    return {"total": int(values.sum()), "median": float(np.median(values)), "max": int(values.max())}
