"""People's own tables are read rightly, or refused: the same in memory and out of core, unless said."""

import json
import subprocess

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.pipeline.datasets.readers import described
from millrace.pipeline.datasets.readers.parquet import are_numbers
from millrace.storage.errors import InputError
from millrace.tests.contracts.ingest import same

V = 24
ORDER = np.random.default_rng(7).permutation(V)
"""Id of the node in each row."""
SPLIT = ["train", "val", "test"]


def edges_csv(src="src", dst="dst", more=""):
    rows = "".join(f"{v},{(v * 5 + 1) % V}{',1' if more else ''}\n" for v in range(V))
    return f"{src},{dst}{more and ',' + more}\n{rows}"


def nodes_csv(header, row):
    return header + "\n" + "".join(",".join(map(str, row(int(v)))) + "\n" for v in ORDER)


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name.replace('__', '.')}.csv").write_text(text)
    return folder


def check(data):
    """The labels and features are those of the node with the id v."""
    ids = [int(n) for n in data.node_names] if data.node_names else range(data.num_nodes)
    kinds = [(data.class_names or ("0", "1", "2"))[k] for k in data.labels]
    assert [(int(k[-1]), int(x)) for k, x in zip(kinds, data.features.gather(np.arange(V)).ravel())] == [
        (v % 3, 100 + v // 2) for v in ids
    ]


OPTIONS = {"direction": "directed", "feature_columns": "age", "label_columns": "kind"}


@pytest.mark.parametrize("word", ["Node ID", "VERTEX", "customerId", "key_id", "__index_level_0__", "Unnamed: 0", ""])
def test_ids_under_any_word(tmp_path, word):
    folder = write(
        tmp_path / "g",
        nodes=nodes_csv(f"{word},age,kind", lambda v: (v, 100 + v // 2, f"k{v % 3}")),
        edges=edges_csv("startNode", "endNode"),
    )
    check(same(folder, tmp_path, mr.ReadOptions(**OPTIONS), split="fraction:0.5,0.2"))


def test_typed_tables_likewise(tmp_path):
    folder = write(
        tmp_path / "g",
        nodes_person=nodes_csv("personId,age,kind", lambda v: (v, 100 + v // 2, f"k{v % 3}")),
        nodes_firm="firm_id,size\n1,5\n0,6\n",
        edges_person_works_at_firm="personId,firmId\n" + "".join(f"{v},{v % 2}\n" for v in range(V)),
    )
    options = mr.ReadOptions(**OPTIONS)
    with pytest.raises(InputError, match=r"edges-person-works_at-firm has no column 'src'; it holds personId, firmId"):
        mr.open_dataset(folder, options=options)
    named = mr.ReadOptions(**OPTIONS, src="personId", dst="firmId")
    data = same(folder, tmp_path, named, split="fraction:0.5,0.2")
    assert data.graph.types.node_types == ("person", "firm")
    assert data.features.gather(np.arange(V))[:, 0].tolist() == [100 + v // 2 for v in range(V)]


def test_shards_without_ids_are_in_the_order_of_their_numbers(tmp_path):
    (folder := tmp_path / "g").mkdir()
    for k in range(12):
        part = {"age": [100 + v // 2 for v in (2 * k, 2 * k + 1)], "kind": [f"k{v % 3}" for v in (2 * k, 2 * k + 1)]}
        pq.write_table(pa.table(part), folder / f"nodes-{k}.parquet")
    (folder / "edges.csv").write_text(edges_csv())
    check(same(folder, tmp_path, mr.ReadOptions(**OPTIONS), split="fraction:0.5,0.2"))


SPLITS = {
    "flags": ("train_mask,val_mask,test_mask", lambda s: [str(s == p) for p in SPLIT]),
    "bits": ("is_train,is_valid,is_test", lambda s: [int(s == p) for p in SPLIT]),
    "bare": ("train,validation,test", lambda s: [("" if s != p else 1) for p in SPLIT]),
    "column": ("Set", lambda s: [{"train": "Training", "val": "VALID", "test": "test"}[s]]),
    "mask": ("mask", lambda s: [s]),
}


@pytest.mark.parametrize("form", SPLITS)
def test_splits_in_any_form_are_read(tmp_path, form):
    columns, row = SPLITS[form]
    folder = write(
        tmp_path / "g",
        nodes=nodes_csv(f"id,age,kind,{columns}", lambda v: (v, 100 + v // 2, f"k{v % 3}", *row(SPLIT[(v // 3) % 3]))),
        edges=edges_csv(),
    )
    for features in ("age", "*"):
        data = same(folder, tmp_path, mr.ReadOptions(**{**OPTIONS, "feature_columns": features}))
        check(data)
        for part in SPLIT:
            assert getattr(data.split, part).tolist() == [v for v in range(V) if SPLIT[(v // 3) % 3] == part]
        assert not any("stores no split" in note for note in data.notes)


def test_flags_that_are_none_and_nodes_in_two_sets(tmp_path):
    nodes = nodes_csv("id,age,kind,test", lambda v: (v, 100 + v // 2, f"k{v % 3}", v))
    folder = write(tmp_path / "g", nodes=nodes, edges=edges_csv())
    told = r"column nodes\.test holds \d+, and by its name flags the nodes of a set; .* set read\.split=none"
    with pytest.raises(InputError, match=told):
        mr.open_dataset(folder, options=mr.ReadOptions(**OPTIONS))
    check(same(folder, tmp_path, mr.ReadOptions(**OPTIONS, split="none"), split="fraction:0.5,0.2"))
    nodes = nodes_csv("id,age,kind,train,test", lambda v: (v, 100 + v // 2, f"k{v % 3}", 1, int(v < 3)))
    folder = write(tmp_path / "h", nodes=nodes, edges=edges_csv())
    with pytest.raises(InputError, match="3 nodes of the test split"):
        mr.open_dataset(folder, options=mr.ReadOptions(**OPTIONS))
    data = same(folder, tmp_path, mr.ReadOptions(**OPTIONS, overlapping_splits="first"))
    assert len(data.split.train) == V


def test_edges_with_ends_that_are_no_nodes(tmp_path):
    nodes = nodes_csv("id,age,kind", lambda v: (v, 100 + v // 2, f"k{v % 3}"))
    edges = edges_csv(more="weight") + "3,99,5\n-4,7,5\n99,2,5\n"
    folder = write(tmp_path / "g", nodes=nodes, edges=edges)
    with pytest.raises(InputError, match=r"destination|source"):
        mr.open_dataset(folder, options=mr.ReadOptions(**OPTIONS))
    data = same(folder, tmp_path, mr.ReadOptions(**OPTIONS, dangling_edges="drop"), split="fraction:0.5,0.2")
    check(data)
    assert data.graph.num_edges == V and set(data.graph.edge_weight.tolist()) == {1.0}
    assert "3 edges of edges were left out, since an end is no node (dangling_edges=drop)." in data.notes
    given = {**OPTIONS, "dangling_edges": "add", "missing_ids": "compact", "nan_features": "zero"}
    data = same(folder, tmp_path, mr.ReadOptions(**given), split="fraction:0.5,0.2")
    names = list(data.node_names)
    assert data.num_nodes == V + 2 and (names[0], names[-1]) == ("-4", "99")
    assert data.labels[0] == data.labels[-1] == -1 and data.graph.num_edges == V + 3


@pytest.mark.parametrize("how", ["mean", "median", "indicator"])
def test_features_of_edges_are_filled_by_those_that_are_kept(tmp_path, how):
    nodes = nodes_csv("id,age,kind", lambda v: (v, 100 + v // 2, f"k{v % 3}"))
    edges = edges_csv(more="feature_0") + "3,4,\n99,2,1000\n99,3,\n"
    given = mr.ReadOptions(**OPTIONS, dangling_edges="drop", nan_features=how, duplicates="keep")
    data = same(write(tmp_path / "g", nodes=nodes, edges=edges), tmp_path, given, split="fraction:0.5,0.2")
    x = data.graph.edge_features.gather(np.arange(data.graph.num_edges))
    assert x.max() == 1
    assert x.shape[1] == 1 + (how == "indicator")


def test_a_file_of_edges_without_rows(tmp_path):
    nodes = nodes_csv("id,age,kind", lambda v: (v, 100 + v // 2, f"k{v % 3}"))
    folder = write(tmp_path / "g", nodes=nodes, edges="src,dst\n")
    for read in (
        mr.open_dataset,
        lambda path, options: mr.convert(path, tmp_path / "o", options=options, verbose=False),
    ):
        with pytest.raises(InputError, match=r"edges\.csv has a header and no rows"):
            read(folder, options=mr.ReadOptions(**OPTIONS))


def test_labels_of_edges_are_not_their_weights(tmp_path):
    nodes = nodes_csv("id,age", lambda v: (v, v))
    folder = write(tmp_path / "g", nodes=nodes, edges=edges_csv(more="weight"))
    options = mr.ReadOptions(direction="directed", labels_of="edges", label_columns="weight", task="regression")
    data = same(folder, tmp_path, options, split="fraction:0.5,0.2")
    assert not data.graph.is_weighted and data.labels.ravel().tolist() == [1.0] * V


def test_links_are_not_split_at_random_beside_a_column_of_sets(tmp_path):
    rows = "".join(f"{v},{(v * 5 + 1) % V},{SPLIT[v % 3]}\n" for v in range(V))
    folder = write(tmp_path / "g", nodes=nodes_csv("id,age", lambda v: (v, v)), edges="src,dst,set\n" + rows)
    links = {"direction": "directed", "task": "link"}
    with pytest.raises(InputError, match=r"edges has the column set, and links are not divided by it: .* pairs=FILE"):
        mr.open_dataset(folder, options=mr.ReadOptions(**links))
    drawn = mr.open_dataset(folder, options=mr.ReadOptions(**links, split="none"), split="fraction:0.5,0.2")
    assert drawn.task == "link"


def test_a_split_of_lists_is_none(tmp_path):
    (folder := tmp_path / "g").mkdir()
    pq.write_table(pa.table({"label": [0, 1] * 6, "split": [[1.0]] * 12}), folder / "nodes.parquet")
    (folder / "edges.csv").write_text("src,dst\n0,1\n1,2\n")
    with pytest.raises(InputError, match=r"column nodes\.split is list.*set read\.split=none"):
        mr.open_dataset(folder, options=mr.ReadOptions(direction="directed"))


def test_a_file_of_pairs_in_the_folder_is_no_table_of_its_edges(tmp_path):
    rows = "".join(f"{v},{(v * 5 + 1) % V},{SPLIT[v % 3]}\n" for v in range(V))
    folder = write(tmp_path / "g", nodes=nodes_csv("id,age", lambda v: (v, v)), edges="src,dst,split\n" + rows)
    links = {"direction": "directed", "task": "link"}
    both = mr.open_dataset(folder, options=mr.ReadOptions(**links, pairs=str(folder / "edges.csv")))
    assert len(both.split.val) == V // 3
    (folder / "edges_sets.csv").write_text("src,dst,split\n" + rows)
    (folder / "edges.csv").write_text(edges_csv())
    beside = mr.open_dataset(folder, options=mr.ReadOptions(**links, pairs=str(folder / "edges_sets.csv")))
    assert len(beside.split.val) == V // 3
    assert "edges_sets.csv was left out: it is the file of pairs." in beside.notes
    with pytest.raises(InputError, match="several tables of edges"):
        mr.open_dataset(folder, options=mr.ReadOptions(**links))


def test_inspect_shows_the_role_of_each_column(tmp_path):
    from millrace.tests.contracts.command import command

    nodes = nodes_csv("customerId,age,kind,city", lambda v: (v, 100 + v // 2, f"k{v % 3}", "x"))
    folder = write(tmp_path / "g", nodes=nodes, edges=edges_csv("from", "to"))
    sets = [f"read.{key}={value}" for key, value in OPTIONS.items()]
    code, out, err = command("inspect", folder, *(part for text in sets for part in ("--set", text)), "--json")
    assert code == 0, err
    shown = json.loads(out)
    assert shown["nodes.customerId"] == "id (by its name)" and shown["edges.to"] == "target (by its name)"
    assert (
        shown["nodes.age"] == "feature (read.feature_columns)" and shown["nodes.kind"] == "label (read.label_columns)"
    )
    assert shown["nodes.city"].startswith("not read") and shown["files of nodes"] == "nodes.csv"


IDS = [f"u{i}" for i in range(12)]
RING = "src,dst\n" + "".join(f"u{i},u{(i + 1) % 12}\n" for i in range(12))


def both_ways(tmp_path, nodes, edges=RING, **options):
    """What `open_dataset` and `convert` make of two tables: datasets, or what they refuse."""
    (tmp_path / "g").mkdir()
    (tmp_path / "g/edges.csv").write_text(edges)
    (tmp_path / "g/nodes.csv").write_text(nodes)
    given, found = mr.ReadOptions(direction="directed", **options), []
    for way in ("open", "convert"):
        try:
            if way == "convert":
                mr.convert(tmp_path / "g", tmp_path / "s", options=given, verbose=False)
            found.append(
                mr.open_dataset(
                    tmp_path / ("s" if way == "convert" else "g"), **({} if way == "convert" else {"options": given})
                )
            )
        except mr.InputError as e:
            found.append(str(e).replace("read.", ""))
    return found


@pytest.mark.parametrize("words", [("yes", "no"), ("T", "F"), ("Y", ""), (1, 0), ("TRUE", "False")])
@pytest.mark.parametrize("form", ["{}_mask", "is_{}", "{}_idx"])
def test_masks_of_text_are_read(tmp_path, words, form):
    sets = ["train"] * 6 + ["val"] * 3 + ["test"] * 3
    header = ",".join(form.format(part) for part in ("train", "val", "test"))
    rows = (",".join(str(words[own != part]) for part in ("train", "val", "test")) for own in sets)
    nodes = f"id,label,{header}\n" + "".join(f"{v},{i % 2},{row}\n" for i, (v, row) in enumerate(zip(IDS, rows)))
    for data in both_ways(tmp_path, nodes):
        assert [getattr(data.split, part).tolist() for part in ("train", "val", "test")] == [
            [0, 1, 2, 3, 4, 5], [6, 7, 8], [9, 10, 11]
        ]  # fmt: skip


@pytest.mark.parametrize(("column", "values", "text"), [
    ("train_mask", ["maybe"] * 12, "column nodes.train_mask holds 'maybe', and by its name flags"),
    ("train", ["yes", "no"] * 6, "the column 'train' of nodes is not read, but holds no, yes; set split=train"),
])  # fmt: skip
def test_masks_that_are_none_are_refused(tmp_path, column, values, text):
    nodes = f"id,label,{column}\n" + "".join(f"{v},{i % 2},{values[i]}\n" for i, v in enumerate(IDS))
    first, second = both_ways(tmp_path, nodes)
    assert first == second and text in first


def test_a_column_of_other_text_is_no_mask(tmp_path):
    nodes = "id,label,test\n" + "".join(f"{v},{i % 2},test {i % 3}\n" for i, v in enumerate(IDS))
    for data in both_ways(tmp_path, nodes):
        assert "Columns of nodes that are not numeric were not read: test." in data.notes


@pytest.mark.parametrize(("nodes", "edges", "text"), [
    ("label\n" + "0\n1\n" * 6, "src,dst\n" + "".join(f"{i + 1},{(i + 1) % 12 + 1}\n" for i in range(12)),
     "edge source ids lie in [1, 12], out of range for 12 nodes; expected [0, 12): they seem to be numbered from 1"),
    ("id,label\n" + "".join(f"{v},0\n" for v in [*IDS, "u3"]), RING + "u1,\n", "nodes.id holds 'u3' more than once"),
    ("id,label\n" + "".join(f"{v},0\n" for v in IDS), "src,dst,weight\nu1,u2,high\n", "column edges.weight is"),
])  # fmt: skip
def test_both_ways_say_the_same(tmp_path, nodes, edges, text):
    first, second = both_ways(tmp_path, nodes, edges)
    assert first == second and text in first and "one_hot" not in first


def test_other_tables_of_a_folder_are_named(tmp_path):
    nodes = "id,label\n" + "".join(f"{v},{i % 2}\n" for i, v in enumerate(IDS))
    first, _ = both_ways(tmp_path, nodes)
    (tmp_path / "g/labels.csv").write_text("id,label\n")
    assert not any("left out" in note for note in first.notes)
    again = mr.open_dataset(tmp_path / "g", options=mr.ReadOptions(direction="directed"))
    assert "labels.csv was left out: it is no table of nodes* or edges* by its name." in again.notes


@pytest.mark.parametrize("names", [("musae_edges.csv", "musae_target.csv"), ("got-edges.csv", "got-nodes.csv")])
def test_files_with_a_name_before_edges(tmp_path, names):
    edges, nodes = (tmp_path / name for name in names)
    edges.write_text(RING)
    nodes.write_text("id,label\n" + "".join(f"{v},{i % 2}\n" for i, v in enumerate(IDS)))
    with pytest.raises(InputError, match=f"give it: millrace inspect .*{names[0]}"):
        mr.open_dataset(tmp_path)
    data = mr.open_dataset(edges, options=mr.ReadOptions(direction="directed"))
    assert data.num_classes == 2 and f"The nodes were read from {nodes}." in data.notes


def test_numbers_that_are_text(tmp_path):
    """Text of numbers in Parquet is read as numbers; other text is named with its first value, that of all tables."""
    (folder := tmp_path / "g").mkdir()
    nodes = {"id": list(range(V)), "age": [f"{v}.5" for v in range(V)], "label": [v % 2 for v in range(V)]}
    edges = {"src": list(range(V)), "dst": [(v + 1) % V for v in range(V)], "weight": ["2"] * V}
    pq.write_table(pa.table(nodes), folder / "nodes.parquet")
    pq.write_table(pa.table(edges), folder / "edges.parquet")
    options = mr.ReadOptions(direction="directed", feature_columns="age")
    data = same(folder, tmp_path, options)
    assert data.features.gather(np.arange(V)).ravel().tolist() == [v + 0.5 for v in range(V)]
    assert data.graph.edge_weight.tolist() == [2] * V
    pq.write_table(pa.table(nodes | {"age": ["7", "old"] * (V // 2)}), folder / "nodes.parquet")
    pq.write_table(pa.table(edges | {"weight": ["1", "1,000"] * (V // 2)}), folder / "edges.parquet")
    told = r"2 problems: .*nodes.age is string; .* not 'old': .*edges.weight is string; .* not '1,000': .*one_hot=age$"
    with pytest.raises(InputError, match=told) as want:
        mr.open_dataset(folder, options=options)
    with pytest.raises(InputError) as got:
        mr.convert(folder, tmp_path / "out", options=options, verbose=False)
    assert str(got.value).replace("read.", "") == str(want.value).replace("read.", "")


def test_text_behind_many_numbers_is_found_in_few_looks(tmp_path, monkeypatch):
    looks, count = [], 20_000
    ages = [f"{v}.5" for v in range(count)]
    ages[-300:] = ["old"] + [""] * 299
    nodes = {"id": range(count), "age": ages, "label": [v % 2 for v in range(count)]}
    pq.write_table(pa.table(nodes), tmp_path / "nodes.parquet")
    pq.write_table(pa.table({"src": [0, 1], "dst": [1, 0]}), tmp_path / "edges.parquet")
    monkeypatch.setattr(described, "are_numbers", lambda column: looks.append(len(column)) or are_numbers(column))
    with pytest.raises(InputError, match="not 'old': leave the field empty where the number is not known"):
        mr.open_dataset(tmp_path, options=mr.ReadOptions(feature_columns="age"))
    assert len(looks) < 20


@pytest.mark.parametrize(("ids", "ends"), [("{}.0", "{}.0"), ("{}", "{}.0"), ("{}.0", "{}")])
def test_ids_that_were_floating_point_numbers_once(tmp_path, ids, ends):
    """As pandas writes a column of whole numbers some of which are missing."""
    folder = write(
        tmp_path / "g",
        nodes=nodes_csv("id,age,kind", lambda v: (ids.format(v), 100 + v // 2, f"k{v % 3}")),
        edges="src,dst\n" + "".join(f"{ends.format(v)},{ends.format((v * 5 + 1) % V)}\n" for v in range(V)),
    )
    data = same(folder, tmp_path, mr.ReadOptions(**OPTIONS), split="fraction:0.5,0.2")
    assert data.node_names is None
    check(data)
    table = pa.table({"id": np.arange(3.0), "label": [0, 1, 1]})
    pq.write_table(table, mkdir(tmp_path / "p") / "nodes.parquet")
    (tmp_path / "p" / "edges.csv").write_text("src,dst\n0,1\n")
    with pytest.raises(
        InputError, match=r"nodes\.id is double; .* write them as int64, by \.astype\('int64'\) in pandas"
    ):
        mr.open_dataset(tmp_path / "p", options=mr.ReadOptions(direction="directed"))


def mkdir(folder):
    folder.mkdir()
    return folder


@pytest.mark.parametrize("code", ["utf-16", "utf-16le", "utf-16be", "latin1"])
@pytest.mark.parametrize("table", ["nodes", "edges"])
def test_text_in_other_codes(tmp_path, code, table):
    """The command at the end of the message writes it in UTF-8."""
    texts = {
        "nodes": "id,age,kind\n" + "".join(f"{'é' if v else 'e'}{v},{100 + v // 2},k{v % 3}\n" for v in range(V)),
        "edges": "src,dst\n" + "".join(f"é{v + 1},é{(v * 5) % (V - 1) + 1}\n" for v in range(V - 1)),
    }
    folder = write(tmp_path / "my g", **{k: text for k, text in texts.items() if k != table})
    (folder / f"{table}.csv").write_text(texts[table], code)
    options, told = mr.ReadOptions(**OPTIONS), set()
    for read in (mr.open_dataset, lambda path, options: mr.convert(path, tmp_path / "out", options=options)):
        with pytest.raises(InputError, match=f"expected UTF-8: .*iconv -f {code} -t utf-8") as error:
            read(folder, options=options)
        told.add(str(error.value))
    assert len(told) == 1
    command = told.pop()
    subprocess.run(command[command.index("iconv") :], shell=True, check=True)
    names = mr.open_dataset(folder, options=options, split="fraction:0.5,0.2").node_names
    assert set(names) == {"e0", *(f"é{v}" for v in range(1, V))}


def test_a_quoted_na_among_numbers(tmp_path):
    write(tmp_path, nodes='id,age,kind\n0,31,x\n1,"NA",y\n2,29,x\n', edges="src,dst\n0,1\n1,2\n")
    options = mr.ReadOptions(direction="directed", label_columns="kind", feature_columns="age")
    for read in (mr.open_dataset, lambda path, options: mr.convert(path, tmp_path / "out", options=options)):
        with pytest.raises(InputError, match=r"not 'NA': leave the field empty where the number is not known$"):
            read(tmp_path, options=options)


def test_commas_in_the_place_of_points(tmp_path):
    """The command at the end of the message writes points; labels with commas are refused, and no classes."""
    folder = tmp_path / "my g"
    write(
        folder,
        nodes="id;age;kind;name\n" + "".join(f"{v};{100 + v // 2},5;k{v % 3};Meier, Eve\n" for v in range(V)),
        edges=edges_csv(),
    )
    options = mr.ReadOptions(**OPTIONS)
    with pytest.raises(
        InputError, match=r"expected numbers, not '100,5': write numbers such as 1234\.5; if com"
    ) as error:
        mr.open_dataset(folder, options=options)
    command = str(error.value)
    subprocess.run(command[command.index("sed") :], shell=True, check=True)
    data = mr.open_dataset(folder, options=options, split="fraction:0.5,0.2")
    assert data.features.gather(np.arange(V)).ravel().tolist() == [100.5 + v // 2 for v in range(V)]
    write(folder, nodes="id;age;kind\n" + "".join(f"{v};1;{v % 3},5\n" for v in range(V)))
    for read in (mr.open_dataset, lambda path, options: mr.convert(path, tmp_path / "out", options=options)):
        with pytest.raises(InputError, match=r"labels are text such as '0,5'; expected numbers such as 1\.5, or a col"):
            read(folder, options=options)
    classes = mr.open_dataset(folder, options=mr.ReadOptions(**OPTIONS, task="multiclass"), split="fraction:0.5,0.2")
    assert classes.class_names == ("0,5", "1,5", "2,5")


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
@pytest.mark.parametrize("nodes", [True, False])
def test_ids_that_are_empty_text_are_missing_as_in_csv(tmp_path, suffix, nodes):
    tables = {"edges": {"src": ["ann", "bob", ""], "dst": ["bob", "", "ann"]}}
    if nodes:
        tables["nodes"] = {"id": ["ann", "bob", ""], "label": [0, 1, 1]}
    folder, options = mkdir(tmp_path / "g"), mr.ReadOptions(direction="directed", task=None if nodes else "link")
    for name, columns in tables.items():
        rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        if suffix == "parquet":
            pq.write_table(pa.table(columns), folder / f"{name}.parquet")
            (folder / f"{name}.jsonl").unlink()
    told = r"nodes\.id holds 1 nulls" if nodes else r"edges\.src holds 1 nulls.*edges\.dst holds 1 nulls"
    for read in (mr.open_dataset, lambda path, options: mr.convert(path, tmp_path / "out", options=options)):
        with pytest.raises(InputError, match=told):
            read(folder, options=options)


def test_ends_of_two_kinds_relations_and_joint_labels_are_noted(tmp_path):
    nodes = "id,label\n" + "".join(f"{v},{'a;b' if v % 3 else 'b'}\n" for v in range(V))
    edges = "userId,movieId,relation\n" + "".join(f"{v},{(v + 1) % V},r\n" for v in range(V))
    for data in both_ways(tmp_path, nodes, edges, src="userId", dst="movieId"):
        assert any("userId and movieId are read as ids of one kind" in note for note in data.notes)
        assert any("relation_column=relation makes a relation of each" in note for note in data.notes)
        assert any("'a;b' is read as a class: if it is several labels" in note for note in data.notes)


@pytest.mark.parametrize(
    ("header", "ends"),
    [
        ("relation,x_index,x_id,y_index,y_id", "src=x_index --set read.dst=y_index"),
        ("rating,userId,movieId", "src=userId --set read.dst=movieId"),
        ("first,second", "src=first --set read.dst=second"),
    ],
)
def test_ends_that_are_proposed(tmp_path, header, ends):
    edges = header + "\n" + "".join(",".join([str(v)] * (header.count(",") + 1)) + "\n" for v in range(V))
    for found in both_ways(tmp_path, "id,label\n0,1\n1,0\n", edges):
        assert found.endswith(f"--set direction=directed --set {ends}".replace("read.", "")), found
