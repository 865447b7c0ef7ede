"""A model's name or options are merged into the table that a configuration has already."""

import millrace as mr
from millrace.pipeline.config.model_table import with_model


def test_options_of_every_model_are_kept_and_those_of_another_are_not():
    table = {"name": "sage", "hidden": 8, "dropout": 0.1, "aggregator": "max"}
    assert with_model(table, "gat") == {"name": "gat", "hidden": 8, "dropout": 0.1}
    assert with_model(table, "GraphSAGE") == {**table, "name": "GraphSAGE"}, "the same model by its class"
    assert with_model(table, {"hidden": 4}) == {**table, "hidden": 4}
    assert with_model(table, {"name": "gat", "hidden": 4}) == {"name": "gat", "hidden": 4, "dropout": 0.1}
    assert with_model("sage", "gin") == with_model(None, "gin") == {"name": "gin"}
    assert with_model({"hidden": 8}, "gin") == {"name": "gin", "hidden": 8}


def test_run_keeps_the_options_of_the_configuration(tmp_path):
    out = tmp_path / "run"
    small = {"epochs": 1, "fanout": [2, 2], "batch_size": 30, "threads": 1, "verbose": False}
    result = mr.run(
        "sbm:nodes=60,classes=2,degree=4,features=3,train=0.5",
        model="gat",
        config={"model": {"name": "sage", "hidden": 8, "dropout": 0.1, "aggregator": "max"}},
        out=out,
        **small,
    )
    job = (out / "job.toml").read_text()
    assert result.model == "gat" and "hidden = 8" in job and "dropout = 0.1" in job and "aggregator" not in job
