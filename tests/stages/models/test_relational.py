"""Models over relations: against plain torch in float64, node by node, against PyG on the same minibatches, and in
exact evaluation; and rows without messages."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import millrace as mr
from millrace.pipeline.datasets.cleaning.relations import graph_of_relations
from millrace.stages.assignment import SeedPlan
from millrace.stages.evaluate.layerwise import infer
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.models import HGT, MODELS, RGAT, RGCN, RSAGE
from millrace.stages.models.relational import Identity, OwnRows, TypedInput
from millrace.stages.neighbourhood.block import BlockNeighbourhood, types_of_edges
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.storage.errors import InputError
from millrace.storage.minibatch import Block
from millrace.tests.contracts.typed import typed_dataset
from millrace.tests.contracts.whole_graph import whole_graph

DATA = typed_dataset(degree=90, edge_features=True)
GRAPH, TYPES = DATA.graph, DATA.graph.types
WIDTHS = (5, 3, 0)
OPTIONS = {"hidden": 8, "layers": 2, "dropout": 0.0}
CONFIGS = {
    "rgcn": RGCN(**OPTIONS),
    "rgcn with bases": RGCN(bases=2, **OPTIONS),
    "rgcn with layer norm": RGCN(norm="layer", **OPTIONS),
    "rsage": RSAGE(**OPTIONS),
    "rgat": RGAT(heads=2, **OPTIONS),
    "rgat with edges": RGAT(heads=2, edge_width=3, **OPTIONS),
    "hgt": HGT(heads=2, **OPTIONS),
}


def build(config):
    torch.manual_seed(0)
    return config.build_typed(TypedInput(TYPES, WIDTHS), 3).double()


def minibatch():
    """Neighbourhoods, nodes and blocks of one minibatch of two hops."""
    sampler = NeighborSampler((3, 2), relations={"cites": (2, -1)})
    m = sampler.sample(GRAPH, SeedPlan(np.arange(20), 8, 1, 0).request(0, 1), cpu).minibatches[0]
    made = [
        BlockNeighbourhood(
            b,
            torch.from_numpy(GRAPH.degree[b.src]),
            edge_types=types_of_edges(GRAPH, b.edge_id),
            edges=lambda b=b: torch.from_numpy(GRAPH.edge_features.gather(b.edge_id)),
        )
        for b in m.blocks
    ]
    return made, m.nodes, m.blocks


def rows_of(nodes):
    return torch.from_numpy(DATA.features.gather(nodes)).double()


def hgt(conv, relations, of, v, h):
    """A row of HGT, edge by edge."""
    logits, messages, shape = [], [], (conv.heads, conv.head_width)
    asked = conv.queries[of[v]](h[v]).view(shape)
    for r, relation in enumerate(relations):
        src, dst = relation.ends(h.device)
        for u in src[relation.targets[dst] == v].tolist():
            key, value = conv.keys[of[u]](h[u]).view(shape), conv.values[of[u]](h[u]).view(shape)
            key, value = (torch.einsum("hd,hde->he", a, b[r]) for a, b in ((key, conv.to_key), (value, conv.to_value)))
            logits.append((key * asked).sum(-1) * conv.prior[r] / conv.head_width**0.5)
            messages.append(value)
    found = torch.zeros(shape, dtype=h.dtype)
    if logits:
        found = (torch.stack(logits).softmax(0)[:, :, None] * torch.stack(messages)).sum(0)
    share = conv.skip[of[v]].sigmoid()
    out = share * conv.finish[of[v]](F.gelu(found.flatten())) + (1 - share) * h[v]
    return out if conv.head is None else conv.head(out)


def dense(config, model, neighbourhoods, nodes, h):
    """The model in plain torch, from the ends of the edges alone: every mean is over the edges that are present."""
    of = TYPES.types_of(np.asarray(nodes))
    by_type = model.convs[0].projection.by_type
    h = torch.stack([by_type[t].bias + (by_type[t].weight @ x[: WIDTHS[t]] if WIDTHS[t] else 0) for t, x in zip(of, h)])
    for i, neighbourhood in enumerate(neighbourhoods):
        conv = model.convs[i].conv if i == 0 else model.convs[i]
        last = i == len(neighbourhoods) - 1
        rows = []
        for v in range(neighbourhood.num_dst):
            t = of[v]
            if isinstance(config, HGT):
                rows.append(hgt(conv, neighbourhood.relations(), of, v, h))
                continue
            if isinstance(config, RGCN):
                out = conv.own.weight @ h[v] + conv.own.bias
            else:
                out = conv.own.by_type[t].weight @ h[v] + conv.own.by_type[t].bias
            for r, relation in enumerate(neighbourhood.relations()):
                src, dst = relation.ends(h.device)
                here = relation.targets[dst] == v
                mine = h[src[here]]
                if not len(mine):
                    continue
                if isinstance(config, RGCN):
                    weight = conv.weight if conv.shares is None else torch.tensordot(conv.shares, conv.weight, 1)
                    out = out + mine.mean(0) @ weight[r]
                elif isinstance(config, RSAGE):
                    out = out + conv.neighbours[r].weight @ mine.mean(0)
                else:
                    heads = conv.weight[r].view(conv.heads, conv.head_width, -1)
                    z, own = torch.einsum("hdf,nf->nhd", heads, mine), torch.einsum("hdf,f->hd", heads, h[v])
                    logits = (z * conv.a_src[r]).sum(-1) + (own * conv.a_dst[r]).sum(-1)
                    if str(r) in conv.edge:
                        said = conv.edge[str(r)](relation.edge_features[here]).view(z.shape)
                        logits = logits + (said * conv.a_edge[str(r)]).sum(-1)
                    found = (F.leaky_relu(logits, 0.2).softmax(0)[:, :, None] * z).sum(0)
                    out = out + (found.mean(0) if last else found.flatten())
            if not last:
                out = model.norms[i](out)
                out = F.elu(out) if isinstance(config, RGAT) else F.relu(out)
            rows.append(out)
        h = torch.stack(rows)
    return h


@pytest.mark.parametrize("name", CONFIGS)
def test_minibatches_and_the_whole_graph_equal_plain_torch(name):
    model = build(CONFIGS[name])
    hoods, nodes, _ = minibatch()
    everything = np.arange(36)
    for neighbourhoods, ids in ((hoods, nodes), ([whole_graph(GRAPH, torch.float64)] * 2, everything)):
        found = model(neighbourhoods, rows_of(ids))
        expected = dense(CONFIGS[name], model, neighbourhoods, ids, rows_of(ids))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        pairs = [
            torch.autograd.grad(x.square().sum(), list(model.parameters()), allow_unused=True)
            for x in (found, expected)
        ]
        for (parameter, _), one, other in zip(model.named_parameters(), *pairs):
            assert one is not None, f"{parameter} has a gradient, zero where its relation has no edges"
            torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("max_bytes", [1 << 20, 1])
def test_exact_evaluation_equals_the_whole_graph(name, max_bytes):
    model = build(CONFIGS[name]).eval()
    with torch.no_grad():
        expected = model([whole_graph(GRAPH, torch.float64)] * 2, rows_of(np.arange(36)))
    nodes = np.array([3, 19, 0, 30, 35])
    found = infer(model, DATA, nodes=nodes, max_bytes=max_bytes)
    torch.testing.assert_close(found, expected[torch.from_numpy(nodes)], rtol=1e-10, atol=1e-10)


def ends_of(neighbourhood):
    """PyG's ``edge_index`` and ``edge_type`` of a block."""
    pairs = [(relation.targets, *relation.ends(torch.device("cpu"))) for relation in neighbourhood.relations()]
    edges = torch.cat([torch.stack([src, targets[dst]]) for targets, src, dst in pairs], 1)
    return edges, torch.repeat_interleave(torch.arange(len(pairs)), torch.tensor([len(src) for _, src, _ in pairs]))


