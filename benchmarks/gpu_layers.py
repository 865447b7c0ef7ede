"""Rates of the device's memory and single kernels: gathering features, aggregation and attention of a block.

Aggregation and attention are those of the first minibatch's first two layers, whole functions under autograd, ours and
PyG's on the same edges: PyG's mean is `torch_geometric.utils.scatter` over gathered rows, its attention that of
`GATConv` without the product. Results and gradients are compared first. Floors count each distinct row once, read or
written, and each index once. Training leaves out the first layer's backward pass.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
import triton
from gpu_lab import Lab
from gpu_sampling import draw
from peers.train_task import FANOUT, FEATURES, HEADS, HIDDEN
from torch import Tensor

from millrace.stages.kernels.aggregation.attention_args import AttentionEdges, AttentionRule
from millrace.stages.kernels.aggregation.cuda import backend as aggregate_cuda
from millrace.stages.kernels.aggregation.lists import InLists, WeightedLists
from millrace.stages.kernels.minibatch_cuda.rows import gather_rows
from millrace.stages.kernels.sampling.cuda.tables import Workspace
from millrace.stages.neighbourhood.gradients import Attend, Spmm

PRODUCTS = {"layer 1": (93_629, 2 * FEATURES), "layer 2": (11_089, 2 * HIDDEN)}
"""Rows and width of what is multiplied by weights in a minibatch of 1024 seeds, see `roofline.py`."""
GATHERED = 16
"""Minibatches whose nodes are gathered."""


def machine(lab: Lab) -> None:
    """Part "machine": the rates that everything else is compared with."""
    found: dict[str, Any] = lab.details.setdefault(
        "machine", {"torch": torch.__version__, "triton": triton.__version__}
    )
    if lab.on_gpu:
        at = torch.cuda.get_device_properties(lab.device)
        found |= {"device": at.name, "bytes": at.total_memory, "multiprocessors": at.multi_processor_count}
    lab.say(f"  {found}")
    with lab.attempt("machine: copy"):
        lab.add("copy within the device, read + written", lab.copy_bytes_per_s / 1e9, "GB/s")
    with lab.attempt("machine: random rows"):
        found["random_rows_gb_per_s"] = _random_rows(lab)
        lab.add(
            "index_select of random rows, read + written",
            found["random_rows_gb_per_s"],
            "GB/s",
            floor=lab.copy_bytes_per_s / 1e9,
        )
    if lab.on_gpu:
        with lab.attempt("machine: pinned memory"):
            found["pinned_gb_per_s"] = _pinned(lab)
            lab.add("copy from pinned memory of the host", found["pinned_gb_per_s"], "GB/s")
    for dtype in (torch.float32, torch.bfloat16):
        for name in PRODUCTS:
            with lab.attempt(f"machine: {name} {dtype}"):
                rate = product_rate(lab, name, dtype)
                found[f"{name} {dtype}"] = rate
                lab.add(f"products of {name}, {str(dtype)[6:]}", rate / 1e12, "TFLOP/s")
    lab.clear()


def _random_rows(lab: Lab) -> float:
    """10^9 bytes a second, read and written."""
    ids = torch.randint(
        0, lab.num_nodes, (4_000_000 if lab.on_gpu else 4000,), device=lab.device, generator=lab.generator(3)
    )
    out = lab.features.new_empty(len(ids), FEATURES)
    return 2 * out.nbytes / lab.ms(lambda: torch.index_select(lab.features, 0, ids, out=out)) / 1e6


def _pinned(lab: Lab) -> float:
    """10^9 bytes a second."""
    host = torch.empty(1 << 30, dtype=torch.uint8).pin_memory()
    there = torch.empty_like(host, device=lab.device)
    return host.nbytes / lab.ms(lambda: there.copy_(host, non_blocking=True), most=10) / 1e6


def product_rate(lab: Lab, name: str, dtype: torch.dtype) -> float:
    """Operations a second of a layer's product forward and of its weights' gradient."""
    rows, width = PRODUCTS[name]
    rows = max(1, rows * lab.batch // 1024)
    x = torch.randn(rows, width, device=lab.device).to(dtype)
    w, g = (
        torch.randn(width, HIDDEN, device=lab.device).to(dtype),
        torch.randn(rows, HIDDEN, device=lab.device).to(dtype),
    )
    ms = lab.ms(lambda: x @ w) + lab.ms(lambda: x.t() @ g)
    return 2 * 2 * rows * width * HIDDEN / ms * 1000


def gather(lab: Lab) -> None:
    """Part "gather": the features of a bulk's minibatches, one minibatch after the other."""
    count = min(GATHERED, lab.minibatches)
    made = draw(lab, "neighbor", lab.bulks(count, lab.batch)[0], Workspace())
    nodes = list(made.rows.nodes.split(made.node_ends[-1].tolist()))
    total = 4 * FEATURES * sum(map(len, nodes))
    out = lab.features.new_empty(max(map(len, nodes)), FEATURES)
    copy, random_rows = lab.copy_bytes_per_s / 1e9, lab.details.get("machine", {}).get("random_rows_gb_per_s")
    lab.details["gather"] = {"minibatches": count, "rows": sum(map(len, nodes)), "random_rows_gb_per_s": random_rows}

    def each(one: Callable[[Tensor, Tensor], Any]) -> Callable[[], None]:
        def run() -> None:
            for ids in nodes:
                one(ids, out[: len(ids)])

        return run

    def rate(run: Callable[[], None]) -> float:
        """10^9 bytes a second of rows, once what the last minibatch's are is known to be right."""
        out.fill_(float("nan"))
        run()
        if not torch.equal(out[: len(nodes[-1])], lab.features[nodes[-1].long()]):
            raise AssertionError("the rows that were gathered are not those that were asked for")
        return total / lab.ms(run) / 1e6

    ways = {
        "index_select": each(lambda ids, rows: torch.index_select(lab.features, 0, ids, out=rows)),
        "our kernel": each(lambda ids, rows: gather_rows(lab.features, ids, out=rows)),
    }
    for name, run in ways.items():
        with lab.attempt(f"gather: {name}"):
            lab.add(f"gather from the device, read + written: {name}", 2 * rate(run), "GB/s", floor=copy)
    with lab.attempt("gather: host"):
        host = lab.features.cpu()
        slow = lab.details["gather"]["host_gb_per_s"] = _through_host(lab, host, nodes[:4])
        pinned = host.pin_memory() if lab.on_gpu else host
        link = lab.details.get("machine", {}).get("pinned_gb_per_s")
        found = rate(each(lambda ids, rows: gather_rows(pinned, ids, out=rows)))
        name = "gather from pinned memory of the host: our kernel"
        lab.add(name, found, "GB/s", floor=link, peer=slow, against="index_select on the host and a copy")
    lab.clear()


