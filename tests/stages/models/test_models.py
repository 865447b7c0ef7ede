from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from millrace.stages.memory.lazy_rows import LazyRows, base_and_ids
from millrace.stages.models import MODELS, base, gat
from millrace.stages.models.base import AggregateFirst, Model, ModelConfig, Stack, as_model
from millrace.stages.models.gat import GAT
from millrace.stages.models.gcn import GCN
from millrace.stages.models.gin import GIN
from millrace.stages.models.pyg.model import PyGModel
from millrace.stages.models.sage import SAGE
from millrace.stages.neighbourhood.base import Neighbourhood, aggregate_first
from millrace.stages.neighbourhood.block import BlockNeighbourhood
from millrace.storage.errors import InputError
from millrace.storage.graph import Graph, from_edges
from millrace.storage.minibatch import Block
from millrace.tests.contracts.neighbourhood import assert_close, blocks
from millrace.tests.contracts.whole_graph import whole_graph

F64 = torch.float64
CONFIGS = [
    SAGE(hidden=6, layers=2, dropout=0),
    SAGE(hidden=4, layers=3, dropout=0, norm="layer", activation="elu"),
    GCN(hidden=6, layers=2, dropout=0),
    GCN(hidden=3, layers=3, dropout=0, norm="batch"),
    GAT(hidden=6, layers=2, dropout=0, heads=3),
    GIN(hidden=6, layers=2, dropout=0, activation="none"),
    SAGE(hidden=6, layers=2, dropout=0, aggregator="max"),
]


def make_graph(weighted: bool, n: int = 12, e: int = 40) -> Graph:
    rng = np.random.default_rng(n + e + weighted)
    return from_edges(
        rng.integers(0, n, e), rng.integers(0, n - 2, e), n, edge_weight=rng.random(e) if weighted else None
    )


def minibatch(graph: Graph, layers: int) -> list[BlockNeighbourhood]:
    """Blocks of `layers` hops around the first seeds, one in-edge in three left out."""
    rng = np.random.default_rng(0)
    degree = whole_graph(graph, F64).degree_rows
    dst, blocks = np.array([3, 1, 7]), []
    for _ in range(layers):
        kept = [np.flatnonzero(rng.random(graph.in_degree[v]) < 0.67) + graph.indptr[v] for v in dst]
        edges = np.concatenate(kept)
        src = np.r_[dst, np.setdiff1d(graph.indices[edges], dst)]
        where = {int(u): i for i, u in enumerate(src)}
        indices = np.array([where[int(u)] for u in graph.indices[edges]], np.int32)
        weight = None if graph.edge_weight is None else graph.edge_weight[edges] * np.float32(1.5)
        block = Block(len(dst), src, np.cumsum([0, *map(len, kept)]), indices, weight).check()
        blocks.insert(0, BlockNeighbourhood(block, degree[torch.from_numpy(src)]))
        dst = src
    return blocks


def dense_matrices(neighbourhood: BlockNeighbourhood) -> tuple[Tensor, Tensor]:
    """Weight of each edge in a sum, and number of edges: [num_dst, num_src]."""
    b = neighbourhood.block
    A, N = torch.zeros(2, neighbourhood.num_dst, neighbourhood.num_src, dtype=F64)
    for v in range(neighbourhood.num_dst):
        row = range(b.indptr[v], b.indptr[v + 1])
        for e in row:
            A[v, b.indices[e]] += float(neighbourhood.degree[v]) / len(row) if b.weight is None else float(b.weight[e])
            N[v, b.indices[e]] += 1
    return A, N


