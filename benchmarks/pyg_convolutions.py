"""All convolutions and nets of `torch_geometric.nn` beside PyG on five graphs: equal, or refused by name.

    python benchmarks/pyg_convolutions.py                  # all, about a minute; exit code 1 if any is wrong
    python benchmarks/pyg_convolutions.py --sample 12 --seed 3

Each is made with the arguments below, where it has options both as it is and with one of them changed. PyG computes all
nodes of a graph; `millrace.infer` computes all, some and one. *equal*: all rows are PyG's; *refused*: an InputError
names the class or a layer in it; *not made*: it wants other arguments than a layer over x and edges has (a loss, a
model of molecules, dictionaries), or a package that is not installed; anything else is *wrong*.
"""

import argparse
import copy
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import millrace as mr

V, F = 14, 6
DEG = torch.tensor([2, 4, 5, 2, 1])


def mlp(a: int = F, b: int = F) -> nn.Module:
    """A product with an activation."""
    return nn.Sequential(nn.Linear(a, b), nn.ReLU())


PNA = {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"], "deg": DEG}
NET = {"in_channels": F, "hidden_channels": 4, "num_layers": 2, "out_channels": 3}
ARGUMENTS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "GCNConv": [((F, 3), {}), ((F, 3), {"add_self_loops": False}), ((F, 3), {"normalize": False}),
                ((F, 3), {"improved": True}), ((F, 3), {"cached": True}), ((F, 3), {"bias": False})],
    "SimpleConv": [((), {"aggr": "sum"}), ((), {"aggr": "mean", "combine_root": "sum"})],
    "ChebConv": [((F, 3, 1), {}), ((F, 3, 2), {})],
    "SAGEConv": [((F, 3), {}), ((F, 3), {"aggr": "max", "normalize": True}), ((F, 3), {"project": True}),
                 ((F, 3), {"aggr": "lstm"})],
    "GraphConv": [((F, 3), {}), ((F, 3), {"aggr": "mean"}), ((F, 3), {"aggr": "max"})],
    "GravNetConv": [((F, 3, 2, 2, 2), {})],
    "GatedGraphConv": [((F, 1), {}), ((F, 2), {})],
    "GATConv": [((F, 3), {"heads": 2}), ((F, 3), {"add_self_loops": False}), ((F, 3), {"residual": True})],
    "GATv2Conv": [((F, 3), {"heads": 2}), ((F, 3), {"share_weights": True})],
    "FusedGATConv": [((F, 3), {"add_self_loops": False})],
    "TransformerConv": [((F, 3), {"heads": 2, "beta": True})],
    "AGNNConv": [((), {})],
    "TAGConv": [((F, 3), {"K": 1}), ((F, 3), {"K": 1, "normalize": False})],
    "GINConv": [((mlp(),), {}), ((mlp(),), {"train_eps": True})],
    "GINEConv": [((mlp(),), {"edge_dim": 2})],
    "ARMAConv": [((F, 3), {})],
    "SGConv": [((F, 3), {"K": 1}), ((F, 3), {"K": 2, "cached": True})],
    "SSGConv": [((F, 3), {"alpha": 0.1, "K": 1})],
    "APPNP": [((1, 0.1), {}), ((2, 0.1), {"add_self_loops": False})],
    "MFConv": [((F, 3), {})],
    "ResGatedGraphConv": [((F, 3), {})],
    "RGCNConv": [((F, 3, 2), {})], "FastRGCNConv": [((F, 3, 2), {})], "RGATConv": [((F, 3, 2), {})],
    "SignedConv": [((F, 3), {"first_aggr": True})],
    "DNAConv": [((F,), {})],
    "PointNetConv": [((), {})],
    "GMMConv": [((F, 3, 2, 2), {})],
    "SplineConv": [((F, 3, 2, 2), {})],
    "NNConv": [((F, 3, nn.Linear(2, 3 * F)), {})],
    "CGConv": [((F,), {"dim": 2}), ((F,), {})],
    "EdgeConv": [((mlp(2 * F, 3),), {})],
    "DynamicEdgeConv": [((mlp(2 * F, 3), 2), {})],
    "XConv": [((F, 3, 2, 2), {})],
    "PPFConv": [((), {})],
    "FeaStConv": [((F, 3), {}), ((F, 3), {"add_self_loops": False})],
    "PointTransformerConv": [((F, 3), {})],
    "HypergraphConv": [((F, 3), {})],
    "LEConv": [((F, 3), {})],
    "PNAConv": [((F, 3), PNA)],
    "ClusterGCNConv": [((F, 3), {}), ((F, 3), {"diag_lambda": 0.5, "add_self_loops": False})],
    "GENConv": [((F, 3), {}), ((F, 3), {"aggr": "add"})],
    "GCN2Conv": [((F, 0.1), {})],
    "PANConv": [((F, 3, 1), {})],
    "WLConv": [((), {})], "WLConvContinuous": [((), {})],
    "FiLMConv": [((F, 3), {}), ((F, 3), {"num_relations": 2})],
    "SuperGATConv": [((F, 3), {})],
    "FAConv": [((F,), {})],
    "EGConv": [((F, 4), {"num_heads": 2}), ((F, 4), {"num_heads": 2, "aggregators": ["mean"]})],
    "PDNConv": [((F, 3, 2, 4), {})],
    "GeneralConv": [((F, 3), {}), ((F, 3), {"attention": True, "heads": 2})],
    "HEATConv": [((F, 3, 2, 2, 2, 2, 2), {})],
    "LGConv": [((), {}), ((), {"normalize": False})],
    "PointGNNConv": [((mlp(), mlp(), mlp()), {})],
    "AntiSymmetricConv": [((F,), {})],
    "MixHopConv": [((F, 3), {"powers": [0, 1]})],
    "MeshCNNConv": [((F, 3), {})],
    "GCN": [((), NET), ((), NET | {"norm": "batch_norm", "jk": "cat"})],
    "GraphSAGE": [((), NET), ((), NET | {"norm": "layer_norm"})],
    "GIN": [((), NET)],
    "GAT": [((), NET), ((), NET | {"v2": True})],
    "PNA": [((), NET | PNA)],
    "EdgeCNN": [((), NET)],
    "MLP": [((), {"in_channels": F, "hidden_channels": 4, "num_layers": 2, "out_channels": 3})],
    "GraphUNet": [((F, 4, 3, 1), {})],
    "AttentiveFP": [((F, 4, 3, 2, 1, 1), {})],
    "LightGCN": [((V, 4, 1), {})],
    "PMLP": [((F, 4, 3, 2), {})],
    "LINKX": [((V, F, 4, 3, 1), {})],
    "RECT_L": [((F, 4), {})],
    "SGFormer": [((F, 4, 3), {})],
    "Polynormer": [((F, 4, 3), {})],
}  # fmt: skip
"""Arguments of each class, as it is and with options; those that take none are made without. Layers inside others:"""


