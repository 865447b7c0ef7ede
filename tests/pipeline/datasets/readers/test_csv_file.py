"""CSV in blocks: the columns, types and sentences of a file that is read at once."""

import gzip
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.pipeline.datasets.readers import csv_file
from millrace.pipeline.datasets.readers.csv_file import RetypedError, read_blocks, read_csv
from millrace.storage.errors import InputError
from millrace.tests.contracts.ingest import same

AS_TEXT = frozenset({"src"}).__contains__
VALUES = ["", "1", "-7", "1.5", "1e300", "true", "FALSE", "0", "2020-01-02", "12:30:01", "2020-01-02 03:04:05"]
VALUES += ["2020-01-02 03:04:05.123456", "a b", '"q,\nr"', '""', "NA", "nan", "007", "99999999999999999999", "ä"]


def in_blocks(path, block):
    types, times = {}, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_file, "BLOCK_BYTES", block)
        while True:
            times += 1
            with suppress(RetypedError):
                tables = [*read_blocks(path, AS_TEXT, "src,dst", types)]
                return pa.concat_tables(tables), len(tables), times


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.sampled_from(VALUES), min_size=2, max_size=2), max_size=12), st.integers(0, 8))
def test_types_are_those_of_the_whole_file(tmp_path_factory, rows, ones):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    rows = [["1", "1"]] * ones + rows
    lines = [["src", "one", " two "], *(["x", *row] for row in rows)]
    path.write_text("".join(f"{','.join(line)}\n" for line in lines))
    want = read_csv(path, AS_TEXT, "src,dst")
    found, _, _ = in_blocks(path, 128)
    assert found.schema == want.schema
    assert found.equals(want) or found.to_pydict().__repr__() == want.to_pydict().__repr__()


def test_ids_that_are_empty_are_missing_quoted_or_not(tmp_path):
    (tmp_path / "edges.csv").write_text('"src","dst"\n"ann","bob"\n"bob",""\n"  ","ann"\n')
    with pytest.raises(InputError, match=r"edges.src holds 1 nulls.*edges.dst holds 1 nulls"):
        mr.open_dataset(tmp_path / "edges.csv", options=mr.ReadOptions(task="link", direction="directed"))
    assert read_csv(tmp_path / "edges.csv", AS_TEXT, "src,dst").to_pylist()[1:] == [
        {"src": "bob", "dst": ""},
        {"src": None, "dst": "ann"},
    ]


def test_a_late_block_of_another_type_below_a_name_that_holds_the_separator(tmp_path):
    (tmp_path / "t.csv").write_text('"a;b";"c"\n' + "1;2\n" * 200 + "1;2.5\n")
    found, _, times = in_blocks(tmp_path / "t.csv", 128)
    assert times > 1 and found.equals(read_csv(tmp_path / "t.csv", AS_TEXT, "src,dst"))


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz"])
def test_many_blocks_of_which_a_late_one_is_of_another_type(tmp_path, suffix):
    comma, path = "\t" if "tsv" in suffix else ",", tmp_path / f"t{suffix}"
    rows = [comma.join([str(i), "1" if i < 900 else "2.5"]) for i in range(1000)]
    with gzip.open(path, "wt") if suffix.endswith("gz") else path.open("w") as file:
        file.write("\n".join([comma.join(["src", "w"]), *rows]))
    found, blocks, times = in_blocks(path, 256)
    assert blocks > 10 and times > 1
    assert found.schema.types == [pa.string(), pa.float64()]
    assert np.array_equal(found["w"].to_numpy(), np.where(np.arange(1000) < 900, 1, 2.5))
    assert found.combine_chunks().equals(read_csv(path, AS_TEXT, "src,dst").combine_chunks())


@pytest.mark.parametrize(
    "text",
    ["", "src,dst\n", "1,2\n", "src,dst\n1,2\n3\n", "src,dst\n" + "1,2\n" * 200 + "1,2,3\n", "src\n\xff\n"],
)
def test_refusals_are_those_of_the_whole_file(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode("latin1"))
    try:
        want = read_csv(path, AS_TEXT, "src,dst")
    except InputError as e:
        with pytest.raises(InputError) as got:
            in_blocks(path, 128)
        where = str(e).partition("; expected")
        assert str(got.value).partition("; expected")[2] == where[2]
        assert str(got.value).startswith(str(path))
    else:
        assert in_blocks(path, 128)[0].equals(want)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["01", "1", "01", "2"], ("01", "1", "2")),
        (["1", " 2", "1", ""], None),
        (["1", "2.5", "0", ""], "regression"),
        (["True", "false", "True", ""], None),
        (["1", "x", "1", "2"], ("1", "2", "x")),
    ],
)
@pytest.mark.parametrize("shards", [1, 4])
def test_labels_are_numbers_unless_zeros_are_before_them(tmp_path, labels, classes, shards):
    (tmp_path / "g").mkdir()
    for k in range(shards):
        rows = [f"{i},{y},{i / 2}\n" for i, y in enumerate(labels) if i * shards // 4 == k]
        (tmp_path / "g" / f"nodes-{k}.csv").write_text("".join(["id,label,feature_0\n", *rows]))
    (tmp_path / "g" / "edges.csv").write_text("src,dst\n0,1\n1,2\n2,3\n")
    data = same(tmp_path / "g", tmp_path, mr.ReadOptions(direction="directed"), split="fraction:0.5,0.3")
    if classes == "regression":
        assert data.task == "regression"
        assert np.array_equal(data.labels.ravel(), [1, 2.5, 0, np.nan], equal_nan=True)
    elif classes is None:
        assert data.class_names is None
        assert data.labels.tolist() == ([1, 2, 1, -1] if "2" in labels[1] else [1, 0, 1, -1])
    else:
        assert data.class_names == classes
        assert [classes[y] for y in data.labels] == labels


@pytest.mark.parametrize("above", ["sep=;\n", "# made on Monday\n# by us\n", '"sep=;"\n# x\n'])
def test_lines_above_the_header(tmp_path, above):
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "nodes.csv").write_text(f"{above}id;age;label\n2;7;a\n0;\\N;b\n1;9;\\N\n", "utf-8-sig")
    (tmp_path / "g" / "edges.csv").write_text(f"{above}#src;dst\n0;1\n1;2\n")
    options = mr.ReadOptions(direction="directed", feature_columns="age", nan_features="zero")
    dataset = same(tmp_path / "g", tmp_path, options)
    assert dataset.features.gather(np.arange(3)).ravel().tolist() == [0, 9, 7]
    assert dataset.labels.tolist() == [1, -1, 0]
    assert dataset.graph.num_edges == 2
