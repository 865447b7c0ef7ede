"""Runs that begin with the parameters of others, which predict the same or something else."""

import numpy as np
import pytest
import torch
from torch import nn

import millrace as mr
from millrace.pipeline.telemetry.events import Note
from millrace.storage.errors import InputError
from millrace.tests.contracts.command import command

V, WIDTH = 80, 6
JOB = {"epochs": 1, "seed": 3, "lr": 0.02, "threads": 1, "fanout": [3, 2], "batch_size": 32, "hidden": WIDTH}
JOB |= {"verbose": False, "model": {"name": "sage", "norm": "layer"}}
STILL = {"lr": 1e-14, "seed": 5}
"""A run that ends with what it began with, to rounding; its own parameters are those of another seed."""


def job_of(unit, **options):
    return {**JOB, **({} if unit == "node" else {"link": {"width": WIDTH}}), **options}


def data_of(unit, classes=3):
    nodes = mr.open_dataset(f"sbm:nodes={V},classes={classes},degree=6,features=5")
    if unit == "pair":
        return mr.link_dataset(nodes)
    if unit == "node":
        return nodes
    rng = np.random.default_rng(0)
    return mr.edge_dataset(nodes, rng.integers(0, V, (200, 2)), rng.integers(0, classes, 200))


def state(folder):
    return torch.load(folder / "model.pt", weights_only=True)


