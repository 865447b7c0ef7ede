"""Damaged parts are removed by name, and made again as they were."""

import re
import shutil

import pytest

from millrace.stages.partition.hash import Hash
from millrace.stages.partition.mend import remove_damaged
from millrace.stages.partition.stage import open_part, open_shards, partition_dataset
from millrace.tests.fuzz.targets import dataset


def digest(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def damage(folder, pattern):
    file = max((p for p in folder.glob(pattern) if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


@pytest.fixture(scope="module")
def parted(tmp_path_factory):
    """Two parts of a dataset."""
    partition_dataset(dataset(), Hash(), 2, folder := tmp_path_factory.mktemp("parted") / "parts")
    return folder


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("part-0001/graph/arrays/**/c/*", "a damaged part is made again: .*part-0001"),
        ("part-0001/shards/arrays/**/c/*", "a damaged part is made again: .*part-0001"),
        ("part-0000/rows/arrays/features/c/**/*", "a damaged part is made again: .*part-0000"),
        ("part-0000/rows/manifest.json", "a damaged part is made again: .*part-0000"),
        ("manifest.json", "the account of the parts is written again"),
        ("book/arrays/**/c/*", "are made again: .*book"),
    ],
)
def test_what_is_damaged_is_made_again(tmp_path, parted, pattern, told):
    out, notes = shutil.copytree(parted, tmp_path / "parts"), []
    clean = digest(out)
    remove_damaged(out, notes.append)
    assert not notes and digest(out) == clean
    damage(out, pattern)
    remove_damaged(out, notes.append)
    assert len(notes) == 1
    assert re.search(told, notes[0])
    partition_dataset(dataset(), Hash(), 2, out)
    assert digest(out) == clean
    for part in range(2):
        open_part(out, part), open_shards(out, part)


def test_parts_that_were_never_finished_are_no_damage(tmp_path, parted):
    out, notes = shutil.copytree(parted, tmp_path / "parts"), []
    (out / "manifest.json").unlink()
    (out / "part-0001" / "rows" / "manifest.json").unlink()
    remove_damaged(out, notes.append)
    remove_damaged(tmp_path / "nothing", notes.append)
    assert not notes
