"""Files of strangers' folders that would never end to be read."""

import os
import socket
from pathlib import Path

import pytest

from millrace.storage.errors import StoreError
from millrace.storage.store.regular import file_bytes, file_text, opened_file


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("ä")
    (tmp_path / "link").symlink_to("a")
    assert file_text(tmp_path / "link") == "ä"
    assert file_bytes(tmp_path / "a") == "ä".encode()


def test_pipes_sockets_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s"))
        for name, kind in (("pipe", "a pipe"), ("zero", "a device"), ("s", "a socket")):
            with pytest.raises(StoreError, match=f"{name} is {kind}; expected a file"):
                opened_file(tmp_path / name)


def test_what_is_absent_or_a_folder_is_told_by_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        opened_file(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        opened_file(tmp_path)
