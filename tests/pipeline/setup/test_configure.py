from pathlib import Path

import pytest
from torch import nn

import millrace as mr
from millrace.pipeline.not_read import idle_sections
from millrace.pipeline.setup.configure import configure, sections_of
from millrace.pipeline.telemetry.events import Event, Note
from millrace.storage.errors import InputError
from millrace.tests.contracts.command import command

SAGE = mr.GraphSAGE(hidden=8, layers=1)


class OwnLayer(nn.Module):
    num_layers = 1

    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(4, 2)

    def layer(self, i, neighbourhood, h):
        return self.dense(neighbourhood.mean(h))


BULK = mr.bulk(mr.NeighborSampler((2,)))


@pytest.mark.parametrize(
    ("system", "options", "key"),
    [
        (BULK, {"fanout": [30]}, "sampler.fanout is [30]"),
        (BULK, {"sampler": "labor"}, "sampler.name is 'labor'"),
        (BULK, {"sampler": {"sizes": [4]}}, "sampler.sizes is [4]"),
        (BULK, {"config": {"sampler": {"fanout": [30]}}}, "sampler.fanout is [30]"),
        (BULK, {"config": {"bulk": {"topology": "partitioned"}}}, "bulk.topology is 'partitioned'"),
        (mr.sar(), {"sar": {"mode": "rematerialize"}}, "sar.mode is 'rematerialize'"),
        (mr.sar(), {"partition": "hash"}, "partition.method is 'hash'"),
        (mr.retexo(), {"retexo": {"mode": "v1"}}, "retexo.mode is 'v1'"),
    ],
)
def test_what_an_object_says_otherwise_is_refused(system, options, key):
    config = options.pop("config", {})
    with pytest.raises(mr.InputError) as e:
        configure(config, system=system, **options)
    assert (
        str(e.value) == f"{key}, but the system is an object, which decides that; set it in the system, or leave it out"
    )


def test_the_same_said_twice_is_taken():
    job = configure({"bulk": {"topology": "replicated"}}, system=BULK, fanout=[2], sampler="neighbor")
    assert job.sampler["fanout"] == [2]


@pytest.mark.parametrize("model", [SAGE, OwnLayer()], ids=["record", "module"])
def test_keys_of_a_model_beside_an_object_are_refused(model):
    with pytest.raises(mr.InputError, match=r"model\.hidden is 9, but the model is an object, which decides that"):
        configure({"model": {"hidden": 9}}, model=model)


def test_a_name_leaves_the_sections_to_the_configuration():
    assert sections_of("bulk", None) == {"system": "bulk"}
    assert configure({"system": "sar", "sampler": {"fanout": [3]}}, system="bulk").sampler["fanout"] == [3]


def test_a_run_goes_on_with_its_objects(tmp_path):
    data = mr.open_dataset("sbm:nodes=40,classes=2,features=4")
    given = {"system": BULK, "model": SAGE, "batch_size": 8}
    mr.run(data, out=tmp_path / "run", epochs=1, **given)
    assert mr.run(data, out=tmp_path / "run", resume=True, epochs=2, **given).epochs == 2


def test_a_seed_of_initial_parameters_is_refused_beside_a_module_that_has_them(tmp_path):
    data = mr.open_dataset("sbm:nodes=40,classes=2,features=4")
    with pytest.raises(
        mr.InputError, match=r"seeds\.initial is 1, but the model, a OwnLayer, has its initial parameters"
    ):
        mr.run(data, model=OwnLayer(), fanout=[2], seeds={"initial": 1})


def test_keys_that_a_schedule_does_not_read_are_refused(tmp_path):
    with pytest.raises(
        mr.InputError, match="schedule 'cosine' does not read 'every'; leave it out, or set name to step"
    ):
        mr.run("karate", config={"train": {"schedule": {"name": "cosine", "every": 3}}})
    given = {"batch_size": 8, "fanout": [2], "layers": 1, "hidden": 4, "verbose": False}
    schedule = {"train": {"schedule": {"name": "plateau", "factor": 0.5}}}
    mr.run("karate", out=tmp_path / "run", epochs=1, config=schedule, **given)
    # Runs of earlier versions may have such a key.
    job = tmp_path / "run" / "job.toml"
    job.write_text(job.read_text().replace('name = "plateau"', 'name = "cosine"'))
    assert mr.load(tmp_path / "run").config.train.schedule.factor == 0.5


# --- keys that nothing reads ---

SMALL = "sbm:nodes=60,classes=2,degree=4,features=3,train=0.4"
UNREAD = {
    "grappa.chunks=3": 'the system is bulk; set system = "grappa" with it',
    "retexo.clients=nodes": 'the system is bulk; set system = "retexo" with it',
    "partition.passes=3": "nothing is cut",
}


