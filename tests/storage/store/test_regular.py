"""Files of strangers' folders that would never end to be read."""

import os
import socket
from pathlib import Path

import pytest

from millrace.storage.errors import StoreError
from millrace.storage.store.regular import file_bytes, file_text, opened_file, refuse_special


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


def test_a_folder_with_a_pipe_in_it_is_refused_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "a").touch()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path, tmp_path / "a", tmp_path / "loop", tmp_path / "none", Path("x" * 5000), Path("a\0b")):
        refuse_special(path)
    os.mkfifo(tmp_path / "edges.csv")
    for path in (tmp_path, tmp_path / "edges.csv"):
        with pytest.raises(StoreError, match=r"edges\.csv is a pipe; expected a file"):
            refuse_special(path)
    with pytest.raises(StoreError, match="/dev/zero is a device"):
        refuse_special(Path("/dev/zero"))


@pytest.mark.skipif(os.path.exists("/dev/tty") and os.isatty(0), reason="there is a terminal")
def test_a_device_that_is_not_there_is_no_socket() -> None:
    with pytest.raises(StoreError, match="/dev/tty is a device; expected a file"):
        opened_file(Path("/dev/tty"))