def dense_layer(conv: nn.Module, neighbourhood: BlockNeighbourhood, h: Tensor) -> Tensor:
    """The published formula, on matrices."""
    A, N = dense_matrices(neighbourhood)
    n, p = neighbourhood.num_dst, dict(conv.named_parameters())
    own = torch.eye(n, neighbourhood.num_src, dtype=F64)
    kind = type(conv).__name__
    if kind == "SAGEConv":
        mean = torch.nan_to_num(A / A.sum(1, keepdim=True), 0.0)
        return h[:n] @ p["own.weight"].T + p["own.bias"] + mean @ h @ p["neighbours.weight"].T
    if kind == "SAGEPoolConv":
        pooled = torch.relu(h @ p["pool.weight"].T + p["pool.bias"])
        rows = [pooled[N[v] > 0].amax(0) if N[v].any() else torch.zeros(pooled.shape[1], dtype=F64) for v in range(n)]
        most = torch.stack(rows) if n else pooled[:0]
        return h[:n] @ p["own.weight"].T + p["own.bias"] + most @ p["neighbours.weight"].T
    if kind == "GCNConv":
        others, loop = neighbourhood.degree, torch.ones(())
        if (loops := neighbourhood.loops) is not None:
            A, others, loop = A * (1 - own), loops.others, loops.weight
        d = 1 / torch.sqrt(others + loop)
        return d[:n, None] * (A + own * loop) * d @ h @ p["linear.weight"].T + p["bias"]
    if kind == "GINConv":
        x = ((1 + p["eps"]) * own + A) @ h
        return torch.relu(x @ p["mlp.0.weight"].T + p["mlp.0.bias"]) @ p["mlp.2.weight"].T + p["mlp.2.bias"]
    z = (h @ p["linear.weight"].T).view(neighbourhood.num_src, *p["a_src"].shape)
    logit = nn.functional.leaky_relu((z * p["a_src"]).sum(-1) + (z[:n] * p["a_dst"]).sum(-1)[:, None], 0.2)
    weight = (N * (1 - own) + own)[..., None] * torch.exp(logit)
    out = torch.einsum("vuh,uhd->vhd", weight / weight.sum(1, keepdim=True), z)
    return (out.flatten(1) if len(p["bias"]) == out.shape[1:].numel() else out.mean(1)) + p["bias"]


def compare(got: Tensor, want: Tensor, leaves: list[Tensor]) -> None:
    assert_close(got, want)
    grad = torch.randn(want.shape, dtype=F64)
    for a, b in zip(
        *(torch.autograd.grad((x * grad).sum(), leaves, retain_graph=True) for x in (got, want)), strict=True
    ):
        assert_close(a, b)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_models_equal_dense_formulas(config: ModelConfig, sampled: bool, weighted: bool) -> None:
    torch.manual_seed(1)
    graph = make_graph(weighted)
    neighbourhoods = minibatch(graph, config.layers) if sampled else [whole_graph(graph, F64)] * config.layers
    model = config.build(5, 3).double()
    assert isinstance(model, Stack)
    h = torch.randn(neighbourhoods[0].num_src, 5, dtype=F64, requires_grad=True)
    for parameter in model.parameters():
        nn.init.normal_(parameter)  # also what starts at zero
    want = h
    for i, neighbourhood in enumerate(neighbourhoods):
        want = dense_layer(model.convs[i], neighbourhood, want)
        if i < config.layers - 1:
            want = model.norms[i](want)
            want = {"relu": torch.relu, "elu": nn.functional.elu, "none": lambda x: x}[config.activation](want)
    compare(model(neighbourhoods, h), want, [h, *model.parameters()])
    assert want.shape == (neighbourhoods[-1].num_dst, 3)