@pytest.mark.parametrize("given", UNREAD)
def test_a_key_that_a_run_does_not_read_is_refused(tmp_path: Path, given: str) -> None:
    key, _, value = given.partition("=")
    section, _, name = key.partition(".")
    wanted = f"{key} is set, but {UNREAD[given]}"
    code, _, err = command("run", "--dataset", SMALL, "--set", given, "--out", tmp_path / "run")
    assert code == 2 and wanted in err and "or leave it out" in err
    with pytest.raises(InputError) as refused:
        mr.run(
            SMALL, out=tmp_path / "run", verbose=False, **{section: {name: int(value) if value.isdigit() else value}}
        )
    assert str(refused.value).startswith(wanted)
    assert not (tmp_path / "run").exists()


def test_a_key_that_no_run_of_a_sweep_reads_is_refused(tmp_path: Path) -> None:
    grid = {"lr": [0.1, 0.2], "sar.mode": ["auto", "keep"]}
    with pytest.raises(InputError, match=r'sar\.mode is set, but the system is bulk; set system = "sar" with it'):
        mr.sweep(SMALL, grid=grid, jobs=1, out=tmp_path / "sweep", verbose=False)
    assert not (tmp_path / "sweep").exists()
    seen, grid = list[Event](), {"gpu.features": ["auto", "pinned"]}
    cluster = {"restarts": 1}
    mr.sweep(SMALL, grid=grid, jobs=1, out=tmp_path / "gpu", emit=seen.append, epochs=1, cluster=cluster, fanout=[2])
    said = [e.text.partition(" is set, but ")[0] for e in seen if isinstance(e, Note) and "is not read" in e.text]
    assert said == ["cluster.restarts", "gpu.features"]


def test_gpus_of_a_named_cluster_sort_edges_for_one_process() -> None:
    given = {"read": {"edges_on": "gpu"}, "cluster": {"scheduler": "tcp://127.0.0.1:1"}}
    assert not [*idle_sections([configure(given)])]
    job = configure({"read": given["read"], "cluster": {"restarts": 1}})
    assert [said.partition(" is set, but one process")[0] for said in idle_sections([job])] == ["cluster.restarts"]


def test_keys_of_a_cluster_and_of_gpus_are_said_to_be_idle(tmp_path: Path) -> None:
    seen = list[Event]()
    cluster, usual = {"restarts": 1, "scheduler": "tcp://127.0.0.1:1"}, {"epochs": 1, "layers": 1, "fanout": [2]}
    mr.run(SMALL, out=tmp_path / "run", emit=seen.append, cluster=cluster, gpu={"features": "pinned"}, **usual)
    said = [e.text for e in seen if isinstance(e, Note) and e.text.endswith("it is not read.")]
    assert [text.split(" is set, but ")[0] for text in said] == [
        "cluster.scheduler", "cluster.restarts", "gpu.features",
    ]  # fmt: skip
    seen.clear()
    mr.run(SMALL, out=tmp_path / "none", emit=seen.append, **usual)
    assert not any(isinstance(e, Note) and "is not read" in e.text for e in seen)


def test_an_empty_executor_is_no_executor(tmp_path: Path) -> None:
    code, _, err = command("partition", SMALL, "--parts", 2, "--executor", "", "--out", tmp_path / "parts")
    assert code == 2 and "'executor' is '': input should be 'inline' or 'dask'" in err


def test_resolved_jobs_have_all_sections(tmp_path: Path) -> None:
    usual = {"epochs": 1, "layers": 1, "fanout": [2], "hidden": 4}
    first = mr.run(SMALL, out=tmp_path / "run", verbose=False, **usual)
    code, _, err = command("run", tmp_path / "run/job.toml", "--out", tmp_path / "again")
    assert code == 0, err
    assert mr.load(tmp_path / "again").result.parameters_sha256 == first.parameters_sha256
    # Runs of a sweep share a section of one of its systems.
    grid = {"system": ["bulk", "sar"]}
    options = {"epochs": 1, "sar": {"memory_bytes": 9 << 20}}
    made = mr.sweep(SMALL, grid=grid, jobs=1, out=tmp_path / "sweep", verbose=False, **options)
    assert not made.failures


def test_a_place_of_a_queue_beside_stored_samples(tmp_path: Path) -> None:
    options = {"epochs": 1, "layers": 1, "fanout": [2]}
    mr.sample(SMALL, out=tmp_path / "samples", verbose=False, **options)
    with pytest.raises(InputError, match=r"queue\.location is set, but stored samples are read; leave it out"):
        mr.run(
            SMALL, out=tmp_path / "run", samples=tmp_path / "samples", verbose=False,
            queue={"kind": "zarr", "location": str(tmp_path / "queue")}, **options,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()