@pytest.mark.parametrize("bases", [0, 3])
def test_rgcn_is_that_of_pyg_on_the_same_minibatch(bases):
    pyg = pytest.importorskip("torch_geometric.nn")
    neighbourhood, h = minibatch()[0][0], torch.randn(len(minibatch()[1]), 6, dtype=torch.float64)
    conv = RGCN(bases=bases).relational_conv(0, TYPES, 6, 4).double()
    theirs = pyg.RGCNConv(6, 4, TYPES.num_relations, num_bases=bases or None).double()
    with torch.no_grad():
        theirs.weight.copy_(conv.weight)
        theirs.root.copy_(conv.own.weight.t())
        theirs.bias.copy_(conv.own.bias)
        if bases:
            theirs.comp.copy_(conv.shares)
    expected = theirs((h, h[: neighbourhood.num_dst]), *ends_of(neighbourhood))
    torch.testing.assert_close(conv(neighbourhood, h), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("config", [RGCN(), RGCN(bases=3), RSAGE()], ids=["rgcn", "rgcn with bases", "rsage"])
def test_whole_weights_count_as_parallel_edges_of_pygs_convolutions(config):
    """Their layers read no weights: they are given each edge as often as its weight says."""
    pyg, rng, spans = pytest.importorskip("torch_geometric.nn"), np.random.default_rng(1), {}
    for name, first, stop in zip(TYPES.node_types, TYPES.offsets, TYPES.offsets[1:]):
        spans[name] = np.arange(first, stop)
    pairs = [(rng.choice(spans[a], 50), rng.choice(spans[b], 50)) for a, _, b in TYPES.relations]
    weights = [rng.integers(1, 5, 50) for _ in pairs]
    given = [w.astype(np.float32) for w in weights]
    neighbourhood = whole_graph(
        graph_of_relations(dict(zip(TYPES.relations, pairs)), TYPES, False, given), torch.float64
    )
    h = torch.randn(GRAPH.num_nodes, 6, dtype=torch.float64)
    conv = config.relational_conv(0, TYPES, 6, 4).double()
    often = [torch.from_numpy(np.repeat(np.stack(p), w, axis=1)) for p, w in zip(pairs, weights)]
    if config.name == "rgcn":
        theirs = pyg.RGCNConv(6, 4, TYPES.num_relations, num_bases=config.bases or None).double()
        with torch.no_grad():
            theirs.weight.copy_(conv.weight)
            theirs.root.copy_(conv.own.weight.t())
            theirs.bias.copy_(conv.own.bias)
            if config.bases:
                theirs.comp.copy_(conv.shares)
        kinds = torch.repeat_interleave(torch.arange(len(often)), torch.tensor([e.shape[1] for e in often]))
        expected = theirs(h, torch.cat(often, 1), kinds)
    else:
        expected = torch.cat([conv.own.by_type[t](h[span]) for t, span in enumerate(spans.values())])
        for r, edges in enumerate(often):
            one = pyg.SAGEConv(6, 4, root_weight=False, bias=False).double()
            one.lin_l.weight.data.copy_(conv.neighbours[r].weight)
            expected = expected + one(h, edges)
    torch.testing.assert_close(conv(neighbourhood, h), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("config", [RSAGE(), RGAT(hidden=8, heads=2, edge_width=3)], ids=lambda c: c.name)
def test_others_are_sums_of_pygs_convolutions_by_relation(config):
    pyg = pytest.importorskip("torch_geometric.nn")
    (neighbourhood, *_), nodes, _ = minibatch()
    h = torch.randn(len(nodes), 6, dtype=torch.float64)
    conv = config.relational_conv(0, TYPES, 6, 8).double()
    by_type, convs = {n.name: h[n.sources] for n in neighbourhood.node_types()}, {}
    inputs = {n.name: (h[n.sources], h[n.targets]) for n in neighbourhood.node_types()}
    edges, attr = {}, {}
    for r, relation in enumerate(neighbourhood.relations()):
        if config.name == "rsage":
            one = pyg.SAGEConv(6, 8, root_weight=False, bias=False).double()
            one.lin_l.weight.data.copy_(conv.neighbours[r].weight)
        else:
            width = TYPES.edge_widths[r] or None
            one = pyg.GATConv(6, 4, heads=2, add_self_loops=False, bias=False, edge_dim=width).double()
            if width:
                one.lin_edge.weight.data.copy_(conv.edge[str(r)].weight)
                one.att_edge.data.copy_(conv.a_edge[str(r)][None])
            one.lin.weight.data.copy_(conv.weight[r])
            one.att_src.data.copy_(conv.a_src[r][None])
            one.att_dst.data.copy_(conv.a_dst[r][None])
        attr[relation.type] = {"edge_attr": relation.edge_features} if config.name == "rgat" else {}
        convs[relation.type] = one
        edges[relation.type] = torch.stack(relation.compact.ends(h.device))
    sums = {name: torch.zeros(len(own), 8, dtype=torch.float64) for name, (_, own) in inputs.items()}
    for kind, one in convs.items():
        sums[kind[2]] = sums[kind[2]] + one((by_type[kind[0]], inputs[kind[2]][1]), edges[kind], **attr[kind])
    found = conv(neighbourhood, h)
    for t, rows in enumerate(neighbourhood.node_types()):
        own = conv.own.by_type[t]
        expected = sums[rows.name] + inputs[rows.name][1] @ own.weight.t() + own.bias
        torch.testing.assert_close(found[rows.targets], expected, rtol=1e-10, atol=1e-10)


def test_hgt_is_that_of_pyg_on_the_same_minibatch():
    pyg = pytest.importorskip("torch_geometric.nn")
    (neighbourhood, *_), nodes, _ = minibatch()
    H, D = 2, 3
    h = torch.randn(len(nodes), H * D, dtype=torch.float64)
    conv = HGT(hidden=H * D, heads=H).relational_conv(0, TYPES, H * D, H * D).double()
    theirs = pyg.HGTConv(H * D, H * D, (list(TYPES.node_types), list(TYPES.relations)), heads=H).double()
    R, generator = TYPES.num_relations, torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in (conv.prior, conv.skip):
            p.copy_(torch.rand(p.shape, generator=generator))
        for t, name in enumerate(TYPES.node_types):
            kqv = [part[t] for part in (conv.keys, conv.queries, conv.values)]
            theirs.kqv_lin.lins[name].weight.copy_(torch.cat([part.weight for part in kqv]))
            theirs.kqv_lin.lins[name].bias.copy_(torch.cat([part.bias for part in kqv]))
            theirs.out_lin.lins[name].load_state_dict(conv.finish[t].state_dict())
            theirs.skip[name].copy_(conv.skip[t])
        for r, relation in enumerate(TYPES.relations):
            theirs.p_rel["__".join(relation)].copy_(conv.prior[r])
            for head in range(H):  # theirs are numbered head by head
                theirs.k_rel.weight[head * R + r].copy_(conv.to_key[r, head])
                theirs.v_rel.weight[head * R + r].copy_(conv.to_value[r, head])
    # PyG wants the same rows on both sides: edges of a block reach its first rows only.
    by_type = {rows.name: h[rows.sources] for rows in neighbourhood.node_types()}
    edges = {r.type: torch.stack(r.compact.ends(h.device)) for r in neighbourhood.relations()}
    expected, found = theirs(by_type, edges), conv(neighbourhood, h)
    for rows in neighbourhood.node_types():
        if len(rows.targets):
            torch.testing.assert_close(
                found[rows.targets], expected[rows.name][: len(rows.targets)], rtol=1e-10, atol=1e-10
            )


class Own(nn.Module):
    """A user's module: one matrix for each relation, in a layer written over `relations()`."""

    num_layers = 2

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.enter = nn.Linear(5, 8)
        self.mine = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 3)])
        self.by_relation = nn.ModuleList(
            nn.ModuleDict({r[1]: nn.Linear(8, width) for r in TYPES.relations}) for width in (8, 3)
        )

    def layer(self, i, neighbourhood, h):
        h = self.enter(h) if i == 0 else h
        out = self.mine[i](h[: neighbourhood.num_dst])
        for relation in neighbourhood.relations():
            out = out.index_add(0, relation.targets, self.by_relation[i][relation.name](relation.sum(h)))
        return out