def _through_host(lab: Lab, host: Tensor, nodes: list[Tensor]) -> float:
    """10^9 bytes a second of rows that the host gathers and sends."""
    ids = [n.cpu().long() for n in nodes]

    def run() -> None:
        for some in ids:
            host[some].to(lab.device)

    run()
    return 4 * FEATURES * sum(map(len, ids)) / statistics.median(lab.repeated(run, most=3)) / 1e9


Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer of the first minibatch: its lists for our kernels, its edges for PyG's."""

    lists: InLists
    edges: Tensor
    """int64 [2, e] on the device: source, destination."""
    looped: Tensor
    """int64 [2, e + n], with a loop at each destination."""
    row_scale: Tensor
    """float32 [n], one over a row's edges."""

    @classmethod
    def of(cls, lab: Lab, indptr: np.ndarray, indices: np.ndarray, num_src: int) -> "Layer":
        """Bytes of a block's arrays on the host."""
        lists = InLists.from_arrays(indptr, indices, num_src)
        edges = torch.stack([torch.from_numpy(lists.indices.astype(np.int64)), torch.from_numpy(lists.rows)]).to(
            lab.device
        )
        own = torch.arange(lists.num_dst, device=lab.device).expand(2, -1)
        scale = (1 / torch.from_numpy(lists.kept).clamp(min=1)).float().to(lab.device)
        return cls(lists, edges, torch.cat([edges, own], 1), scale)


def first_layers(lab: Lab) -> list[Layer]:
    """Blocks of the epoch's first minibatch, nearest the input first."""
    made = draw(lab, "neighbor", lab.bulks(1, lab.batch)[0], Workspace())
    indptr, indices = made.lists[0].indptr.cpu().numpy(), made.lists[0].indices.cpu().numpy()
    ends = [int(e[0]) for e in made.node_ends]
    return [
        Layer.of(lab, indptr[: ends[h] + 1], indices[: indptr[ends[h]]], ends[h + 1])
        for h in reversed(range(len(FANOUT)))
    ]


def relative(a: Tensor, b: Tensor) -> float:
    """``|a - b| / |b|``."""
    return float((a - b).norm() / b.norm())


