from millrace.pipeline.config.load import read_toml, resolve
from millrace.tests.contracts.command import command


def test_a_file_is_written_once(tmp_path):
    path = tmp_path / "job.toml"
    code, said, err = command("init", path, "--dataset", "digits", "--set", "train.ema=0.99")
    assert (code, f"millrace run {path}" in said) == (0, True), err
    assert resolve(read_toml(path)) == resolve({"dataset": "digits", "train": {"ema": 0.99}})
    before = path.read_bytes()
    code, _, err = command("init", path)
    assert (code, "exists; name another file" in err) == (2, True)
    assert path.read_bytes() == before


def test_bad_input_writes_nothing(tmp_path):
    code, _, err = command("init", tmp_path / "job.toml", "--set", "train.lr=fast")
    assert (code, "Traceback" in err) == (2, False), err
    code, _, err = command("init", tmp_path / "none" / "job.toml")
    assert (code, "cannot write" in err) == (2, True), err
    assert list(tmp_path.iterdir()) == []
    code, said, _ = command("init", "-")
    assert code == 0 and "[train]" in said