def test_a_users_module_is_evaluated_over_relations():
    model = Own().double()
    h = rows_of(np.arange(36))
    for i in range(2):
        h = model.layer(i, whole_graph(GRAPH, torch.float64), h)
    torch.testing.assert_close(infer(model, DATA, max_bytes=1), h.detach(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "name", [name for name, config in MODELS.items() if config.reads_relations and name != "identity"]
)
def test_a_graph_with_one_type_is_refused(name):
    with pytest.raises(InputError, match=f"the model {name} reads relations, but the graph has one type"):
        MODELS[name]().build(4, 3)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RGCN(bases=-1), "rgcn: bases is -1"),
        (lambda: HGT(hidden=10, heads=4), "hgt: hidden=10 is not a multiple of heads=4"),
        (lambda: HGT(attention_dropout=1.0), "hgt: attention_dropout is 1.0"),
        (lambda: RGAT(hidden=10, heads=4), "hidden=10 is not a multiple of heads=4"),
        (lambda: RGAT(edge_width=-2), "rgat: edge_width is -2"),
        (lambda: TypedInput.of_record({**TYPES.record(), "widths": [1]}), "widths are not a number"),
    ],
)
def test_bad_options_are_refused(make, said):
    with pytest.raises(InputError, match=said):
        make()