@pytest.mark.parametrize("config", [SAGE(hidden=8), GCN(hidden=8), GAT(hidden=8), GIN(hidden=8)], ids=str)
def test_a_seed_fixes_parameters_and_dropout(config: ModelConfig) -> None:
    neighbourhood, h = whole_graph(make_graph(False)), torch.randn(12, 5)

    def once(seed: int) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(seed)
        model = config.build(5, 3)
        train = model([neighbourhood] * 3, h)
        return train, model.eval()([neighbourhood] * 3, h), model([neighbourhood] * 3, h)

    first, again, other = once(1), once(1), once(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert not torch.equal(first[1], other[1])
    assert not torch.equal(first[0], first[1])
    assert torch.equal(first[1], first[2])


def test_dropout_acts_on_the_input_features() -> None:
    model = SAGE(hidden=4, layers=1, dropout=0.5).build(6, 2)
    neighbourhood = whole_graph(from_edges([], [], 1000))
    model.convs[0].own.bias.data.zero_()  # type: ignore[union-attr]
    model.convs[0].own.weight.data.fill_(1.0)  # type: ignore[union-attr]
    kept = model([neighbourhood], torch.ones(1000, 6))[:, 0] / 2
    assert torch.equal(kept, kept.round())
    assert 2.7 < float(kept.detach().mean()) < 3.3


def test_attention_dropout_acts_in_training_only() -> None:
    torch.manual_seed(0)
    model = GAT(hidden=8, layers=2, dropout=0.0, attention_dropout=0.5).build(5, 3)
    neighbourhoods, h = [whole_graph(make_graph(False))] * 2, torch.randn(12, 5)
    assert not torch.equal(model(neighbourhoods, h), model(neighbourhoods, h))
    model.eval()
    assert torch.equal(model(neighbourhoods, h), model(neighbourhoods, h))


ONE_LAYER = [
    SAGE(layers=1),
    SAGE(layers=1, hidden=3, aggregator="max"),
    GCN(layers=1),
    GIN(layers=1, hidden=3),
    GAT(layers=1, heads=2),
    GAT(layers=2, hidden=4, heads=2),
]


@given(
    case=blocks(),
    config=st.sampled_from(ONE_LAYER),
    first=st.booleans(),
    activation=st.sampled_from(["none", "relu", "elu"]),
)
@settings(deadline=None, max_examples=50)
def test_either_order_equals_the_dense_formula_on_any_block(
    case: tuple[Block, Tensor], config: ModelConfig, first: bool, activation: str
) -> None:
    """Product first or aggregation first; from gathered rows, and from rows that are read where they lie."""
    block, degree = case
    neighbourhood = BlockNeighbourhood(block, degree)
    conv = config.conv(0, 4, config.hidden if config.layers == 2 else 5).double()
    for parameter in conv.parameters():
        nn.init.normal_(parameter)
    h = torch.randn(block.num_src, 4, dtype=F64, requires_grad=True)
    # Ids of another type would be kernels of their own, seconds to compile: test_aggregation.py has them.
    ids = np.arange(2, 2 + block.num_src, dtype=block.src.dtype)
    named = LazyRows(torch.cat([torch.ones(2, 4), h.detach()]).numpy(), ids)
    want = dense_layer(conv, neighbourhood, h)
    want = {"relu": torch.relu, "elu": nn.functional.elu, "none": lambda x: x}[activation](want)
    parameters = list(conv.parameters())
    with pytest.MonkeyPatch.context() as patch:
        for module in (base, gat):
            patch.setattr(module, "aggregate_first", lambda *args, **kwargs: first)
        got, constant = conv(neighbourhood, h, activation), conv(neighbourhood, named, activation)
    assert_close(constant, want)
    grad, nothing = torch.randn(want.shape, dtype=F64), sum(0 * p.sum() for p in (h, *parameters))
    leaves = [h, *parameters]
    expected = torch.autograd.grad((want * grad).sum() + nothing, leaves, retain_graph=True)
    for a, b in zip(
        torch.autograd.grad((got * grad).sum() + nothing, leaves, retain_graph=True), expected, strict=True
    ):
        assert_close(a, b)
    for a, b in zip(torch.autograd.grad((constant * grad).sum() + nothing, parameters), expected[1:], strict=True):
        assert_close(a, b)


@given(
    case=blocks(),
    config=st.sampled_from([SAGE(layers=1), GCN(layers=1)]),
    activation=st.sampled_from(["none", "relu", "elu"]),
)
@settings(deadline=None, max_examples=25)
def test_what_aggregates_first_does_so_without_parameters(
    case: tuple[Block, Tensor], config: ModelConfig, activation: str
) -> None:
    block, degree = case
    neighbourhood, conv = BlockNeighbourhood(block, degree), config.conv(0, 4, 5).double()
    assert isinstance(conv, AggregateFirst)
    h = torch.randn(block.num_src, 4, dtype=F64)
    aggregated = conv.aggregate(neighbourhood, h)
    assert not aggregated.requires_grad and len(aggregated) == block.num_dst
    for parameter in conv.parameters():
        nn.init.normal_(parameter)
    assert torch.equal(conv.aggregate(neighbourhood, h), aggregated)
    assert_close(conv.combine(aggregated, activation), conv(neighbourhood, h, activation))


def test_what_has_parameters_before_the_aggregate_does_not_aggregate_first() -> None:
    for config in (GAT(layers=1), SAGE(layers=1, aggregator="max")):
        assert not isinstance(config.conv(0, 4, 8), AggregateFirst)


def test_sampled_blocks_are_aggregated_first_and_whole_graphs_on_the_narrower_side() -> None:
    whole = whole_graph(make_graph(False))
    assert aggregate_first(whole, 5 * 8, before=5, after=8)
    assert not aggregate_first(whole, 8 * 3, before=8, after=3)
    wide = Block(1, np.arange(100), np.array([0, 99]), np.arange(1, 100, dtype=np.int32))
    assert aggregate_first(BlockNeighbourhood(wide, torch.ones(100)), 256 * 47, before=256, after=47)


@pytest.mark.parametrize("name", ["sage", "gcn", "gin"])
def test_rows_in_place_are_never_gathered_by_a_first_layer(name: str) -> None:
    neighbourhoods = minibatch(make_graph(False), 2)
    rows = np.random.default_rng(0).random((12, 5))
    named = LazyRows(rows, neighbourhoods[0].block.src)
    model = MODELS[name](hidden=8, layers=2, dropout=0).build(5, 3).double()
    model(neighbourhoods, named).sum().backward()
    assert base_and_ids(named)[1] is not None


def test_the_registry_has_the_names_of_the_command_line() -> None:
    assert {name: config.__name__ for name, config in MODELS.items()} == {
        "sage": "SAGE",
        "gcn": "GCN",
        "gat": "GAT",
        "gatv2": "GATv2",
        "gin": "GIN",
        "gine": "GINE",
        "rgcn": "RGCN",
        "rsage": "RSAGE",
        "rgat": "RGAT",
        "hgt": "HGT",
        "identity": "Identity",
    }


class Own(nn.Module):
    num_layers = 2

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def layer(self, i: int, neighbourhood: Neighbourhood, h: Tensor) -> Tensor:
        return neighbourhood.mean(self.linear(h))


def test_a_module_of_the_users_own_is_trained_as_it_is() -> None:
    own = Own()
    model = as_model(own)
    assert model is own
    assert set(model.state_dict()) == {"linear.weight", "linear.bias"}
    neighbourhood, h = whole_graph(make_graph(False)), torch.randn(12, 4)
    assert torch.equal(
        model([neighbourhood, neighbourhood], h), own.layer(1, neighbourhood, own.layer(0, neighbourhood, h))
    )
    built = SAGE().build(3, 2)
    assert as_model(built) is built


class NoLayers(Own):
    num_layers = 0


class NoMethod(nn.Module):
    num_layers = 1


class WholeGraph(nn.Module):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x


MISTAKES: dict[str, Callable[[], object]] = {
    "hidden is 0": lambda: SAGE(hidden=0),
    "hidden is 2.5": lambda: SAGE(hidden=2.5),  # type: ignore[arg-type]
    "layers is -1": lambda: GCN(layers=-1),
    "layers is True": lambda: GCN(layers=True),
    "sage: dropout is 1": lambda: SAGE(dropout=1.0),
    "dropout is -0.1": lambda: GIN(dropout=-0.1),
    "dropout is 'much'": lambda: GIN(dropout="much"),  # type: ignore[arg-type]
    "did you mean 'batch'": lambda: GIN(norm="batsh"),
    "did you mean 'relu'": lambda: GIN(activation="rellu"),
    "as in hidden=32, layers=2": lambda: SAGE(16, 32, 2, 4),  # type: ignore[arg-type]
    "take hidden=256": lambda: GAT(hidden=250, heads=8),
    "heads is 0": lambda: GAT(heads=0),
    "aggregator is 'sum'; expected mean or max": lambda: SAGE(aggregator="sum"),  # type: ignore[arg-type]
    "attention_dropout is 2": lambda: GAT(attention_dropout=2),
    "0 features and 3 classes": lambda: SAGE().build(0, 3),
    "1 blocks for a model of 2 layers": lambda: GCN(layers=2).build(3, 2)(
        [whole_graph(make_graph(False))], torch.ones(12, 3)
    ),
    "Stack takes a list of blocks and rows.*export_program": lambda: GCN(layers=1).build(3, 2)(
        torch.ones(200, 3),  # type: ignore[arg-type]
        torch.zeros(2, 5, dtype=torch.int64),
    ),
    "the model is a int": lambda: as_model(3),
    "NoLayers.num_layers is 0": lambda: as_model(NoLayers()),
    "Linear.forward is whole and there is no layer": lambda: as_model(nn.Linear(1, 1)),
    "or keep your own loop over mr.NeighborLoader": lambda: as_model(NoMethod()),
    "got no convolutions": lambda: PyGModel([]),
    "Linear.forward takes": lambda: PyGModel([nn.Linear(1, 1)]),
    "activation and dropout go between": lambda: PyGModel([nn.ReLU()]),
    "got a int among": lambda: PyGModel([3]),  # type: ignore[list-item]
    "WholeGraph.forward takes a whole edge_index": lambda: as_model(WholeGraph()),
}


@pytest.mark.parametrize("match", MISTAKES)
def test_mistakes_are_named(match: str) -> None:
    with pytest.raises(InputError, match=match):
        MISTAKES[match]()


def as_plain_sum(neighbourhood: BlockNeighbourhood) -> BlockNeighbourhood:
    """The block with weights of one: PyG's sums are over the edges that are present."""
    b = neighbourhood.block
    return BlockNeighbourhood(
        Block(b.num_dst, b.src, b.indptr, b.indices, np.ones(b.num_edges, np.float32)), neighbourhood.degree
    )


class TestPyG:
    """PyG's convolutions on blocks against the models here, with the same parameters."""

    pyg = pytest.importorskip("torch_geometric.nn")

    def compare(
        self, ours: Model, theirs: nn.Module, ours_hood: BlockNeighbourhood, neighbourhood: BlockNeighbourhood
    ) -> None:
        h = torch.randn(neighbourhood.num_src, 5, dtype=F64, requires_grad=True)
        compare(PyGModel([theirs])([neighbourhood], h), ours([ours_hood], h), [h])

    @pytest.mark.parametrize("sampled", [False, True])
    def test_sage(self, sampled: bool) -> None:
        neighbourhood = minibatch(make_graph(False), 1)[0] if sampled else whole_graph(make_graph(False), F64)
        ours, theirs = SAGE(layers=1, dropout=0).build(5, 3).double(), self.pyg.SAGEConv(5, 3).double()
        theirs.lin_l.weight, theirs.lin_l.bias, theirs.lin_r.weight = (
            ours.convs[0].neighbours.weight,
            ours.convs[0].own.bias,
            ours.convs[0].own.weight,
        )
        self.compare(ours, theirs, neighbourhood, neighbourhood)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_gcn(self, weighted: bool) -> None:
        neighbourhood = minibatch(make_graph(weighted), 1)[0]
        ours, theirs = GCN(layers=1, dropout=0).build(5, 3).double(), self.pyg.GCNConv(5, 3).double()
        theirs.lin.weight, theirs.bias = ours.convs[0].linear.weight, ours.convs[0].bias
        self.compare(ours, theirs, neighbourhood, neighbourhood)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_gcn_on_the_whole_graph_is_pygs_own_normalisation(self, weighted: bool) -> None:
        graph = make_graph(weighted)
        src, dst = graph.indices, np.repeat(np.arange(12), graph.in_degree)
        assert (src == dst).any() and len(set(zip(src, dst))) < len(src)
        neighbourhood = whole_graph(graph, F64)
        weight = None if graph.edge_weight is None else torch.from_numpy(graph.edge_weight).double()
        ours, theirs = GCN(layers=1, dropout=0).build(5, 3).double(), self.pyg.GCNConv(5, 3).double()
        theirs.lin.weight, theirs.bias = ours.convs[0].linear.weight, ours.convs[0].bias
        h = torch.randn(12, 5, dtype=F64)
        edges = torch.from_numpy(np.stack([src, dst]).astype(np.int64))
        assert_close(theirs(h, edges, weight), ours([neighbourhood], h))

    @pytest.mark.parametrize("layers", [1, 2])
    def test_gat(self, layers: int) -> None:
        neighbourhoods = minibatch(make_graph(False), layers)
        ours = GAT(hidden=6, layers=layers, dropout=0, heads=2).build(5, 3).double()
        convs = []
        for i, conv in enumerate(ours.convs):
            last = i == layers - 1
            theirs = self.pyg.GATConv(5 if i == 0 else 6, 3, heads=2, concat=not last).double()
            theirs.lin.weight, theirs.bias = conv.linear.weight, conv.bias
            theirs.att_src.data, theirs.att_dst.data = conv.a_src.data[None], conv.a_dst.data[None]
            convs.append(theirs)
        h = torch.randn(neighbourhoods[0].num_src, 5, dtype=F64, requires_grad=True)
        compare(PyGModel(convs, activation="elu")(neighbourhoods, h), ours(neighbourhoods, h), [h])

    def test_gin(self) -> None:
        neighbourhood = minibatch(make_graph(False), 1)[0]
        ours = GIN(hidden=4, layers=1, dropout=0).build(5, 3).double()
        self.compare(
            ours,
            self.pyg.GINConv(ours.convs[0].mlp, train_eps=True).double(),
            as_plain_sum(neighbourhood),
            neighbourhood,
        )

    @pytest.mark.parametrize("weighted", [False, True])
    def test_a_sum_that_takes_weights_gets_the_coefficients(self, weighted: bool) -> None:
        neighbourhood = minibatch(make_graph(weighted), 1)[0]
        conv = self.pyg.GraphConv(5, 3).double()
        h = torch.randn(neighbourhood.num_src, 5, dtype=F64, requires_grad=True)
        want = conv.lin_rel(neighbourhood.sum(h)) + conv.lin_root(h[: neighbourhood.num_dst])
        compare(PyGModel([conv])([neighbourhood], h), want, [h, *conv.parameters()])

    @pytest.mark.parametrize("weighted", [False, True])
    def test_a_mean_gets_the_weights_of_the_edges_alone(self, weighted: bool) -> None:
        neighbourhood = minibatch(make_graph(weighted), 1)[0]
        conv = self.pyg.GraphConv(5, 3, aggr="mean").double()
        h = torch.randn(neighbourhood.num_src, 5, dtype=F64)
        kept = torch.from_numpy(np.diff(neighbourhood.block.indptr)).clamp(min=1)[:, None]
        total = neighbourhood.sum(h) if weighted else as_plain_sum(neighbourhood).sum(h)
        assert_close(
            PyGModel([conv])([neighbourhood], h), conv.lin_rel(total / kept) + conv.lin_root(h[: neighbourhood.num_dst])
        )

    def test_convolutions_that_would_see_the_wrong_graph_are_refused(self) -> None:
        pyg = self.pyg
        for make, fix in (
            (lambda: pyg.GCNConv(5, 3, cached=True), "leave cached out"),
            (lambda: pyg.GCNConv(5, 3, improved=True), "has improved=True, which is not honoured"),
            (lambda: pyg.SAGEConv(5, 3, flow="target_to_source"), "flow"),
            (lambda: pyg.PointNetConv(), "needs pos too"),
        ):
            with pytest.raises(InputError, match=fix):
                PyGModel([make()])

    @pytest.mark.parametrize("convs", [[(-1, 4), (-1, 3)], [((-1, -1), 4), ((-1, -1), 3)]])
    def test_lazy_convolutions_get_their_shapes_from_the_features(self, convs: list[tuple[object, int]]) -> None:
        def made() -> PyGModel:
            return PyGModel([self.pyg.SAGEConv(*conv) for conv in convs])

        model, again = made(), made()
        with pytest.raises(InputError, match=r"parameter '\S+' of PyGModel is lazy"):
            base.check_initialised(model)
        before = torch.random.get_rng_state()
        assert model.fit(5, seed=1) == again.fit(5, seed=1) == 3
        assert torch.equal(before, torch.random.get_rng_state()) and model.training
        assert [tuple(p.shape) for p in model.parameters()] == [(4, 5), (4,), (4, 5), (3, 4), (3,), (3, 4)]
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters()))

    def test_widths_that_do_not_fit_are_refused(self) -> None:
        pyg = self.pyg
        for convs, told in (
            (
                [pyg.SAGEConv(4, 3)],
                r"the first convolution, SAGEConv\(4, 3, aggr=mean\), takes 4 columns, but the dataset gives 5",
            ),
            (
                [pyg.GATConv(5, 4, heads=2, add_self_loops=False), pyg.SAGEConv(4, 3)],
                "layer 1, .* takes 4 columns, but layer 0 gives 8",
            ),
            ([pyg.GINConv(nn.Linear(4, 3))], "layer 0, .* cannot take 5 columns from the dataset .*shapes"),
        ):
            with pytest.raises(InputError, match=told):
                PyGModel(convs).fit(5, 0)

    def test_other_neighbourhoods_are_refused(self) -> None:
        class Elsewhere:
            num_dst = num_src = 12
            names = None

        with pytest.raises(InputError, match="got a Elsewhere"):
            PyGModel([self.pyg.SAGEConv(5, 3)])([Elsewhere()], torch.ones(12, 5))


def test_whole_numbers_are_written_down_as_the_fractions_they_stand_for() -> None:
    """A configuration that went through JSON or TOML is the same one."""
    assert repr(GAT(dropout=0, attention_dropout=0, slope=1)) == repr(
        GAT(dropout=0.0, attention_dropout=0.0, slope=1.0)
    )
    assert repr(SAGE(dropout=0)) == repr(SAGE(dropout=0.0))
