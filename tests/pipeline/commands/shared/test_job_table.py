"""The table of a command: what its job file says, as far as nothing else does."""

from pathlib import Path

import pytest

from millrace.tests.contracts.command import command

SAID = "job.toml names the scheduler tcp://127.0.0.1:9; whoever is connected there can run code here"


@pytest.mark.parametrize("words", [(), ("--scheduler", "tcp://127.0.0.1:8"), ("--set", "cluster.scheduler=tcp://a:8")])
def test_a_scheduler_that_only_the_file_names_is_told(tmp_path: Path, words: tuple[str, ...]) -> None:
    job = tmp_path / "job.toml"
    job.write_text('dataset = "sbm:nodes=60,classes=3"\nranks = 2\n[cluster]\nscheduler = "tcp://127.0.0.1:9"\n')
    assert (SAID in command("run", job, "--dry-run", *words)[2]) == (not words)
    job.write_text('scheduler = "tcp://127.0.0.1:9"\ndataset = "sbm:nodes=60,classes=3"\nranks = 2\n')
    assert (SAID in command("run", job, "--dry-run", *words)[2]) == (not words)


@pytest.mark.parametrize("words", [("predict", "run", "--out", "p.csv"), ("evaluate", "run")])
def test_keys_of_a_cluster_that_one_process_would_not_use(words):
    for key in ("cluster.producers=2", "host=127.0.0.1"):
        code, _, err = command(*words, "--set", key)
        assert code == 2 and "is given, but one process works; give --workers, or leave it out" in err
    assert "one process works" not in command(*words, "--workers", 2, "--set", "cluster.producers=2")[2]
