"""What the data have and the model does not read is said once, by name."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import millrace as mr
from millrace.pipeline.not_read import idle_patience
from millrace.pipeline.setup.configure import configure
from millrace.pipeline.setup.prepare import prepare
from millrace.pipeline.telemetry.events import Note

data_of = pytest.importorskip("torch_geometric.data")
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0, 3]])
NOTE = "reads no features of edges: edge_attr ({}) is not read"


def notes_of(tmp_path, model, sampler=None, about="not read", **attributes):
    data = data_of.Data(x=torch.randn(6, 4), edge_index=EDGES, y=torch.arange(6) % 2, **attributes)
    seen = []
    options = {"fanout": [2] * model.layers} if sampler is None else {}
    mr.run(
        data, model=model, system=sampler, out=tmp_path / "run", epochs=1, split="fraction:0.5,0.2",
        emit=lambda e: seen.append(e.text) if isinstance(e, Note) else None, read={"direction": "directed"}, **options,
    )  # fmt: skip
    return [text for text in seen if about in text]


@pytest.mark.parametrize("columns", [1, 3])
def test_features_of_edges(tmp_path, columns):
    (said,) = notes_of(tmp_path, mr.GraphSAGE(hidden=4, layers=1), edge_attr=torch.rand(7, columns))
    assert NOTE.format("1 column" if columns == 1 else "3 columns") in said
    assert ("as edge_weight it would be the weight of each edge" in said) == (columns == 1)


def test_a_model_that_reads_them_says_nothing(tmp_path):
    assert not notes_of(tmp_path, mr.GINE(hidden=4, layers=1), edge_attr=torch.rand(7, 2))
    assert not notes_of(tmp_path / "w", mr.GCN(hidden=4, layers=1), edge_weight=torch.rand(7))


def test_weights_that_attention_does_not_read(tmp_path):
    (said,) = notes_of(tmp_path, mr.GAT(hidden=4, heads=2, layers=1), edge_weight=torch.rand(7))
    assert said == "the model gat reads no weights of edges: edge_weight is not read."
    drawn = mr.bulk(mr.NeighborSampler((2,), weighted=True))
    assert not notes_of(tmp_path / "drawn", mr.GAT(hidden=4, heads=2, layers=1), drawn, edge_weight=torch.rand(7))


@pytest.mark.parametrize("system", ["bulk", "sar"])
def test_times_that_the_sampler_does_not_read(tmp_path, system):
    notes: list[str] = []
    times = {"edge_time": torch.arange(7), "node_time": torch.arange(6)}
    for name, kind in {"drawn": system, "timed": mr.bulk(mr.TemporalSampler((2,)))}.items():
        data = data_of.Data(x=torch.randn(6, 4), edge_index=EDGES, y=torch.arange(6) % 2, **times)
        mr.run(
            data, model=mr.GraphSAGE(hidden=4, layers=1), system=kind, out=tmp_path / name, epochs=1,
            split="until:2,3", read={"direction": "directed"}, **({"fanout": [2]} if kind == "bulk" else {}),
            emit=lambda e: notes.append(e.text) if isinstance(e, Note) else None,
        )  # fmt: skip
    assert ["the times of edges are not read" in text for text in notes].count(True) == 1


def test_attributes_of_pygs_data_that_nothing_reads(tmp_path):
    said = notes_of(tmp_path, mr.GraphSAGE(hidden=4, layers=1), pos=torch.rand(6, 2), edge_type=torch.zeros(7))
    assert said == ["the PyG data has pos and edge_type, which are not read."]
    hetero = data_of.HeteroData()
    hetero["a"].x, hetero["a"].y, hetero["a"].kind = torch.rand(3, 2), torch.tensor([0, 1, 0]), torch.zeros(3)
    hetero["a", "to", "a"].edge_index = torch.tensor([[0, 1], [1, 2]])
    notes = mr.from_pyg(hetero).notes
    assert "'a' has kind, which is not read." in notes and np.sum(["not read" in n for n in notes]) == 1


@pytest.mark.parametrize("typed", [False, True])
def test_pairs_of_pygs_data_that_nothing_reads(typed):
    data = data_of.HeteroData() if typed else data_of.Data()
    store = data["a", "to", "a"] if typed else data
    (data["a"] if typed else data).x, store.edge_index = torch.rand(6, 2), EDGES
    store.edge_label_index, store.edge_label = EDGES, torch.arange(7) % 2
    given = {} if typed else {"direction": "directed"}
    for task, options in {"link": {}, "binary": {"labels_of": "edges"}}.items():
        read = mr.ReadOptions(task=task, **given, **options)
        found = mr.open_dataset(data, options=read, split="fraction:0.4,0.3")
        assert ["edge_label_index is not read" in n for n in found.notes].count(True) == (task == "link")


@pytest.mark.parametrize("sampler", [mr.NeighborSampler, mr.LaborSampler])
def test_edges_of_weight_0_that_a_whole_row_has(tmp_path, sampler):
    whole = "fanout -1 takes rows whole, and a weighted sampler weighs their edges alike"
    cases = ((-1, True, 2, 1), (-1, True, 0, 1), (9, True, 2, 0), (-1, False, 2, 0))
    for number, (fanout, weighted, zeros, said) in enumerate(cases):
        system = mr.bulk(sampler((fanout,), weighted=weighted))
        weight = {"edge_weight": torch.tensor([0.0, 1, 2, 0, 1, 1, 3]) + (zeros == 0)}
        notes = notes_of(tmp_path / str(number), mr.GCN(hidden=4, layers=1), system, "rows whole", **weight)
        them = f", {zeros} edges of weight 0 too" if zeros else ""
        assert notes == said * [f"{whole}{them}; evaluation does not."]


@pytest.mark.parametrize("sampler", [mr.NeighborSampler, mr.LaborSampler])
def test_a_weighted_sampler_weighs_the_edges_of_a_whole_row_alike(sampler):
    """As the note on fanout -1 says: each edge stands for an equal share of the row's weight."""
    weight = np.array([0.0, 1, 2, 0, 1, 1, 3], np.float32)
    data = data_of.Data(x=torch.ones(6, 1), edge_index=EDGES, edge_weight=torch.from_numpy(weight), y=torch.zeros(6))
    graph = mr.from_pyg(data, options=mr.ReadOptions(direction="directed")).graph
    (batch,) = mr.sample_minibatches(graph, sampler((-1,), weighted=True), np.arange(6))
    (block,), (into_3,) = batch.blocks, [weight[EDGES.numpy()[1] == 3]]
    first, last = block.indptr[block.src.tolist().index(3) :][:2]
    assert len(into_3) == last - first == 2
    assert block.weight[first:last].tolist() == [into_3.sum() / 2] * 2


