"""Predictable names that somebody else has used first: nothing of theirs is followed, emptied or written to."""

import os
from pathlib import Path

import pytest

from millrace.storage.errors import InputError
from millrace.storage.store.full_disk import whole_file
from millrace.storage.store.own_files import new_file, own_file, own_folder, refuse_links

STRANGER = 65534
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "kept").write_text("kept")
    return tmp_path / "victim"


def test_a_file_is_made_appended_to_and_begun_again(tmp_path: Path) -> None:
    for append, wanted in ((True, "a"), (True, "aa"), (False, "a")):
        with own_file(tmp_path / "f", append) as file:
            file.write("a")
        assert (tmp_path / "f").read_text() == wanted


@pytest.mark.parametrize("append", [True, False])
@pytest.mark.parametrize("link", ["symbolic", "hard", "dangling", "pipe"])
def test_a_file_that_is_a_link_or_a_pipe_is_refused(victim: Path, tmp_path: Path, link: str, append: bool) -> None:
    path, target = tmp_path / "f", victim / "kept"
    if link == "hard":
        path.hardlink_to(target)
    elif link == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(target if link == "symbolic" else victim / "made")
    with pytest.raises((InputError, OSError)):
        own_file(path, append)
    assert target.read_text() == "kept"
    assert [p.name for p in victim.iterdir()] == ["kept"]


def test_a_new_file_takes_the_place_of_a_link(victim: Path, tmp_path: Path) -> None:
    (tmp_path / ".writing-f").symlink_to(victim / "kept")
    with whole_file(tmp_path / "f") as aside:
        aside.write_text("new")
    assert (tmp_path / "f").read_text() == "new"
    (tmp_path / "g").symlink_to(victim / "kept")
    assert new_file(tmp_path / "g").read_text() == ""
    assert (victim / "kept").read_text() == "kept"


def test_a_folder_to_work_in_is_no_link(victim: Path, tmp_path: Path) -> None:
    assert own_folder(tmp_path / "a" / "b").is_dir()
    assert own_folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "w").symlink_to(victim)
    with pytest.raises(InputError, match="no folder of this user's to work in"):
        own_folder(tmp_path / "w")


def test_a_folder_with_links_is_refused(victim: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "logs").mkdir(parents=True)
    refuse_links(tmp_path / "run", ("logs", "none"))
    (tmp_path / "run" / "logs" / "rank-0.log").symlink_to(victim / "kept")
    refuse_links(tmp_path / "run")
    with pytest.raises(InputError, match=r"rank-0\.log is a symbolic link"):
        refuse_links(tmp_path / "run", ("logs",))


@only_root
def test_what_another_user_left_in_a_sticky_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "f").write_text("theirs")
    (tmp_path / "d").mkdir()
    for name in "fd":
        os.chown(tmp_path / name, STRANGER, STRANGER)
    with pytest.raises(InputError, match="not a file of this user's alone"):
        own_file(tmp_path / "f")
    with pytest.raises(InputError, match="no folder of this user's"):
        own_folder(tmp_path / "d")
    assert (tmp_path / "f").read_text() == "theirs"