def started(unit, out, **options):
    """The parameters of a run, and what it says of their origin."""
    events = []
    mr.run(options.pop("data", data_of(unit)), out=out, emit=events.append, **job_of(unit, **options))
    told = [e.text for e in events if isinstance(e, Note) and "begin as" in e.text]
    return state(out), told


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A trained run of each kind."""
    folder = tmp_path_factory.mktemp("before")
    for unit in ("node", "pair", "edge"):
        started(unit, folder / unit)
    return folder


def check(found, fresh, given, taken):
    """Parameters whose names begin with one of `taken` are those `given`, the others those of a run of its own."""
    names = {k for k in found if k.startswith(taken)}
    assert names and len(names) < len(found)
    for k, v in found.items():
        assert torch.allclose(v, (given if k in names else fresh)[k], atol=1e-6), k
    assert any(not torch.allclose(given[k], fresh[k], atol=1e-3) for k in names)


@pytest.mark.parametrize(
    ("first", "then", "taken", "said"),
    [
        (
            "pair",
            "node",
            ("convs.0", "norms.0"),
            "(layer 0, norm 0) begin as {} has them, 39 parameters (layer 1) are",
        ),
        ("edge", "node", ("convs.0", "norms.0"), "39 parameters (layer 1) are new"),
        ("node", "pair", ("convs.0", "norms.0"), "78 parameters (layer 1) are new"),
        ("node", "edge", ("convs.0", "norms.0"), "177 parameters (layer 1, decoder) are new"),
        (
            "pair",
            "edge",
            ("convs", "norms"),
            "(layer 0, layer 1, norm 0) begin as {} has them, 99 parameters (decoder)",
        ),
    ],
)
def test_layers_are_taken_and_heads_are_new(before, tmp_path, first, then, taken, said):
    fresh, none = started(then, tmp_path / "fresh", **STILL)
    found, told = started(then, tmp_path / "then", start_from=str(before / first), **STILL)
    check(found, fresh, state(before / first), taken)
    assert not none and len(told) == 1 and said.format(before / first) in told[0]


@pytest.mark.parametrize("decoder", ["distmult", "mlp"])
def test_a_decoder_of_other_relations_is_new(tmp_path, decoder):
    """Whether their number differs or their order alone: its weights are those of places among them."""
    kg = mr.open_dataset("kg:people=40,companies=6,cities=4")
    options = {**JOB, "model": "rgcn", "link": {"width": WIDTH, "decoder": decoder}}

    def run(name, relation, **more):
        mr.run(mr.link_dataset(kg, relation=relation), out=tmp_path / name, **{**options, **more})
        return state(tmp_path / name)

    names = ["lives_in", "works_at"]
    given = run("two", names)
    for relation in ("all", "lives_in", names[::-1], names):
        fresh = run(f"fresh {relation}", relation, **STILL)
        found = run(f"then {relation}", relation, start_from=str(tmp_path / "two"), **STILL)
        for k, v in found.items():
            taken = relation is names or not k.startswith("decoder.")
            assert torch.allclose(v, (given if taken else fresh)[k], atol=1e-6), (relation, k)
    back = run("back", "all", start_from=str(tmp_path / "then lives_in"), **STILL)
    assert all(torch.allclose(back[k], given[k], atol=1e-6) for k in back if not k.startswith("decoder."))


def test_a_decoder_without_parameters_leaves_nothing_new(before, tmp_path):
    found, told = started("pair", tmp_path / "then", start_from=str(before / "edge"), **STILL)
    given = state(before / "edge")
    assert all(torch.allclose(v, given[k], atol=1e-6) for k, v in found.items())
    assert "new" not in told[0] and "156 parameters" in told[0]


def test_a_head_is_new_even_if_its_shapes_agree(tmp_path):
    """Rows of as many columns as there are classes, and a decoder of links with the names of that of edges."""
    narrow = {"link": {"width": 3, "decoder": "mlp"}}
    job = {k: v for k, v in JOB.items() if k != "link"}
    mr.run(data_of("pair"), out=tmp_path / "links", **{**job, **narrow})
    given = state(tmp_path / "links")
    fresh, _ = started("node", tmp_path / "fresh", **STILL)
    found, _ = started("node", tmp_path / "nodes", start_from=str(tmp_path / "links"), **STILL)
    assert {k: v.shape for k, v in found.items()}.items() <= {k: v.shape for k, v in given.items()}.items()
    check(found, fresh, given, ("convs.0", "norms.0"))
    fresh, _ = started("pair", tmp_path / "fresh-links", link={"width": 3}, **STILL)
    started("node", tmp_path / "of-nodes")
    found, _ = started(
        "pair", tmp_path / "from-nodes", link={"width": 3}, start_from=str(tmp_path / "of-nodes"), **STILL
    )
    check(found, fresh, state(tmp_path / "of-nodes"), ("convs.0", "norms.0"))
    targets = mr.edge_dataset(
        mr.open_dataset(f"sbm:nodes={V},features=5"), np.arange(V).reshape(-1, 2), np.arange(40) / 40
    )
    edges = {"data": targets, "link": {"width": 3}}
    fresh, _ = started("edge", tmp_path / "fresh-edges", **edges, **STILL)
    found, _ = started("edge", tmp_path / "edges", **edges, start_from=str(tmp_path / "links"), **STILL)
    assert found["decoder.second.weight"].shape == given["decoder.second.weight"].shape
    check(found, fresh, given, ("convs", "norms"))


def test_all_layers_of_links_are_below_a_new_one_of_nodes(before, tmp_path):
    deeper = {**STILL, "fanout": [3, 2, 2]}
    fresh, _ = started("node", tmp_path / "fresh", **deeper)
    found, told = started("node", tmp_path / "then", start_from=str(before / "pair"), **deeper)
    check(found, fresh, state(before / "pair"), ("convs.0", "convs.1", "norms.0"))
    assert "(layer 2, norm 1) are new" in told[0]


@pytest.mark.parametrize("unit", ["node", "edge"])
def test_other_classes_have_a_new_head(before, tmp_path, unit):
    data = data_of(unit, 4)
    fresh, _ = started(unit, tmp_path / "fresh", data=data, **STILL)
    found, _ = started(unit, tmp_path / "then", data=data, start_from=str(before / unit), **STILL)
    kept = ("convs.0", "norms") if unit == "node" else ("convs", "norms", "decoder.first")
    check(found, fresh, state(before / unit), kept)


def test_a_run_of_the_same_takes_all_whatever_its_seed(before, tmp_path):
    found, told = started("node", tmp_path / "then", start_from=str(before / "node"), **STILL)
    assert all(torch.allclose(v, state(before / "node")[k], atol=1e-6) for k, v in found.items())
    assert "new" not in told[0]


def test_relations_and_several_ranks(tmp_path):
    data = mr.open_dataset("hsbm:nodes=60,features=4")
    options = {"model": {"name": "rsage"}, "fanout": [2, 2]}
    links = mr.link_dataset(data, relation=data.graph.types.relations[0])
    started("pair", tmp_path / "links", data=links, **options)
    fresh, _ = started("node", tmp_path / "fresh", data=data, **options, **STILL)
    for ranks in (1, 2):
        more = {"start_from": str(tmp_path / "links"), "ranks": ranks, "batch_size": 32 // ranks}
        found, _ = started("node", tmp_path / f"{ranks}", data=data, **{**options, **STILL, **more})
        check(found, fresh, state(tmp_path / "links"), ("convs.0",))


class Own(nn.Module):
    num_layers = 2

    def __init__(self, width):
        super().__init__()
        self.below, self.above = nn.Linear(5, WIDTH), nn.Linear(WIDTH, width)

    def layer(self, i, neighbourhood, h):
        return self.above(neighbourhood.mean(h)) if i else self.below(neighbourhood.mean(h)).relu()


def test_a_module_of_ones_own_takes_what_has_its_name_and_shape(tmp_path):
    torch.manual_seed(0)
    job = {k: v for k, v in JOB.items() if k not in ("hidden", "model")}
    mr.run(data_of("pair"), out=tmp_path / "links", model=Own(WIDTH), **{**job, "link": {"width": WIDTH}})
    module = Own(3)
    fresh = {k: v.clone() for k, v in module.state_dict().items()}
    start = {**job, **STILL, "model": module, "start_from": str(tmp_path / "links")}
    mr.run(data_of("node"), out=tmp_path / "nodes", **start)
    check(state(tmp_path / "nodes"), fresh, state(tmp_path / "links"), ("below",))


def test_what_does_not_fit_is_refused_before_anything_is_written(before, tmp_path):
    other = {"hidden": WIDTH + 1}
    for unit, options, said in (
        ("node", other, r"start_from: nothing of .* \(of pairs\) fits the model here \(of nodes\), whose head is new"),
        ("edge", other, r"nothing of .* \(of pairs\) fits the model here \(of edges\)"),
        ("node", {"data": "sbm:nodes=50,classes=3,features=7", "fanout": [3, 2, 2]}, "and features, and two layers"),
        ("node", {"fanout": [3]}, r"give both the same model options and features, and two layers or more"),
        ("node", {"model": {"name": "gcn"}}, r"that run has model.name = 'sage', this one 'gcn'; give both the same"),
        (
            "pair",
            other,
            r"another model: it has \[6, 5\] for 'convs.0.neighbours.weight', and the model here \[7, 5\]",
        ),
    ):
        data = options.pop("data", data_of(unit))
        with pytest.raises(InputError, match=said):
            mr.run(data, out=tmp_path / "run", start_from=str(before / "pair"), **job_of(unit, **options))
        assert not (tmp_path / "run").exists()


def test_the_command_says_it_and_a_resumed_run_does_not(before, tmp_path):
    words = ["--dataset", f"sbm:nodes={V},classes=3,degree=6,features=5", "--fanout", "3,2", "--hidden", WIDTH]
    words += ["--set", "model.norm=layer", "--set", f"start_from={before / 'pair'}", "--out", tmp_path / "run"]
    code, _, error = command("run", *words, "--epochs", 1)
    assert code == 0 and f"begin as {before / 'pair'} has them, 39 parameters (layer 1) are new." in error
    code, _, error = command("run", "--resume", "--out", tmp_path / "run", "--epochs", 2)
    assert code == 0 and "begin as" not in error


def tables(folder, columns="x1,x2", names=("ann", "bob", "cid"), factor=1.0):
    """Tables of 60 nodes with two columns of features and three classes."""
    folder.mkdir()
    rows = [(i, factor * (i % 3 + i / 60), i % 7, names[i % 3]) for i in range(60)]
    swapped = columns != "x1,x2"
    text = "".join(f"n{i},{b if swapped else a},{a if swapped else b},{label}\n" for i, a, b, label in rows)
    (folder / "nodes.csv").write_text(f"id,{columns},label\n{text}")
    (folder / "edges.csv").write_text("src,dst\n" + "".join(f"n{i},n{(i + 3) % 60}\n" for i in range(60)))
    return str(folder)


READ = {"read": {"direction": "directed", "feature_columns": "*", "normalize_features": "standard"}}


def test_columns_and_classes_are_compared_by_name(tmp_path):
    base = tmp_path / "base"
    started("node", base, data=tables(tmp_path / "t"), **READ)
    again = {"start_from": str(base), **STILL, **READ}
    _, told = started("node", tmp_path / "same", data=str(tmp_path / "t"), **again)
    assert "are new" not in told[0]
    _, told = started("node", tmp_path / "zoe", data=tables(tmp_path / "z", names=("zoe", "bob", "cid")), **again)
    assert "parameters (layer 1) are new" in told[0]
    with pytest.raises(
        InputError, match=rf"features of nodes are x2, x1, and those of {base} x1, x2; give them in that"
    ):
        started("node", tmp_path / "none", data=tables(tmp_path / "s", "x2,x1"), **again)
    events = []
    for name, more in (("other", {"columns": "x1,x3"}), ("scaled", {"factor": 3.0})):
        data = tables(tmp_path / f"{name}_tables", **more)
        mr.run(data, out=tmp_path / name, emit=events.append, **job_of("node", **again))
    notes = [e.text for e in events if isinstance(e, Note) and e.text.startswith("start_from")]
    assert notes == [
        f"start_from: the features of nodes are x1, x3, and those of {base} x1, x2, in that order.",
        f"start_from: the features of nodes are scaled and filled by other numbers than those of {base}.",
    ]
