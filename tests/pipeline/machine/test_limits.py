"""Too few files, too little room for semaphores, a queue that another run has: a sentence, before anything is begun."""

import errno
from pathlib import Path

import pytest

import millrace as mr
from millrace.pipeline.machine.limits import cannot_start_cluster
from millrace.pipeline.setup.run_folder import locked
from millrace.tests.contracts.fresh_python import run_python

TINY = "sbm:nodes=60,classes=2,degree=4,features=3,train=0.5"


@pytest.mark.parametrize(
    ("number", "phrase"),
    [
        (errno.ENOSPC, "no space is left on /dev/shm"),
        (errno.EMFILE, "too many open files; raise the limit"),
        (errno.EAGAIN, "ask for fewer ranks"),
        (errno.EADDRNOTAVAIL, "choose an address of this machine as cluster.host"),
    ],
)
def test_why_a_cluster_cannot_start(number: int, phrase: str) -> None:
    error = OSError(number, {errno.EMFILE: "Too many open files"}.get(number, "words"))
    assert phrase in str(cannot_start_cluster(error, "10.0.0.1"))


def test_two_ranks_with_too_few_files_are_refused(tmp_path: Path) -> None:
    limit = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); from "
        "millrace.pipeline.__main__ import main; main()"
    )
    words = ["run", "--dataset", TINY, "--epochs", "1", "--ranks", "2", "--out", str(tmp_path / "run")]
    code, _, err = run_python("-c", limit, *words)
    assert code == 2, err
    assert err.strip().splitlines()[-1].startswith("millrace: a process may open 64 files here")
    assert "Traceback" not in err


def test_a_queue_that_another_run_has_is_refused(tmp_path: Path) -> None:
    where = tmp_path / "queue"
    job = {"epochs": 1, "model": mr.GraphSAGE(hidden=4, layers=2), "queue": {"kind": "zarr", "location": str(where)}}
    mr.run(TINY, out=tmp_path / "first", **job)
    with locked(where), pytest.raises(mr.InputError, match=rf"another process is writing {where}"):
        mr.run(TINY, out=tmp_path / "second", **job)
    mr.run(TINY, out=tmp_path / "second", **job)
