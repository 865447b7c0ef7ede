"""Models over relations on parts of a graph: the values and the gradients of the whole graph."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from millrace.stages.fetch.visit import Visits
from millrace.stages.models import HGT, RGAT, RGCN, RSAGE
from millrace.stages.models.relational import TypedInput
from millrace.storage.errors import InputError
from millrace.tests.contracts.full_batch import Case
from millrace.tests.contracts.thread_ranks import run_threads
from millrace.tests.contracts.typed import typed_dataset
from millrace.tests.contracts.whole_graph import whole_graph

DATA = typed_dataset(degree=40, edge_features=True)
WEIGHTED = replace(DATA.graph, edge_weight=np.random.default_rng(0).random(DATA.graph.num_edges).astype(np.float32))
TYPES, X = DATA.graph.types, DATA.features.gather(np.arange(36)).astype(np.float64)
OPTIONS = {"hidden": 4, "layers": 2, "dropout": 0.0}


class Own(nn.Module):
    """A user's module, whose layers ask each relation for the same rows, and for others."""

    num_layers, reads_edges = 2, True

    def __init__(self):
        super().__init__()
        self.by_relation = nn.ModuleList([nn.Linear(w, 4) for w in (5, 4) for _ in TYPES.relations])

    def layer(self, i, neighbourhood, h):
        out = h.new_zeros(neighbourhood.num_dst, 4)
        for r, relation in enumerate(neighbourhood.relations()):
            linear = self.by_relation[i * len(TYPES.relations) + r]
            near = relation.mean(h) + relation.sum(h) + relation.max(2 * h)
            edge = relation.edge_features
            assert edge.shape == (relation.num_edges, TYPES.edge_widths[r])
            gate = edge.sum(1, keepdim=True)
            near = near + relation.apply(lambda a, b, w, e: a * b * e, h, h[relation.targets], edge=gate)
            near = (
                near
                + relation.attend(h[:, None], torch.ones_like(h[:1]), h[relation.targets, :1], logit_edge=gate.cos())[
                    :, 0
                ]
            )
            out = out.index_add(0, relation.targets, linear(near))
        return out

    def forward(self, neighbourhoods, h):
        for i, neighbourhood in enumerate(neighbourhoods):
            h = self.layer(i, neighbourhood, h)
        return h


def built(name):
    torch.manual_seed(0)
    if name == "own":
        return Own().double()
    config = {"rgcn": RGCN, "rsage": RSAGE, "rgat": RGAT, "hgt": HGT}[name]
    heads = {"heads": 2} if name in ("rgat", "hgt") else {}
    heads |= {"edge_width": 3} if name == "rgat" else {}
    return config(**OPTIONS, **heads).build_typed(TypedInput(TYPES, (5, 3, 0)), 4).double()


@pytest.mark.parametrize("name", ["rgcn", "rsage", "rgat", "hgt", "own"])
@pytest.mark.parametrize(("parts", "prune", "weighted"), [(1, True, False), (2, False, True), (4, True, True)])
def test_values_and_gradients_are_those_of_the_whole_graph(name, parts, prune, weighted):
    graph, model = WEIGHTED if weighted else DATA.graph, built(name)
    part_of = np.random.default_rng(parts).integers(0, parts, 36)
    case = Case(graph, part_of, parts, DATA.split, X, torch.from_numpy(DATA.labels))
    parameters = list(model.parameters())

    def rank(group):
        share = case.share(group, 2, prune)
        visits = Visits(share, ("halo", "halo"), 64, group)
        fetched = visits.fetch(share.graph)
        h = fetched.h.clone().requires_grad_()
        out = model(fetched.neighbourhoods, h)
        loss = out.square().sum() + 0 * h.sum()
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        with torch.no_grad():
            neighbourhoods, x = visits.everything(share.graph, _Block, 2)
            every = model(neighbourhoods, x)
        return share.graph.names, out.detach(), [torch.zeros(()) if g is None else g for g in grads], every

    ranks = run_threads(rank, parts)
    whole = model([whole_graph(graph, torch.float64)] * 2, torch.from_numpy(X))
    train = torch.from_numpy(np.isin(np.arange(36), DATA.split.train))
    wanted = torch.autograd.grad(whole[train].square().sum() + 0 * whole.sum(), parameters, allow_unused=True)
    for names, out, _, every in ranks:
        torch.testing.assert_close(every, whole[torch.from_numpy(names)].detach(), rtol=1e-10, atol=1e-10)
        seeds = np.isin(names, DATA.split.train)
        at = torch.from_numpy(np.flatnonzero(seeds))
        torch.testing.assert_close(out[at], whole[torch.from_numpy(names[seeds])].detach(), rtol=1e-10, atol=1e-10)
    if prune:  # otherwise the loss of a rank is over all of its rows
        for i, g in enumerate(wanted):
            found = sum(grads[i] for _, _, grads, _ in ranks)
            torch.testing.assert_close(found, torch.zeros_like(found) if g is None else g, rtol=1e-10, atol=1e-10)


class _Block:
    reads_blocks = True


def test_what_one_process_has_alone_is_refused_over_ranks():
    case = Case(DATA.graph, np.arange(36) % 2, 2, DATA.split, X, torch.from_numpy(DATA.labels))

    def rank(group):
        share = case.share(group, 1, False)
        (neighbourhood,) = Visits(share, ("halo",), 64, group).fetch(share.graph).neighbourhoods
        with pytest.raises(InputError, match=r"relation\.compact and relation\.ends name rows"):
            _ = neighbourhood.relations()[0].compact
        with pytest.raises(InputError, match=r"relation\.compact and relation\.ends name rows"):
            neighbourhood.relations()[0].ends(torch.device("cpu"))
        untyped = Visits(replace(share, types=None), ("halo",), 64, group).fetch(share.graph).neighbourhoods[0]
        with pytest.raises(InputError, match="the graph has one type of nodes and edges"):
            untyped.relations()

    run_threads(rank, 2)
