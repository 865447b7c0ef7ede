"""`NeighborLoader`: PyG's loader of that name on Millrace's sampler. Only the import of a training script changes."""

import threading
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..stages.kernels import cpu
from ..stages.random import Purpose, permutation, stream
from ..stages.sample.base import BulkRequest
from ..storage.errors import InputError, RunError
from . import loader_arguments as arguments
from .export import SampledGraph, require_pyg, sampled_graph

WAIT_S = 1.0
"""A producer that waits for room looks up this often to see whether the interpreter is ending."""
THREAD = "millrace-loader"


class NeighborLoader:
    """Iterates over sampled minibatches of a homogeneous `torch_geometric.data.Data`, as PyG's `NeighborLoader` does.

    Each minibatch is a `Data` that owns its memory, with every node-level and edge-level attribute of `data` filtered (by PyG's
    own rules and code) and

    * ``edge_index`` int64 [2, e]: source and destination as positions in ``n_id``; by hop, then by destination;
    * ``n_id`` int64 [n]: global ids, the ``batch_size`` seeds first, then hop by hop (within a hop ascending, where PyG's are in
      order of discovery);
    * ``e_id`` int64 [e]: columns of ``data.edge_index``;
    * ``input_id`` int64 [B]: node ids where `input_nodes` is a mask or None, else positions in `input_nodes`;
    * ``num_sampled_nodes`` (L+1 numbers) and ``num_sampled_edges`` (L numbers): what `torch_geometric.utils.trim_to_layer` needs.

    Only newly found nodes are expanded in the next hop, as in PyG. A node without in-edges gets none, with `replace` too. A thread
    samples ahead, in bulks; features are gathered and `transform` runs in the caller's thread. The thread ends with the
    iteration, also when it is left early. Each ``iter()`` is a new epoch: another order and other samples. They are a function of
    the seed and the epoch alone: bulks, threads and `num_workers` do not show.

    Differences from PyG: seeds must be distinct (PyG keeps repeats), and what cannot be honoured is refused by name: HeteroData
    and feature stores, `time_attr` and its companions, `disjoint`, `subgraph_type` other than "directional", `neighbor_sampler`,
    `transform_sampler_output`, `sampler`, `batch_sampler`, `custom_cls`. Source of the semantics: PyG 2.8, `loader.NodeLoader`.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Sequence[int],
        input_nodes: Any = None,
        input_time: Any = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Any = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        *,
        batch_size: int | None = 1,
        shuffle: bool | None = False,
        drop_last: bool = False,
        num_workers: int = 0,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        input_id: Any = None,
        bulk_size: int = 8,
        prefetch_bulks: int = 1,
        **dataloader: Any,
    ) -> None:
        """
        Args:
            data: `Data` with ``edge_index`` [2, E], source in row 0 and destination in row 1. Changing its edges later does not show.
            num_neighbors: in-neighbours per node and hop, nearest the seeds first; -1 takes all.
            input_nodes: the seeds, as distinct node ids [N] or a boolean mask [V]; None means every node.
            input_time: refused, as are all arguments of temporal sampling.
            replace: draw with replacement.
            subgraph_type: "directional".
            disjoint: False.
            temporal_strategy: "uniform".
            time_attr: None.
            weight_attr: name of an edge attribute [E], finite and non-negative: edges are drawn in proportion to it.
            transform: called with each minibatch, in the caller's thread; what it returns is yielded.
            transform_sampler_output: None.
            is_sorted: accepted; the edges are indexed once, sorted or not, and ``e_id`` always counts columns of ``edge_index``.
            filter_per_worker: ignored, with a warning.
            neighbor_sampler: None.
            directed: True.
            batch_size: seeds per minibatch.
            shuffle: a new permutation of the seeds every epoch.
            drop_last: leave out a last minibatch that is smaller.
            num_workers: accepted; there are no worker processes, a thread samples ahead.
            generator: gives every epoch its seed; without it and without `seed`, torch's default generator does, so
                ``torch.manual_seed`` decides as it does for a DataLoader.
            seed: fixes the samples of epoch 0, 1, ... whatever else draws random numbers.
            input_id: [N], what to report as ``input_id``.
            bulk_size: minibatches that are sampled together.
            prefetch_bulks: bulks that may be sampled ahead; one takes about 24 bytes an edge.
            dataloader: other arguments of torch's DataLoader: what has nothing to act on here is ignored with one warning.

        Raises:
            InputError: something is not usable or not supported; the message names it.
            UnknownArgumentError: no such argument (also a TypeError).
            MissingExtraError: PyTorch Geometric is not installed.
        """
        require_pyg("NeighborLoader")
        arguments.check_data(data)
        unsupported = {
            "input_time": input_time is not None,
            "subgraph_type": getattr(subgraph_type, "value", subgraph_type) != "directional",
            "disjoint": disjoint,
            "temporal_strategy": temporal_strategy != "uniform",
            "time_attr": time_attr is not None,
            "transform_sampler_output": transform_sampler_output is not None,
            "neighbor_sampler": neighbor_sampler is not None,
            "directed": not directed,
        }
        for name in (n for n, asked in unsupported.items() if asked):
            raise InputError(f"{name} is not supported: leave it out, or use torch_geometric.loader.NeighborLoader for it")
        arguments.check_dataloader(dataloader, filter_per_worker, signature(NeighborLoader).parameters)
        self.batch_size, self.bulk_size = arguments.count("batch_size", batch_size), arguments.count("bulk_size", bulk_size)
        self.num_workers, self._room = arguments.count("num_workers", num_workers, 0), arguments.count("prefetch_bulks", prefetch_bulks)
        if seed is not None and generator is not None:
            raise InputError("both seed and generator are given; expected one of them")
        self.data, self.transform, self.drop_last = data, transform, bool(drop_last)
        self.epoch = 0
        """The epoch that the next ``iter()`` begins; set it to resume a run that has a `seed`."""
        self._shuffle, self._seed, self._generator = bool(shuffle), seed, generator
        self._sampler = arguments.sampler(num_neighbors, replace, weight_attr is not None)
        self._graph = arguments.graph(data, weight_attr)
        self._seeds, self._ids = arguments.input_nodes(input_nodes, self._graph.num_nodes)
        if input_id is not None:
            self._ids = torch.as_tensor(input_id).cpu()
            if self._ids.shape != (len(self._seeds),):
                raise InputError(f"input_id has shape {list(self._ids.shape)}; expected [{len(self._seeds)}], one for each input node")
        self.dataset = range(len(self._seeds))
        """As long as there are seeds, for progress bars."""
        self._workspaces: list[cpu.Workspace] = []

    def __len__(self) -> int:
        """Minibatches in an epoch."""
        n = len(self._seeds)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch."""
        seed, epoch = self._seed, self.epoch
        if seed is None:
            seed = int(torch.empty((), dtype=torch.int64).random_(generator=self._generator).item())
        self.epoch += 1
        return self._minibatches(seed, epoch)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def _minibatches(self, seed: int, epoch: int) -> Iterator[Any]:
        order = np.arange(len(self._seeds))
        if self._shuffle:
            order = permutation(stream(seed, Purpose.SHUFFLE, epoch), order)
        cuts = [order[j * self.batch_size : (j + 1) * self.batch_size] for j in range(len(self))]
        try:
            workspace = self._workspaces.pop()
        except IndexError:
            workspace = cpu.Workspace()

        def sample(number: int) -> list[SampledGraph]:
            first = number * self.bulk_size
            seeds = tuple(self._seeds[cut] for cut in cuts[first : first + self.bulk_size])
            bulk = self._sampler.sample(self._graph, BulkRequest(seed, epoch, number, first, seeds), cpu, workspace)
            return [sampled_graph(m, self._graph.edge_id) for m in bulk.minibatches]

        ahead = _Ahead(sample, -(-len(cuts) // self.bulk_size), self._room, lambda: self._workspaces.append(workspace))
        try:
            for first in range(0, len(cuts), self.bulk_size):
                bulk = ahead.get()
                for i in range(len(bulk)):
                    graph, bulk[i] = bulk[i], None
                    yield self._finish(graph, self._ids[torch.from_numpy(cuts[first + i])])
        finally:
            ahead.stop()

    def _finish(self, graph: SampledGraph, input_id: Tensor) -> Any:
        """Join a sampled graph with the attributes of `data`."""
        from torch_geometric.loader.utils import filter_data

        out = filter_data(self.data, graph.node, graph.row, graph.col, graph.edge)
        # The user's own n_id and e_id were filtered with the rest and stay, as PyG has it.
        if "n_id" not in out:
            out.n_id = graph.node
        if "e_id" not in out:
            out.e_id = graph.edge
        out.batch = None
        out.num_sampled_nodes, out.num_sampled_edges = graph.num_sampled_nodes, graph.num_sampled_edges
        out.input_id, out.batch_size = input_id, len(input_id)
        return out if self.transform is None else self.transform(out)


class _Ahead:
    """A thread that makes results in order, at most `room` of them ahead of who takes them. An error reaches the taker."""

    def __init__(self, make: Callable[[int], list[Any]], count: int, room: int, done: Callable[[], None]) -> None:
        self._make, self._count, self._done = make, count, done
        self._made: SimpleQueue[list[Any] | BaseException] = SimpleQueue()
        self._room = threading.Semaphore(room)
        self._stopped = threading.Event()
        # No daemon: the interpreter must not tear down arrays that a kernel is still writing.
        threading.Thread(target=self._run, name=THREAD).start()

    def _run(self) -> None:
        try:
            for number in range(self._count):
                while not self._room.acquire(timeout=WAIT_S):
                    if not threading.main_thread().is_alive():
                        raise RunError("the interpreter is ending while minibatches are being sampled")
                if self._stopped.is_set():
                    return
                self._made.put(self._make(number))
        except BaseException as e:
            self._made.put(e)
        finally:
            self._done()

    def get(self) -> list[Any]:
        """The next result."""
        made = self._made.get()
        if isinstance(made, BaseException):
            raise made
        self._room.release()
        return made

    def stop(self) -> None:
        """Let the thread end after what it is making; does not wait."""
        self._stopped.set()
        self._room.release()