KG = "kg:people=60,companies=8,cities=4"
LOOKUP = {
    "model": "identity", "fanout": [0], "epochs": 2, "seed": 3, "threads": 1, "lr": 0.02, "batch_size": 32,
    "learned": {"width": 6, "beside": False}, "link": {"width": 6, "decoder": "complex"}, "dtype": "float64",
}  # fmt: skip


def test_rows_are_those_of_the_destinations_in_the_first_columns():
    block = Block(2, np.array([4, 1, 7]), np.array([0, 1, 2]), np.array([2, 2], np.int32))
    h = torch.arange(15.0).view(3, 5)
    for width in (5, 3):
        assert torch.equal(OwnRows(width)(BlockNeighbourhood(block, torch.ones(3)), h), h[:2, :width])
    model = Identity(dropout=0.5).build(5, 5)
    kept = model.train()([BlockNeighbourhood(block, torch.ones(3))], h)
    assert ((kept == 0) | (kept == 2 * h[:2])).all()


@pytest.mark.usefixtures("forked_workers")
def test_a_run_trains_rows_and_decoder_alone_on_any_number_of_ranks(tmp_path):
    data = mr.link_dataset(mr.open_dataset(KG), relation=["lives_in", "works_at"])
    alone, two = (
        mr.run(data, out=tmp_path / str(n), verbose=False, ranks=n, minibatches_per_step=2, **LOOKUP) for n in (1, 2)
    )
    model = mr.load(alone).model
    assert {name.split(".")[0] for name, _ in model.named_parameters()} == {"decoder"}
    rows = np.load(tmp_path / "1" / "learned.npy")
    np.testing.assert_allclose(mr.embed(alone).rows, rows, rtol=0, atol=0)
    np.testing.assert_allclose(np.load(tmp_path / "2" / "learned.npy"), rows, rtol=1e-9, atol=1e-9)
    assert alone.test_metrics == pytest.approx(two.test_metrics, abs=1e-9)


def test_widths_that_differ_and_layers_without_neighbours_are_refused(tmp_path):
    with pytest.raises(InputError, match="layers is 2, but the model reads no neighbours"):
        Identity(layers=2)
    data = mr.link_dataset(mr.open_dataset(KG), relation="lives_in")
    with pytest.raises(InputError, match="gives the 6 columns that it reads, but 8 are wanted"):
        mr.run(data, out=tmp_path / "run", verbose=False, **{**LOOKUP, "link": {"width": 8}})
    assert not (tmp_path / "run").exists()