def test_epochs_of_one_step_are_said(tmp_path):
    """And the batch size that is named takes several steps."""
    seen = []
    options = {"split": "fraction:0.1,0.2", "fanout": [2, 2], "hidden": 8, "epochs": 2}
    for name, size in (("one", 1024), ("several", 16)):
        took = mr.run(
            "digits", out=tmp_path / name, batch_size=size, **options,
            emit=lambda e: seen.append(e.text) if isinstance(e, Note) and "one step" in e.text else None,
        )  # fmt: skip
    start = "Each epoch is one step of the optimiser: 1 minibatch of 1,024 seeds would hold all 180."
    assert seen == [f"{start} More steps: e.g. --batch-size 16."]
    assert took.minibatches == 2 * 12


def test_times_of_nodes_alone_are_not_called_those_of_edges(tmp_path):
    """Which the temporal sampler would need."""
    data, notes = mr.open_dataset("karate"), list[str]()
    data = replace(data, graph=replace(data.graph, node_time=np.arange(data.num_nodes)))
    mr.run(
        data, epochs=1, fanout=[2], out=tmp_path, emit=lambda e: notes.append(e.text) if isinstance(e, Note) else None
    )
    said = "the times of nodes are not read when neighbours are drawn, so nodes see later ones too."
    assert said in notes and not any("times of edges" in text for text in notes)


@pytest.mark.parametrize(
    ("epochs", "patience", "before", "options"),
    [
        (7, 3, "3 validations", {}),
        (7, 2, "", {}),
        (6, 2, "2 validations", {}),
        (3, 1, "1 validation", {}),
        (3, 1, "1 validation", {"system": "retexo"}),
        # The end of a super-epoch is validated too.
        (6, 2, "", {"system": "grappa", "grappa": {"repartition_every": 1}}),
    ],
)
def test_patience_that_never_runs_out(tmp_path, epochs, patience, before, options):
    job = configure({"epochs": epochs, "train": {"patience": patience, "evaluate_every": 2}}, **options)
    prepared = prepare(job, mr.open_dataset("sbm:nodes=60,classes=2,features=3"))
    wanted = f"train.patience={patience} cannot run out in {before} before the last epoch."
    assert list(idle_patience(prepared)) == [wanted] * bool(before)


def test_keys_that_memory_and_a_stored_split_do_without(tmp_path):
    def said(dataset, **options):
        seen = []
        mr.dry_run(dataset, out=tmp_path / "run", emit=seen.append, **options)
        return [e.text.partition(" is set")[0] for e in seen if isinstance(e, Note) and "is not read" in e.text]

    keys = {"bulk": {"prefetch_bytes": 4096}, "seeds": {"split": 3}}
    assert said("karate", **keys) == ["bulk.prefetch_bytes", "seeds.split"]
    assert said("karate", **keys, split="fraction:0.5,0.2") == ["bulk.prefetch_bytes"]
    mr.convert("karate", tmp_path / "store", features="npy")
    assert said(tmp_path / "store", **keys, features="mapped") == ["seeds.split"]
    hot: Any = {"bulk": {"hot_by": "degree"}}
    assert said("karate", **hot) == said("karate", **hot, features="owned") == ["bulk.hot_by"]
    assert not said("karate", bulk={"hot_by": "degree", "cache_fraction": 0.1}, features="owned")
    assert not said("karate", seeds={"initial": 3})