def inner(nn_of_pyg: Any) -> dict[str, list[Callable[[], nn.Module]]]:
    """Classes that are made of other layers."""
    p = nn_of_pyg
    return {
        "GPSConv": [lambda: p.GPSConv(F, p.SAGEConv(F, F), heads=1), lambda: p.GPSConv(F, None, heads=2)],
        "DirGNNConv": [lambda: p.DirGNNConv(p.SAGEConv(F, 3)), lambda: p.DirGNNConv(p.GCNConv(F, 3))],
        "AntiSymmetricConv": [lambda: p.AntiSymmetricConv(F), lambda: p.AntiSymmetricConv(F, p.SAGEConv(F, F))],
        "DeepGCNLayer": [lambda: p.DeepGCNLayer(p.GENConv(F, F), nn.LayerNorm(F), nn.ReLU(), ckpt_grad=False)],
        "GroupAddRev": [lambda: p.GroupAddRev(p.SAGEConv(F // 2, F // 2), num_groups=2)],
        "GAE": [lambda: p.GAE(p.GCNConv(F, 3))],
        "VGAE": [lambda: p.VGAE(p.GCNConv(F, 3))],
        "MetaLayer": [lambda: p.MetaLayer()],
    }


def graphs() -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
    """Name, edges [2, E] and weights of each graph: one has self loops, one parallel edges, one weights, all of these
    one isolated node and nodes without in-edges; the last one is plain."""
    rng = np.random.default_rng(0)
    plain = np.array([(u, v) for u in range(12) for v in range(9) if u != v and rng.random() < 0.3]).T
    loops = np.concatenate([plain, [[0, 3, 3, 10], [0, 3, 3, 10]]], axis=1)
    parallel = np.concatenate([plain, plain[:, :9], plain[:, :3]], axis=1)
    weight = rng.choice([0.0, 0.25, 1.0, 2.0], loops.shape[1]).astype(np.float32)
    ring = np.array([[*range(V), *range(V)], [*np.roll(range(V), 1), *np.roll(range(V), 5)]])
    yield from (("loops", loops, None), ("parallel", parallel, None), ("weighted", loops, weight))
    yield from (("isolated", plain[:, :20], None), ("plain", ring, None))


def makers() -> dict[str, list[Callable[[], nn.Module]]]:
    """How each class is made: all convolutions and models that PyG exports."""
    import torch_geometric.nn as p

    found: dict[str, list[Callable[[], nn.Module]]] = {}
    names = [n for n in (*p.conv.__all__, *p.models.__all__) if isinstance(getattr(p, n, None), type)]
    given = inner(p)
    for name in dict.fromkeys(names):
        if name in given:
            found[name] = given[name]
        else:
            calls = ARGUMENTS.get(name, [((), {})])
            found[name] = [lambda n=name, a=a, k=k: getattr(p, n)(*a, **k) for a, k in copy.deepcopy(calls)]
    return found


def verdict(make: Callable[[], nn.Module], name: str, edges: np.ndarray, weight: np.ndarray | None) -> str:
    """One of: equal, refused, not made; or the words of what is wrong."""
    torch.manual_seed(0)
    x, attr = torch.randn(V, F), torch.rand(edges.shape[1], 2)
    graph = mr.from_edges(edges[0], edges[1], V, edge_weight=weight, edge_features=attr.numpy())
    try:
        module = make().eval()
    except Exception:
        return "not made"
    try:
        model = mr.PyGModel(copy.deepcopy(module))
        model.fit(F, 0, 2)
        seen = [mr.infer(model, graph, x, nodes=nodes) for nodes in (None, [3, 0, 13], [3])]
    except mr.InputError as e:
        names = {name, *(type(m).__name__ for m in module.children()), *(type(m).__name__ for m in _layers(module))}
        return "refused" if any(n in str(e) for n in names) else f"refused without its name: {e}"
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    module.load_state_dict(model.convs[0].state_dict() if model.network is None else model.network.state_dict())
    want = by_pyg(module, x, torch.from_numpy(edges), attr, None if weight is None else torch.from_numpy(weight))
    if want is None:
        return "PyG does not compute it, and it was accepted"
    for rows, nodes in zip(seen, (slice(None), [3, 0, 13], [3])):
        if not torch.allclose(rows, want[nodes], rtol=1e-3, atol=1e-4, equal_nan=True):
            return f"differs by {(rows - want[nodes]).abs().max():.3g}"
    return "equal"


def _layers(module: nn.Module) -> list[nn.Module]:
    """Convolutions of a whole model."""
    convs = getattr(module, "convs", None)
    return list(convs) if isinstance(convs, nn.ModuleList) else []


def by_pyg(module: nn.Module, x: Tensor, edges: Tensor, attr: Tensor, weight: Tensor | None) -> Tensor | None:
    """Rows of all nodes by PyG, with those values of edges that Millrace hands on; None if PyG fails."""
    from millrace.stages.models.pyg.edges import forward_parameters, reads_edge_attr

    of = module.convs[0] if hasattr(module, "convs") and hasattr(module, "supports_edge_weight") else module
    values = {"edge_attr": attr} if reads_edge_attr(of) else {}
    if weight is not None and "edge_weight" in forward_parameters(of):
        values["edge_weight"] = weight
    try:
        with torch.no_grad():
            return module(x, edges, **values)
    except Exception:
        return None


def verdicts(sample: int | None, seed: int) -> Iterator[tuple[str, int, str, str]]:
    """Class, number of its variant, graph and verdict, of all or of a sample of classes."""
    made = makers()
    names = sorted(made)
    if sample is not None:
        names = sorted(np.random.default_rng(seed).choice(names, min(sample, len(names)), replace=False).tolist())
    for name in names:
        for variant, make in enumerate(made[name]):
            for graph, edges, weight in graphs():
                yield name, variant, graph, verdict(make, name, edges, weight)


def main() -> int:
    """Print a line for each class, and what is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, help="this many classes only")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    classes: dict[str, Counter[str]] = {}
    wrong = []
    for name, variant, graph, said in verdicts(given.sample, given.seed):
        good = said in ("equal", "refused", "not made")
        classes.setdefault(name, Counter())[said if good else "wrong"] += 1
        if not good:
            wrong.append(f"{name} ({variant}) on {graph}: {said}")
    for name, counts in classes.items():
        print(f"{name:28} {', '.join(f'{said} {n}' for said, n in counts.items())}")
    print(*wrong, sep="\n")
    of = Counter(said for counts in classes.values() for said in counts.elements())
    print(f"{len(classes)} classes, {sum(of.values())} cases: {dict(of)}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
