"""Columns that have the ids that edges use are not left unread, in memory and out of core."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.storage.errors import InputError
from millrace.tests.contracts.ingest import same

NODES = "key,age,label\n2,30,a\n0,41,b\n1,52,a\n3,63,b\n"
EDGES = "src,dst\n0,1\n1,2\n2,3\n3,0\n"
DIRECTED = {"direction": "directed", "feature_columns": "age"}


def write(folder, nodes=NODES, edges=EDGES):
    folder.mkdir(exist_ok=True)
    (folder / "nodes.csv").write_text(nodes)
    (folder / "edges.csv").write_text(edges)
    return folder


def refused(folder, told, **options):
    given = mr.ReadOptions(**{**DIRECTED, **options})
    with pytest.raises(InputError, match=told) as want:
        mr.open_dataset(folder, options=given, split="fraction:0.5,0.2")
    with pytest.raises(InputError) as got:
        mr.convert(folder, folder.parent / "out", options=given, split="fraction:0.5,0.2", verbose=False)
    assert str(got.value).replace("read.", "") == str(want.value).replace("read.", "")


def test_a_permutation_of_the_ids(tmp_path):
    folder = write(tmp_path / "g")
    refused(folder, r"the column 'key' of nodes is not read, but has all ids .* set read\.id=key .* or read\.id=none")
    data = same(folder, tmp_path, mr.ReadOptions(**DIRECTED, id="key"), split="fraction:0.5,0.2")
    assert data.features.gather(np.arange(4)).ravel().tolist() == [41, 52, 30, 63]
    data = same(folder, tmp_path, mr.ReadOptions(**DIRECTED, id="none"), split="fraction:0.5,0.2")
    assert data.features.gather(np.arange(4)).ravel().tolist() == [30, 41, 52, 63]


def test_names_that_edges_use(tmp_path):
    names = {str(i): name for i, name in enumerate(("ann", "bob", "eve", "dan"))}
    nodes = "\n".join(
        ",".join(names.get(c, c) if k == 0 else c for k, c in enumerate(line.split(","))) for line in NODES.split()
    )
    edges = "src,dst\n" + "\n".join(",".join(names[c] for c in line.split(",")) for line in EDGES.split()[1:]) + "\n"
    refused(write(tmp_path / "g", nodes + "\n", edges), r"the column 'key' of nodes is not read")


def test_two_columns_of_ids(tmp_path):
    nodes = (
        NODES.replace("key", "id,new_no")
        .replace("\n2,", "\n10,2,")
        .replace("\n0,", "\n11,0,")
        .replace("\n1,", "\n12,1,")
        .replace("\n3,", "\n13,3,")
    )
    refused(write(tmp_path / "g", nodes), r"the column 'new_no' .* set read\.id=new_no .*, or read\.id=id to keep")


def test_of_columns_with_ids_the_one_with_most_is_proposed(tmp_path):
    nodes = "id,views,new_no,age,label\n10,1,2,30,a\n11,7,0,41,b\n12,0,1,52,a\n13,8,3,63,b\n"
    refused(
        write(tmp_path / "g", nodes),
        r"the column 'new_no' of nodes is not read, but has all ids .* set read\.id=new_no",
    )


def test_what_says_the_same_as_the_ids_or_repeats_is_left(tmp_path):
    rows = "key,age,label\n0,30,a\n1,41,b\n2,52,a\n3,63,b\n"
    same(write(tmp_path / "rows", rows), tmp_path, mr.ReadOptions(**DIRECTED), split="fraction:0.5,0.2")
    copy = "id,copy,age,label\n2,2,30,a\n0,0,41,b\n1,1,52,a\n3,3,63,b\n"
    same(write(tmp_path / "copy", copy), tmp_path, mr.ReadOptions(**DIRECTED), split="fraction:0.5,0.2")
    repeats = NODES.replace("3,63", "2,63")
    same(write(tmp_path / "repeats", repeats), tmp_path, mr.ReadOptions(**DIRECTED), split="fraction:0.5,0.2")
    others = NODES.replace("3,63", "9,63")
    same(write(tmp_path / "others", others), tmp_path, mr.ReadOptions(**DIRECTED), split="fraction:0.5,0.2")


@pytest.mark.parametrize("what", ["floats", "dangling"])
def test_most_of_the_ids(tmp_path, what):
    nodes = NODES.replace("2,", "2.0,", 1).replace("0,41", "0.0,41") if what == "floats" else NODES
    edges = EDGES + "0,77\n" if what == "dangling" else EDGES
    told = f"'key' of nodes is not read, but has {'all' if what == 'floats' else 'most'} ids that edges use"
    refused(write(tmp_path / "g", nodes, edges), told, dangling_edges="drop")


def test_the_sets_of_a_split(tmp_path):
    sets = iter(("kind", "Train", "valid", "test", "train"))
    nodes = "".join(f"{line.replace('key', 'id')},{next(sets)}\n" for line in NODES.split())
    folder = write(tmp_path / "g", nodes)
    with pytest.raises(
        InputError, match=r"'kind' of nodes is not read, but holds Train, test, .* read\.split=kind"
    ) as want:
        mr.open_dataset(folder, options=mr.ReadOptions(**DIRECTED))
    with pytest.raises(InputError) as got:
        mr.convert(folder, tmp_path / "out", options=mr.ReadOptions(**DIRECTED), verbose=False)
    assert str(got.value).replace("read.", "") == str(want.value).replace("read.", "")
    data = same(folder, tmp_path, mr.ReadOptions(**DIRECTED, split="kind"))
    assert [data.split.train.tolist(), data.split.val.tolist(), data.split.test.tolist()] == [[2, 3], [0], [1]]
    assert mr.open_dataset(folder, options=mr.ReadOptions(**DIRECTED), split="fraction:0.5,0.2").num_nodes == 4


@pytest.mark.parametrize("words", ["tr va te tr", "train val holdout train", "FIT,dev,Held-Out,fit"])
def test_short_words_for_sets(tmp_path, words):
    column = iter(("kind", *words.replace(",", " ").split()))
    nodes = "".join(f"{line.replace('key', 'id')},{next(column)}\n" for line in NODES.split())
    folder = write(tmp_path / "g", nodes)
    with pytest.raises(InputError, match=r"'kind' of nodes is not read, but holds .* read\.split=kind"):
        mr.open_dataset(folder, options=mr.ReadOptions(**DIRECTED))
    data = same(folder, tmp_path, mr.ReadOptions(**DIRECTED, split="kind"))
    assert [data.split.train.tolist(), data.split.val.tolist(), data.split.test.tolist()] == [[2, 3], [0], [1]]


@pytest.mark.parametrize("name", ["dataset_split", "splitId", "fold"])
def test_columns_named_after_a_split_are_not_left_for_a_drawn_one(tmp_path, name):
    column = iter((name, "0", "1", "2", "0"))
    nodes = "".join(f"{line.replace('key', 'id')},{next(column)}\n" for line in NODES.split())
    folder = write(tmp_path / "g", nodes)
    with pytest.raises(InputError, match=f"'{name}' of nodes is not read, but its name is one of a split"):
        mr.open_dataset(folder, options=mr.ReadOptions(**DIRECTED))
    with pytest.raises(InputError, match=f"'{name}' of nodes is not read, but its name is one of a split"):
        mr.convert(folder, tmp_path / "out", options=mr.ReadOptions(**DIRECTED), verbose=False)
    assert same(folder, tmp_path, mr.ReadOptions(**DIRECTED, split="none")).split.train.size


@pytest.mark.parametrize("row", ["1,52,a", ",9,b"], ids=["twice", "null"])
def test_hardly_a_value_twice(tmp_path, row):
    order = np.random.default_rng(0).permutation(20).tolist()
    nodes = "code,age,label\n" + "".join(f"{v},{v},{'ab'[v % 2]}\n" for v in order) + f"{row}\n"
    edges = "src,dst\n" + "".join(f"{v},{(v + 1) % 20}\n" for v in order)
    refused(write(tmp_path / "g", nodes, edges), r"'code' of nodes is not read, but has all ids .* --set read\.id=code")


def test_ids_among_all_features(tmp_path):
    folder = write(tmp_path / "g")
    told = r"'key' of nodes is a feature \(feature_columns=\*\), but has all ids that edges use"
    refused(folder, told, feature_columns="*")
    assert same(folder, tmp_path, mr.ReadOptions(**{**DIRECTED, "feature_columns": "*"}, id="none")).num_nodes == 4


def test_values_that_name_sets_in_other_words(tmp_path):
    sets = iter(("usage", "Training", "PublicTest", "PrivateTest", "Training"))
    folder = write(tmp_path / "g", "".join(f"{line.replace('key', 'id')},{next(sets)}\n" for line in NODES.split()))
    with pytest.raises(InputError, match=r"'usage' of nodes is not read, but holds PrivateTest, .* write train, val"):
        mr.open_dataset(folder, options=mr.ReadOptions(**DIRECTED))
    assert same(folder, tmp_path, mr.ReadOptions(**DIRECTED, split="none")).num_nodes == 4


def test_masks_of_several_splits(tmp_path):
    rows = iter(("train_mask_0,test_mask_0,train_mask_1,test_mask_1", "1,0,0,1", "0,1,1,0", "1,0,1,0", "0,1,0,1"))
    folder = write(tmp_path / "g", "".join(f"{line.replace('key', 'id')},{next(rows)}\n" for line in NODES.split()))
    first = "train_mask_0,test_mask_0"
    with pytest.raises(InputError, match=f"nodes has several splits: {first}, and .* --set read.split={first}"):
        mr.open_dataset(folder, options=mr.ReadOptions(**DIRECTED))
    data = same(folder, tmp_path, mr.ReadOptions(**DIRECTED, split="train_mask_1,test_mask_1"))
    assert [data.split.train.tolist(), data.split.test.tolist()] == [[0, 1], [2, 3]]
    assert same(folder, tmp_path, mr.ReadOptions(**DIRECTED, split="none")).split.val.size


@pytest.mark.parametrize("name", ["train.csv", "split.json", "train_idx.npy", "train_ids.txt"])
def test_files_of_sets_beside_tables(tmp_path, name):
    folder = write(tmp_path / "g", NODES.replace("key", "id"))
    (folder / name).write_bytes(b"0")
    for other in ("train.py", "train.log", "train.yaml"):
        (folder / other).write_text("")
    with pytest.raises(InputError, match=f"{name} is not read, and by its name says which nodes train"):
        mr.open_dataset(folder, options=mr.ReadOptions(**DIRECTED))
    data = same(folder, tmp_path, mr.ReadOptions(**DIRECTED, split="none"))
    assert f"{name} was left out: it is no table of nodes* or edges* by its name." in data.notes


def test_more_of_the_ids_than_rows_have(tmp_path):
    """Most ends are of nodes that are not there, and are left out: by the ids, and not by the numbers of rows."""
    nodes = "ref,age,label\n" + "".join(f"{100 + v},{v},{'ab'[v % 2]}\n" for v in range(4))
    edges = "src,dst\n" + "".join(f"{100 + v},{101 + v}\n" for v in range(9)) + "0,1\n"
    folder = write(tmp_path / "g", nodes, edges)
    refused(folder, r"'ref' of nodes is not read, but has more ids that edges use", dangling_edges="drop")


def test_ids_that_end_in_a_point_and_zero(tmp_path):
    nodes = NODES.replace("key", "ref")
    edges = "src,dst\n" + "".join(f"{v}.0,{(v + 1) % 4}.0\n" for v in range(4))
    refused(write(tmp_path / "g", nodes, edges), "'ref' of nodes is not read, but has all ids")


def test_lists_are_no_classes(tmp_path):
    """They are looked at for what a message proposes for labels."""
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n")
    pq.write_table(pa.table({"id": [0, 1, 2], "vector": [[0.5], [1.0], [2.0]]}), tmp_path / "nodes.parquet")
    with pytest.raises(InputError, match="nodes has no column 'label'; it holds id, vector"):
        mr.open_dataset(tmp_path, options=mr.ReadOptions(**DIRECTED))