def layers(lab: Lab) -> None:
    """Part "layers"."""
    found: dict[str, Any] = lab.details.setdefault("layers", {})
    blocks = first_layers(lab)
    for i, (layer, width) in enumerate(zip(blocks[:2], (FEATURES, HIDDEN))):
        lists = layer.lists
        found[f"layer {i + 1}"] = {
            "num_src": lists.num_src,
            "num_dst": lists.num_dst,
            "edges": lists.num_edges,
            "width": width,
        }
        lab.say(f"  layer {i + 1}: {found[f'layer {i + 1}']}")
        with lab.attempt(f"layers: mean of layer {i + 1}"):
            x = torch.randn(lists.num_src, width, device=lab.device, requires_grad=True)
            _compare(
                lab, f"mean of layer {i + 1}", layer, partial(_mean, layer), partial(_pyg_mean, layer), x, 2 * width
            )
        with lab.attempt(f"layers: attention of layer {i + 1}"):
            x = torch.randn(lists.num_src, HIDDEN, device=lab.device, requires_grad=True)
            a_src, a_dst = torch.randn(2, HEADS, HIDDEN // HEADS, device=lab.device) / 8
            ours, theirs = (partial(f, layer, a_src, a_dst) for f in (_attention, _pyg_attention))
            _compare(lab, f"attention of layer {i + 1}", layer, ours, theirs, x, HIDDEN)
        with lab.attempt(f"layers: lists by source of layer {i + 1}"):
            there = lists.to_device(lab.device)
            least = 12 * lists.num_edges + 16 * lists.num_src
            # A copy knows nothing of what was made for the original.
            ms = lab.ms(lambda there=there: replace(there).transposed)
            lab.add(f"lists by source of layer {i + 1}", ms, "ms", floor=1000 * least / lab.copy_bytes_per_s)
    lab.clear()


def _compare(lab: Lab, name: str, layer: Layer, ours: Function, theirs: Function, x: Tensor, width: int) -> None:
    """Ours beside PyG's, forward alone and both ways; what differs from PyG's is a failure, but is measured."""
    with lab.attempt(f"layers: {name}, compared"):
        error = max(relative(a, b) for a, b in zip(_results(ours, x), _results(theirs, x)))
        lab.details["layers"][f"{name}: error"] = error
        if not error < 1e-4:
            raise AssertionError(f"results or gradients of {name} differ from PyG's by {error:.2e} of their norm")
    beside = layer.lists.num_dst * width + layer.lists.num_edges
    rows = layer.lists.num_src, layer.lists.num_edges
    least, unshared = (4000 * (n * x.shape[1] + beside) / lab.copy_bytes_per_s for n in rows)
    lab.details["layers"][f"{name}: ms if every edge reads its row"] = unshared
    for way, passes in (("forward", 1), ("forward and backward", 2)):
        peer = None
        with lab.attempt(f"layers: {name}, {way}, PyG"):
            peer = _ms(lab, theirs, x, passes)
        with lab.attempt(f"layers: {name}, {way}"):
            lab.add(
                f"{name}, {way}",
                _ms(lab, ours, x, passes),
                "ms",
                floor=passes * least,
                peer=peer,
                against="PyG" if peer else "",
            )


def _results(call: Function, x: Tensor) -> tuple[Tensor, Tensor]:
    """The result, and the gradient of x under a random one of the result."""
    x.grad = None
    out = call(x)
    out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out))
    assert x.grad is not None
    return out.detach(), x.grad


def _ms(lab: Lab, call: Function, x: Tensor, passes: int) -> float:
    if passes == 1:
        with torch.no_grad():
            return lab.ms(lambda: call(x))
    lab.warm_up(lambda: call(x))
    grads: list[Tensor] = []

    def both() -> None:
        x.grad = None
        out = call(x)
        grads[:] = grads or [torch.randn_like(out)]
        out.backward(grads[0])

    return lab.ms(both)


def _mean(layer: Layer, x: Tensor) -> Tensor:
    found: Any = Spmm.apply(x, None, aggregate_cuda, WeightedLists(layer.lists, None, layer.row_scale, beside=True))
    return found


def _pyg_mean(layer: Layer, x: Tensor) -> Tensor:
    from torch_geometric.utils import scatter

    n = layer.lists.num_dst
    return torch.cat([scatter(x.index_select(0, layer.edges[0]), layer.edges[1], 0, n, "mean"), x[:n]], 1)


def _attention(layer: Layer, a_src: Tensor, a_dst: Tensor, x: Tensor) -> Tensor:
    over = aggregate_cuda, AttentionEdges(layer.lists, AttentionRule(0.2, 0.0, 0))
    found: Any = Attend.apply(x.view(-1, *a_src.shape), a_src, a_dst, over, True)
    return found.flatten(1)


@lru_cache(maxsize=1)
def _pyg_conv(device: torch.device) -> Any:
    from torch_geometric.nn import GATConv

    conv: Any = GATConv(HIDDEN, HIDDEN // HEADS, HEADS, add_self_loops=False, bias=False).to(device)
    conv.lin = torch.nn.Identity()
    return conv.requires_grad_(False)


def _pyg_attention(layer: Layer, a_src: Tensor, a_dst: Tensor, x: Tensor) -> Tensor:
    conv, n = _pyg_conv(x.device), layer.lists.num_dst
    conv.att_src.copy_(a_src[None])
    conv.att_dst.copy_(a_dst[None])
    return conv((x, x[:n]), layer.looped, size=(layer.lists.num_src, n))
