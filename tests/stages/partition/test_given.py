"""Parts that someone else has decided on."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.stages.partition.base import Partitioner
from millrace.stages.partition.given import Given
from millrace.storage.errors import InputError
from millrace.storage.graph import from_edges


@given(
    owners=st.lists(st.integers(0, 4), max_size=12),
    dtype=st.sampled_from([np.int8, np.uint8, np.int32, np.int64, np.uint64]),
    seed=st.integers(0, 3),
)
@settings(deadline=None)
def test_every_node_lies_where_it_was_put(owners: list[int], dtype: type, seed: int) -> None:
    graph = from_edges([], [], len(owners))
    given = Given(np.array(owners, dtype))
    assert isinstance(given, Partitioner)
    book = given.assign(graph, 5, seed).check()
    assert book.part(np.arange(len(owners))).tolist() == owners
    assert (book.num_parts, book.num_nodes) == (5, len(owners))


def test_owners_are_told_apart_by_their_digest_and_not_printed() -> None:
    one, same, other = Given(np.array([0, 1, 1])), Given(np.array([0, 1, 1])), Given(np.array([1, 0, 1]))
    assert one == same and repr(one) == repr(same) and hash(one) == hash(same)
    assert one != other and repr(one) != repr(other)
    assert "array" not in repr(one) and one.digest in repr(one)
    assert Given(np.array([0]), "known").digest == "known"


def test_a_file_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "owners.npy", np.array([2, 0, 1], np.int16))
    assert Given.read(tmp_path / "owners.npy").owners.tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (np.array([0.0, 1.0]), r"owners are float64\[2\]; expected a vector of whole numbers"),
        (np.array([[0, 1]]), r"owners are int64\[1, 2\]"),
        (np.array([True, False]), r"owners are bool\[2\]"),
        (np.array(["a"]), "expected a vector of whole numbers"),
        (b"", "cannot be read"),
        (b"no numbers", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: object, told: str) -> None:
    path = tmp_path / "owners.npy"
    if isinstance(content, np.ndarray):
        np.save(path, content)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(InputError, match=told) as e:
        Given.read(path)
    assert "partition.owners" in str(e.value) and str(path) in str(e.value)


def test_a_damaged_file_and_an_archive_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "cut.npy", np.arange(100))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:200])
    np.savez(tmp_path / "many.npz", a=np.arange(3))
    np.save(tmp_path / "objects.npy", np.array([None, 1], object))
    for name, told in (
        ("cut.npy", "cannot be read"),
        ("many.npz", "many.npz cannot be read"),
        ("objects.npy", "cannot be read"),
    ):
        with pytest.raises(InputError, match=told):
            Given.read(tmp_path / name)


def test_owners_that_do_not_fit_are_refused() -> None:
    graph = from_edges([0], [1], 3)
    with pytest.raises(InputError, match="2 owners are given for 3 nodes; give one for each"):
        Given(np.array([0, 0])).assign(graph, 2, 0)
    with pytest.raises(InputError, match=r"owners lie in \[0, 2\], but there are 2 parts, from 0 on"):
        Given(np.array([0, 2, 1])).assign(graph, 2, 0)
    with pytest.raises(InputError, match=r"owners lie in \[-1, 1\]"):
        Given(np.array([0, -1, 1])).assign(graph, 2, 0)
    with pytest.raises(InputError, match="owners lie in"):
        Given(np.array([0, 2**32, 1])).assign(graph, 2, 0)
    with pytest.raises(InputError, match="parts is 0"):
        Given(np.array([0, 0, 0])).assign(graph, 0, 0)
    assert Given(np.array([], np.int64)).assign(from_edges([], [], 0), 3, 0).num_parts == 3


@pytest.mark.parametrize(
    ("owners", "told"),
    [([0, 1], "owners are list"), (np.zeros(2), r"owners are float64\[2\]"), (np.array(1), r"owners are int64\[\]")],
)
def test_owners_of_a_python_caller_are_checked_too(owners: object, told: str) -> None:
    with pytest.raises(InputError, match=told):
        Given(owners)  # type: ignore[arg-type]
