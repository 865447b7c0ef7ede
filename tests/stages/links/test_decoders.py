"""Decoders by their formulas, pair by pair and all against all."""

import numpy as np
import pytest
import torch

from millrace.stages.links.decoders import DECODERS, decoder_of, make_decoder, of_relation
from millrace.storage.errors import InputError


def rows(n, seed, width=6):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, width)))


def expected(name, decoder, u, v):
    if name == "dot":
        return float(u @ v)
    if name == "distmult":
        return float(sum(decoder.weight * u * v))
    if name == "complex":
        a, b = (torch.complex(x[:3], x[3:]) for x in (u, v))
        return float((a * torch.complex(decoder.real, decoder.imaginary) * b.conj()).sum().real)
    hidden = torch.relu(decoder.first.weight @ (u * v) + decoder.first.bias)
    return float(decoder.second.weight[0] @ hidden + decoder.second.bias[0])


@pytest.mark.parametrize("name", DECODERS)
def test_scores_are_the_formula(name):
    torch.manual_seed(0)
    decoder = make_decoder(name, 6).double()
    for p in decoder.parameters():
        torch.nn.init.normal_(p)
    u, v = rows(4, 1), rows(5, 2)
    with torch.no_grad():
        table = decoder.against(u, v)
        wanted = torch.tensor([[expected(name, decoder, a, b) for b in v] for a in u], dtype=torch.float64)
        torch.testing.assert_close(table, wanted)
        torch.testing.assert_close(decoder(u[:, None], v[None]), wanted)
    assert (name == "complex") == bool((decoder(u, u[[1, 0, 3, 2]]) - decoder(u[[1, 0, 3, 2]], u)).abs().max() > 1e-9)


@pytest.mark.parametrize("name", DECODERS)
def test_of_several_relations_each_has_weights_of_its_own(name):
    """Scores are those of a decoder of one relation with that relation's weights."""
    torch.manual_seed(0)
    decoder = make_decoder(name, 6, 3).double()
    for p in decoder.parameters():
        torch.nn.init.normal_(p)
    u, v, relation = rows(4, 1), rows(4, 2), torch.tensor([2, 0, 1, 2])
    several = torch.stack([v, u], 1)
    with torch.no_grad():
        found, both = decoder(u, v, relation), decoder(u[:, None], several, relation)
        for r in range(3):
            alone = make_decoder(name, 6).double()
            state = decoder.state_dict()
            own = {"distmult": ("weight",), "complex": ("real", "imaginary")}.get(name, ())
            alone.load_state_dict({k: t[r] if k in own else t for k, t in state.items() if k != "weight" or own})
            weight = decoder.weight[r] if name == "mlp" else 1.0
            here, bound = relation == r, of_relation(decoder, r)
            torch.testing.assert_close(found[here], alone(u * weight, v)[here])
            torch.testing.assert_close(both[here], alone((u * weight)[:, None], several)[here])
            torch.testing.assert_close(bound(u, v), alone(u * weight, v))
            torch.testing.assert_close(bound.against(u, v), alone.against(u * weight, v))
    assert of_relation(decoder, None) is decoder
    differ = (of_relation(decoder, 0)(u, v) - of_relation(decoder, 1)(u, v)).abs().max() > 1e-9
    assert bool(differ) == (name != "dot")


def test_a_users_decoder_gets_the_relation_of_each_pair():
    scale = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)

    def own(source, destination, relation):
        return (source * destination).sum(-1) * scale[relation]

    bound = of_relation(own, 2)
    assert not hasattr(bound, "against")
    torch.testing.assert_close(bound(rows(4, 1), rows(4, 2)), 100 * (rows(4, 1) * rows(4, 2)).sum(-1))


@pytest.mark.parametrize("destinations", [1, 5, 7, 40])
@pytest.mark.parametrize("name", DECODERS)
def test_equal_rows_have_equal_scores(name, destinations):
    """Matrix libraries round rows of few in different ways."""
    kinds = torch.randn(3, 10, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    u, v = torch.arange(90) % 3, torch.arange(destinations) % 3
    with torch.no_grad():
        scores = make_decoder(name, 10).against(kinds[u], kinds[v])
    for i in range(3):
        for j in range(min(3, destinations)):
            assert len(scores[u == i][:, v == j].unique()) == 1


def test_widths_and_models():
    with pytest.raises(InputError, match="expected an even number"):
        make_decoder("complex", 5)
    model = torch.nn.Module()
    model.decoder = make_decoder("dot", 3)
    assert decoder_of(model) is model.decoder and not list(model.parameters())
