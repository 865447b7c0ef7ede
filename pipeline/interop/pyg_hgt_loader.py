"""`HGTLoader`, PyG's loader of that name on Millrace's sampler. Only the import of a script changes."""

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Any

import numpy as np

from ...stages.assignment import BulkRequest
from ...stages.sample.single.hgt import sample_by_budget
from ...stages.sample.single.trees import EdgeList, Timed
from ...storage.errors import InputError, one_of
from . import pyg_arguments as arguments
from .export import sampler_output
from .pyg_loader import NeighborLoader
from .pyg_many_types import ManyTypes
from .pyg_sampler import PyGSampler


class HGTLoader(NeighborLoader):
    """Iterates over minibatches of a `torch_geometric.data.HeteroData` with about as many nodes of each type, like
    PyG's `HGTLoader`.

    In each round the same number of nodes of each type joins the seeds, those with many edges to the nodes so far
    before others (`stages.sample.single.hgt`). A minibatch has all edges among its nodes, or 50 of a node's
    in-edges of a type, where it has more. It is a `HeteroData` as that of `NeighborLoader`, without
    ``num_sampled_nodes`` and ``num_sampled_edges``; nodes are in the order of the rounds. The semantics are those of
    PyG 2.8 with torch-sparse, which is not needed.
    """

    of_pyg = "hgt_loader:HGTLoader"

    def __init__(
        self,
        data: Any,
        num_samples: Sequence[int] | dict[str, Sequence[int]],
        input_nodes: Any,
        is_sorted: bool = False,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Any = None,
        filter_per_worker: bool | None = None,
        **dataloader: Any,
    ) -> None:
        """
        Args:
            data: see `NeighborLoader`, as for all arguments that are not here.
            num_samples: nodes of each type in each round: one list for all types, or one for each.
            input_nodes: ``(node type, ids, mask or None)``, or a node type.
            is_sorted: accepted.
            transform: called with each minibatch, in the caller's thread.
            transform_sampler_output: called with its `torch_geometric.sampler.HeteroSamplerOutput`.
            filter_per_worker: see `NeighborLoader`.
            dataloader: other arguments of `NeighborLoader` that are named only (`batch_size`, `shuffle`, `seed`, ...),
                and of torch's DataLoader.

        Raises:
            InputError: an argument is unusable or not supported; the message names it.
            UnknownArgumentError: there is no such argument (also a TypeError).
            MissingExtraError: PyTorch Geometric is not installed.
        """
        given = arguments.given(locals())
        for name, parameter in signature(NeighborLoader).parameters.items():
            if name in dataloader and parameter.kind is Parameter.POSITIONAL_OR_KEYWORD:
                raise arguments.UnknownArgumentError(f"HGTLoader has no argument '{name}', which NeighborLoader has")
        del given["is_sorted"]
        self._begin_nodes(BudgetSampler(data, given.pop("num_samples")), given)


class BudgetSampler(PyGSampler):
    """The sampler of `HGTLoader`, by numbers of nodes of each type."""

    def _check(self) -> None:
        if not isinstance(self.source, ManyTypes):
            raise InputError("data has no types; HGTLoader expects a torch_geometric.data.HeteroData")
        names, asked = self.source.types.node_types, self.num_neighbors
        given = asked if isinstance(asked, dict) else dict.fromkeys(names, asked)
        for name in given:
            if name not in names:
                said = f"num_samples is for the node type {name!r}, which is not there"
                raise InputError(f"{said}; {one_of(str(name), names)}")
        if missing := [name for name in names if name not in given]:
            raise InputError(
                f"num_samples has nothing for the node type '{missing[0]}'; expected numbers for each, [0, ...] to "
                "leave one out"
            )
        what = "numbers of nodes, one for each round, such as [512, 512]"
        lists = [arguments.whole_numbers(given[name], "num_samples", what) for name in names]
        if len({len(numbers) for numbers in lists}) > 1 or not lists[0]:
            raise InputError(
                f"num_samples has {[len(n) for n in lists]} rounds; expected one number of them, 1 or more"
            )
        if min(min(numbers) for numbers in lists) < 0:
            raise InputError(f"num_samples is {asked!r}; expected {what}, 0 or more")
        self._num_samples = np.array(lists, np.int64).T

    def _sampled(self, request: BulkRequest, timed: Timed | None, workspace: object) -> list[object]:
        relations = self.source.relations
        assert relations is not None
        found = []
        for nodes, key in zip(request.seeds, request.keys(2 * len(self._num_samples) + 1)):
            s = sample_by_budget(relations, nodes, self._num_samples, key)
            found.append(sampler_output(EdgeList(s.nodes, s.row, s.col, relations.graph.input_edges[s.positions])))
        return found
