"""Relations of lists on a device: those of the host, with models over them in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.stages.assignment import SeedPlan
from millrace.stages.evaluate.layerwise import infer
from millrace.stages.kernels.sampling.cpu import backend as cpu
from millrace.stages.models import HGT, RGAT, RGCN, RSAGE
from millrace.stages.models.relational import TypedInput
from millrace.stages.neighbourhood.block import BlockNeighbourhood, types_of_edges
from millrace.stages.sample.neighbor import NeighborSampler
from millrace.tests.contracts.typed import typed_dataset, typed_graphs

pytestmark = pytest.mark.usefixtures("on_device")
OPTIONS = {"hidden": 4, "layers": 2, "dropout": 0.0}
MODELS = [RGCN(**OPTIONS), RSAGE(**OPTIONS), RGAT(heads=2, edge_width=3, **OPTIONS), HGT(heads=2, **OPTIONS)]


def over(graph, block, device, edges=False):
    """The block on a device, or on the host."""
    degree = torch.from_numpy(graph.degree[block.src]).to(device or "cpu")
    of_edges = lambda: torch.from_numpy(graph.edge_features.gather(block.edge_id)).to(device or "cpu")  # noqa: E731
    types = types_of_edges(graph, block.edge_id, device)
    return BlockNeighbourhood(block, degree, edge_types=types, edges=of_edges if edges else None)


def same(there, here, **tolerance):
    assert there.device.type == "cuda"
    torch.testing.assert_close(there.detach().cpu(), here.detach(), **tolerance)


def weighed(rows, own, weight):
    return (rows - own) * (1.0 if weight is None else weight[:, None])


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(typed_graphs(), st.booleans(), st.booleans(), st.data())
def test_relations_and_means_are_those_of_the_host(on_device, graph, weighted, sampled, data):
    rng = np.random.default_rng(0)
    if weighted:
        graph = replace(graph, edge_weight=rng.integers(0, 4, graph.num_edges).astype(np.float32))
    request = SeedPlan(np.arange(graph.num_nodes), 5, 1, 0).request(0, 0)
    block = NeighborSampler((3,)).sample(graph, request, cpu).minibatches[0].blocks[0]
    block = block if sampled else replace(block, weight=None)
    there, here = over(graph, block, on_device), over(graph, block, None)
    for a, b in zip(there.node_types(), here.node_types(), strict=True):
        same(a.sources, b.sources)
        same(a.targets, b.targets)
    x = torch.from_numpy(rng.standard_normal((block.num_src, 2)))
    for a, b in zip(there.relations(), here.relations(), strict=True):
        assert (a.type, a.num_edges, a.num_dst) == (b.type, b.num_edges, b.num_dst)
        for one, other in zip(
            (*a.ends(on_device), *a.compact.ends(on_device)), (*b.ends(x.device), *b.compact.ends(x.device))
        ):
            same(one, other)
        same(a.coefficients(x.to(on_device)), b.coefficients(x))
        same(a.mean(x.to(on_device)), b.mean(x))
        same(a.compact.sum(x[b.sources].to(on_device)), b.compact.sum(x[b.sources]))
        same(a.compact.sources, b.compact.sources)
        # Lists of the host, and rows on the device.
        same(b.coefficients(x.to(on_device)), b.coefficients(x))
        for reduce in ("sum", "mean"):
            want = b.apply(weighed, x, x[b.targets], reduce=reduce)
            same(b.apply(weighed, x.to(on_device), x[b.targets].to(on_device), reduce=reduce), want)
            same(getattr(b, reduce)(x.to(on_device)), getattr(b, reduce)(x))
    some = tuple(data.draw(st.booleans()) for _ in graph.types.node_types)
    rest = tuple(not chosen for chosen in some)
    rows = x[torch.from_numpy(np.array(some)[graph.types.types_of(block.src)])]
    want = here.means_by_type(rows, some, rest)
    for seen in (there, here):
        for a, b in zip(seen.means_by_type(rows.to(on_device), some, rest), want, strict=True):
            assert (a.of, a.flagged) == (b.of, b.flagged)
            same(a.rows, b.rows)
            same(a.present, b.present)


@pytest.mark.parametrize("config", MODELS, ids=lambda config: config.name)
def test_models_are_those_of_the_host(on_device, config):
    """Outputs and all gradients of a minibatch; outputs of all in-edges."""
    data = typed_dataset(degree=20, edge_features=True)
    request = SeedPlan(np.arange(20), 6, 1, 0).request(0, 0)
    blocks = NeighborSampler((2, 2)).sample(data.graph, request, cpu).minibatches[0].blocks
    torch.manual_seed(0)
    model = config.build_typed(TypedInput(data.graph.types, (5, 3, 0)), 3).double()
    h, found = torch.from_numpy(data.features.gather(blocks[0].src)).double(), []
    for device in (None, on_device):
        own = model if device is None else model.to(device)
        rows = h if device is None else h.to(device)
        out = own([over(data.graph, block, device, config.name == "rgat") for block in blocks], rows)
        grads = torch.autograd.grad(out.square().sum(), list(own.parameters()))
        found.append([out, *grads, infer(own, data, nodes=np.array([3, 30]))])
    for here, there in zip(*found, strict=True):
        same(there, here, rtol=1e-10, atol=1e-12)
