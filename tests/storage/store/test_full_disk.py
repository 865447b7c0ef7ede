"""Files on a full disk, which a limit of the size of files stands for."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from millrace.pipeline.inference.files import written
from millrace.pipeline.training.trainer import save_model
from millrace.storage.errors import InputError, RunError
from millrace.storage.store.full_disk import is_full, needing_space, whole_file


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 1_000, 100_000])
def test_a_model_that_does_not_fit_is_a_sentence_and_leaves_the_old_one(tmp_path: Path, size: int) -> None:
    model, path = torch.nn.Linear(300, 300), tmp_path / "model.pt"
    path.write_bytes(b"old")
    with pytest.raises(RunError, match="no space is left for here"), needing_space("here"), files_of_at_most(size):
        save_model(path, model)
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]
    assert path.read_bytes() == b"old"
    save_model(path, model)
    assert torch.equal(torch.load(path, weights_only=True)["weight"], model.weight)


def test_numpys_error_of_a_full_disk_has_no_number_and_is_known(tmp_path: Path) -> None:
    with pytest.raises(OSError) as told, files_of_at_most(1_000):
        np.arange(100_000).tofile(tmp_path / "a")
    assert told.value.errno is None
    assert is_full(told.value)
    assert not is_full(OSError("something else"))


def test_a_prediction_that_does_not_fit_names_the_disk(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"p\.npy cannot be written: No space left on device"), files_of_at_most(1_000):
        written(tmp_path / "p.npy", lambda path: np.save(path, np.zeros(100_000)))
    assert not list(tmp_path.iterdir())


def test_an_error_of_the_writer_itself_is_passed_on(tmp_path: Path) -> None:
    def half(path: Path) -> None:
        with whole_file(path) as aside:
            aside.write_text("half")
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        half(tmp_path / "a")
    assert not list(tmp_path.iterdir())
