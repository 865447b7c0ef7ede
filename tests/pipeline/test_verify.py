"""`millrace check`: what has a digest is verified, and what differs is named."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import millrace as mr
from millrace.pipeline.setup.result import known_digests
from millrace.pipeline.telemetry.events import StageAdvanced, StageStarted
from millrace.pipeline.verify import verify
from millrace.storage.errors import InputError, StoreError
from millrace.tests.contracts.command import command

DATA = "sbm:nodes=60,classes=3,degree=4,features=4,train=0.5"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with learnt rows."""
    out = tmp_path_factory.mktemp("made") / "run"
    mr.run(DATA, epochs=2, fanout=[3, 2], hidden=4, learned=3, out=out, verbose=False)
    return out


def flip(file: Path, at: int = -7) -> bytes:
    before = file.read_bytes()
    content = bytearray(before)
    content[at] ^= 4
    file.write_bytes(content)
    return before


def test_a_whole_run_is_as_it_was_written_and_progress_is_told(made: Path) -> None:
    told = []
    found = verify(made, told.append)
    assert (found.damaged, found.unknown) == ({}, [])
    assert found.checked == ["model.pt", "learned.npy", "learned-nodes.npz", "checkpoints/step-0-2"]
    assert isinstance(told[0], StageStarted)


@pytest.mark.parametrize("name", ["model.pt", "learned.npy"])
def test_a_flipped_bit_is_refused_by_who_loads_and_found_by_check(made: Path, tmp_path: Path, name: str) -> None:
    before = flip(made / name)
    try:
        with pytest.raises(StoreError, match=f"{name} does not match its digest in result.json: it is damaged"):
            mr.predict(made)
        with pytest.raises(InputError, match=f"{name}.* does not match its digest in result.json"):
            mr.run(
                DATA,
                epochs=1,
                fanout=[3, 2],
                hidden=4,
                learned=3,
                start_from=str(made),
                out=tmp_path / "o",
                verbose=False,
            )
        code, out, err = command("check", made)
        assert code == 2
        assert f"damaged: {name}: " in out
        assert f"is damaged: {name}; copy it again" in err
    finally:
        (made / name).write_bytes(before)
    assert command("check", made)[0] == 0


def test_a_run_without_digests_loads_and_records_of_its_file_are_verified(made: Path, tmp_path: Path) -> None:
    record = json.loads((made / "result.json").read_text())
    text, model = (made / "result.json").read_text(), (made / "model.pt").read_bytes()
    del record["files_sha256"]
    (made / "result.json").write_text(json.dumps(record))
    try:
        assert known_digests(made) == {}
        assert mr.predict(made).nodes.size == 60
        assert verify(made, lambda event: None).unknown == ["model.pt", "learned.npy", "learned-nodes.npz"]
        # In the middle of an array of parameters, which torch reads without its checksum.
        state = mr.load(made).model.state_dict()
        at = model.find(max(state.values(), key=lambda t: t.numel()).numpy().tobytes())
        assert at > 0
        flip(made / "model.pt", at)
        with pytest.raises(StoreError, match=r"model\.pt is damaged, or no file of parameters"):
            mr.load(made)
    finally:
        (made / "result.json").write_text(text)
        (made / "model.pt").write_bytes(model)
    assert mr.load(made).result.files_sha256


def test_mapped_features_and_graphs_are_digested(tmp_path: Path) -> None:
    mr.write_dataset(tmp_path / "s", mr.open_dataset(DATA), features_format="npy", graph_format="npy")
    told = []
    assert verify(tmp_path / "s", told.append).damaged == {}
    assert any(isinstance(event, StageAdvanced) for event in told)
    for name, what in (("features", "features"), ("indices", "graph")):
        before = flip(tmp_path / "s" / f"{name}.npy", -3 if name == "features" else -8)
        assert f"'{what}' does not match its digest" in verify(tmp_path / "s", told.append).damaged["s"]
        (tmp_path / "s" / f"{name}.npy").write_bytes(before)


def test_samples_parts_and_all_below_a_folder_are_verified(tmp_path: Path) -> None:
    mr.partition_dataset(mr.open_dataset(DATA), mr.partitioner("ldg"), 2, tmp_path / "parts")
    assert command("sample", "--dataset", DATA, "--epochs", 1, "--fanout", "3,2", "--out", tmp_path / "samples")[0] == 0
    found = verify(tmp_path, lambda event: None)
    assert found.damaged == {}
    assert {"parts/book", "parts/part-0001/shards", "samples/epoch-0/bulk-0"} <= set(found.checked)
    shard = next(f for f in (tmp_path / "samples" / "epoch-0" / "bulk-0").rglob("c/**/*") if f.is_file())
    flip(shard, 40)
    (tmp_path / "parts" / "book" / "manifest.json").write_text("{}")
    assert set(verify(tmp_path, lambda event: None).damaged) == {"parts/book", "samples", "samples/epoch-0/bulk-0"}


def test_a_folder_without_anything_to_check_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run and no store"):
        verify(tmp_path, lambda event: None)


def test_a_pipe_in_place_of_a_file_is_named(made: Path, tmp_path: Path) -> None:
    mr.write_dataset(tmp_path / "s", mr.open_dataset(DATA), features_format="npy")
    array = np.load(tmp_path / "s" / "features.npy")
    assert array.shape == (60, 4)
    (tmp_path / "s" / "features.npy").unlink()
    os.mkfifo(tmp_path / "s" / "features.npy")
    assert "features.npy is missing" in verify(tmp_path / "s", lambda event: None).damaged["s"]
