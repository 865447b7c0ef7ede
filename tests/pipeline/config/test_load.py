"""Configuration: validated, overridable, and helpful when it is wrong."""

import tomllib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.pipeline.config.load import Job, parse_override, read_toml, resolve
from millrace.pipeline.config.records import make_system
from millrace.pipeline.setup.configure import configure
from millrace.stages.partition.metis_streamed import MetisStreamed
from millrace.storage.errors import InputError


def test_defaults_resolve_and_round_trip():
    job = resolve({})
    assert job.sampler["name"] == "neighbor" and job.sampler["fanout"] == [15, 10, 5]
    assert job.model["layers"] == 3
    assert job.executor == "inline"
    assert resolve(tomllib.loads(job.to_toml())) == job


@pytest.mark.parametrize(
    ("table", "fanout", "layers"),
    [
        ({"model": {"layers": 2}}, [15, 10], 2),
        ({"model": {"layers": 5}}, [15, 10, 5, 5, 5], 5),
        ({"sampler": {"fanout": [4]}}, [4], 1),
        ({"sampler": {"fanout": "4,-1"}}, [4, -1], 2),
        ({"sampler": {"fanout": 7}}, [7], 1),
        ({"sampler": {"fanout": [3, 3]}, "model": {"name": "gat", "layers": 2}}, [3, 3], 2),
    ],
)
def test_fanout_and_layers_follow_each_other(table, fanout, layers):
    job = resolve(table)
    assert job.sampler["fanout"] == fanout
    assert job.model["layers"] == layers


@pytest.mark.parametrize(
    ("table", "sizes", "layers"),
    [
        ({}, [512, 512, 512], 3),
        ({"model": {"layers": 2}}, [512, 512], 2),
        ({"model": {"layers": 4}}, [512] * 4, 4),
        ({"sampler": {"sizes": [64, 32]}}, [64, 32], 2),
        ({"sampler": {"sizes": "64,32"}}, [64, 32], 2),
        ({"sampler": {"sizes": 7}}, [7], 1),
    ],
)
@pytest.mark.parametrize("name", ["ladies", "fastgcn"])
def test_sizes_and_layers_follow_each_other(name, table, sizes, layers):
    job = resolve({**table, "sampler": {"name": name, **table.get("sampler", {})}})
    assert job.sampler == {"name": name, "sizes": sizes, "debias": "ratio", "edge_ids": False}
    assert job.model["layers"] == layers
    assert resolve(tomllib.loads(job.to_toml())) == job


@pytest.mark.parametrize("mode", ["auto", "halo", ["rematerialize", "keep"]])
def test_a_system_without_a_sampler(mode):
    job = resolve(
        {"system": "sar", "sar": {"mode": mode}, "model": {"layers": 2}, "partition": {"method": "hash"}, "ranks": 2}
    )
    assert (job.sampler, job.sar.mode, job.model["layers"], job.executor) == ({}, mode, 2, "dask")
    assert resolve(tomllib.loads(job.to_toml())) == job


@pytest.mark.parametrize(
    ("table", "phrase"),
    [
        ({"epoch": 3}, "did you mean 'epochs'"),
        (
            {"train": {"learning_rate": 0.1}},
            "unknown configuration key 'train.learning_rate'; did you mean 'train.lr'?",
        ),
        ({"bach_size": 1}, "did you mean 'train.batch_size'"),
        ({"hiden": 1}, "did you mean 'model.hidden'"),
        ({"train": {"seed": 1}}, "did you mean 'seed'?"),
        ({"mode": "keep"}, "did you mean 'retexo.mode' or 'sar.mode'?"),
        ({"xyzzy": 1}, "docs/configuration.md lists all keys"),
        ({"model": {"hidden_channels": 1}}, "did you mean 'model.hidden'"),
        ({"train": {"bach_size": 1}}, "did you mean 'train.batch_size'"),
        ({"train": 3}, "configuration key 'train' is 3: expected a table of keys"),
        ({"read": 3}, "configuration key 'read' is 3: expected a table of keys"),
        (
            {"learned": 8.5},
            "configuration key 'learned' is 8.5: expected a table of keys, or a whole number, the width",
        ),
        (
            {"read": {"directoin": "directed"}},
            "'read.directoin'; did you mean 'read.direction'",
        ),
        (
            {"train": {"loss": {"class_weights": "balance"}}},
            "'train.loss.class_weights' is 'balance': input should be 'balanced', or input should be a valid list",
        ),
        ({"train": {"loss": {"class_weights": [0, 0]}}}, "expected a number above 0: nothing would be trained"),
        ({"epochs": 0}, "'epochs' is 0"),
        ({"epochs": "many"}, "'epochs' is 'many'"),
        ({"seed": -1}, "'seed' is -1"),
        ({"system": "bluk"}, "'system' is 'bluk'"),
        ({"device": "tpu"}, "'device' is 'tpu'"),
        ({"dtype": "float16"}, "'dtype' is 'float16'"),
        ({"train": {"lr": 0}}, "'train.lr' is 0"),
        ({"train": {"batch_size": 0}}, "'train.batch_size' is 0"),
        ({"queue": {"kind": "redis"}}, "'queue.kind' is 'redis'"),
        ({"model": {"name": "sagee"}}, "did you mean 'sage'"),
        ({"model": {"name": "sage", "heads": 4}}, "has no option 'heads'; it is an option of 'gat', 'gatv2', "),
        ({"model": {"hidden": 0}}, "hidden is 0"),
        ({"model": {"dropout": 1.0}}, "dropout is 1"),
        ({"sampler": {"name": "neighbour"}}, "did you mean 'neighbor'"),
        ({"sampler": {"fanout": [3, 0]}}, "fanout"),
        ({"sampler": {"fanout": "a,b"}}, "fanout 'a,b' is not a list"),
        ({"sampler": {"fanout": [3, 3]}, "model": {"layers": 3}}, "give one number per layer"),
        ({"sampler": {"name": "ladies", "fanout": [3, 3]}}, "sampler 'ladies' has no option 'fanout'"),
        ({"sampler": {"name": "labor", "sizes": [3, 3]}}, "sampler 'labor' has no option 'sizes'"),
        (
            {"sampler": {"name": "ladies", "sizes": "a,b"}},
            "sizes 'a,b' is not a list of whole numbers such as 512,512,512",
        ),
        ({"sampler": {"name": "ladies", "sizes": 0.5}}, "'sampler.sizes' is 0.5"),
        (
            {"sampler": {"name": "ladies", "sizes": [9, 9]}, "model": {"layers": 3}},
            "sampler.sizes [9, 9] has 2 numbers",
        ),
        ({"sampler": {"name": "ladies", "debias": "botom_k"}}, "did you mean 'bottom_k'"),
        ({"read": {"direction": "sideways"}}, "direction"),
        ({"sar": {"mode": "hallo"}}, "'sar.mode' is 'hallo': expected rematerialize, keep, halo or auto"),
        ({"sar": {"mode": 3}}, "'sar.mode' is 3: expected rematerialize"),
        ({"sar": {"mode": [["keep"]]}}, "'sar.mode' is [['keep']]: expected rematerialize"),
        ({"sar": {"mode": ["keep", "auto"]}}, "a list of the first three, one for each layer"),
        ({"sar": {"memory_bytes": 0}}, "'sar.memory_bytes' is 0"),
        ({"sar": {"prefetch_bytes": -1}}, "'sar.prefetch_bytes' is -1"),
        ({"sar": {"prune": "perhaps"}}, "'sar.prune' is 'perhaps'"),
        ({"sar": {"modes": "keep"}}, "did you mean 'sar.mode'"),
        ({"cluster": {"slow_peer_warning_s": 0}}, "'cluster.slow_peer_warning_s' is 0"),
        (
            {"system": "sar", "partition": {"method": "metiss"}},
            "'metiss'; expected one of contiguous, hash, ldg, fennel, metis, metis-work, "
            "metis-streamed, louvain, leiden; did you mean 'metis'",
        ),
        ({"partition": {"balance": "halo"}}, "'partition.balance' is 'halo'"),
        ({"partition": {"passes": 0}}, "'partition.passes' is 0"),
        ({"system": "sar", "sampler": {"fanout": [3, 2]}}, "system 'sar' samples nothing"),
        ({"system": "sar", "queue": {"keep": "all"}}, "no minibatches to queue"),
        (
            {"system": "sar", "train": {"batch_size": 8}},
            "'train.batch_size' is 8, but system 'sar' takes all train nodes",
        ),
        ({"system": "sar", "train": {"minibatches_per_step": 2}}, "'train.minibatches_per_step' is 2"),
        ({"system": "sar", "model": {"name": "gcnn"}}, "did you mean 'gcn'"),
    ],
)
def test_bad_configuration_is_a_sentence(table, phrase):
    with pytest.raises(InputError) as caught:
        resolve(table)
    assert phrase in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 3


def test_a_gpu_samples_there_in_large_bulks_unless_told_otherwise():
    def seen(**table):
        job = resolve({"device": "cuda", **table})
        return job.kernel, job.queue.bulk_size

    assert seen() == ("cuda", 64)
    assert seen(queue={"bulk_size": 8}) == ("cuda", 8)
    assert seen(kernel="cpu") == ("cpu", 8)
    assert seen(queue={"kind": "zarr"}) == ("cuda", 64)
    # Of a partitioned topology for one sampler, by each algorithm and into each queue.
    for algorithm in ("owners", "1.5d", "auto"):
        for kind in ("memory", "zarr"):
            bulk = {"topology": "partitioned", "algorithm": algorithm}
            assert seen(bulk=bulk, queue={"kind": kind}) == ("cuda", 64)
    assert seen(bulk={"topology": "partitioned"}, sampler={"name": "labor"}) == ("cpu", 8)
    again = resolve(resolve({"device": "cuda"}).model_dump(exclude_none=True))
    assert (again.kernel, again.queue.bulk_size) == ("cuda", 64)


def test_overrides():
    assert parse_override("train.lr=0.5") == (["train", "lr"], 0.5)
    assert parse_override("dataset=sbm:nodes=100") == (["dataset"], "sbm:nodes=100")
    assert parse_override("sampler.fanout=[3, 2]") == (["sampler", "fanout"], [3, 2])
    assert parse_override("check=true") == (["check"], True)
    for bad in ("train.lr", "=3", "a..b=1"):
        with pytest.raises(InputError, match="key=value"):
            parse_override(bad)


def test_toml_file(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_toml(tmp_path / "none.toml")
    with pytest.raises(InputError, match="cannot be read"):
        read_toml(tmp_path)
    bad = tmp_path / "bad.toml"
    bad.write_text("a = [")
    with pytest.raises(InputError, match="not valid TOML"):
        read_toml(bad)


@settings(deadline=None)
@given(st.integers(1, 10**6), st.floats(1e-8, 1e3), st.lists(st.sampled_from([-1, 1, 5, 100]), min_size=1, max_size=6))
def test_resolved_configurations_survive_their_own_file(epochs, lr, fanout):
    job = resolve({"epochs": epochs, "train": {"lr": lr}, "sampler": {"fanout": fanout}})
    assert isinstance(job, Job)
    assert resolve(tomllib.loads(job.to_toml())) == job


def test_words_of_torch_and_names_in_any_case_are_known():
    job = resolve(
        {
            "device": torch.device("cpu"),
            "dtype": torch.float64,
            "model": {"name": "GraphSAGE", "layers": 2},
            "sampler": {"name": "Labor"},
        }
    )
    assert (job.device, job.dtype, job.model["name"], job.sampler["name"]) == ("cpu", "float64", "sage", "labor")
    assert (
        resolve({"model": {"name": "SAGE"}})
        == resolve({})
        == resolve(tomllib.loads(resolve({"model": {"name": "Sage"}}).to_toml()))
    )
    assert resolve({"system": "sar", "model": {"name": "GAT"}}).model["name"] == "gat"
    with pytest.raises(InputError, match="'SAGEE'"):
        resolve({"model": {"name": "SAGEE"}})


def test_a_path_is_its_text(tmp_path):
    job = resolve({"start_from": tmp_path, "partition": {"owners": tmp_path}})
    assert job.start_from == job.partition.owners == str(tmp_path)


@pytest.mark.parametrize("device", ["cuda:0", torch.device("cuda", 1)])
def test_a_numbered_gpu_is_refused(device):
    with pytest.raises(InputError, match="each rank uses one GPU"):
        resolve({"device": device})


def test_a_cut_has_its_balance_and_its_passes():
    table = {"system": "sar", "partition": {"method": "metis-streamed", "balance": "train", "passes": 5}}
    job = resolve(table)
    assert resolve(tomllib.loads(job.to_toml())) == job
    system = make_system(job)
    assert system.partition.partitioner == MetisStreamed("train", passes=5)
    assert configure({}, system=system).partition == job.partition


@pytest.mark.parametrize(
    ("partition", "phrase"),
    [
        (
            {"balance": "nodes"},
            "'metis-work' has no option 'balance'; leave it out, or take one of contiguous, metis-s",
        ),
        (
            {"method": "hash", "passes": 3},
            "'hash' has no option 'passes'; leave it out, or take one of ldg, fennel, me",
        ),
        ({"method": "metis-streamed", "passes": 2}, "passes is 2; expected a whole number, 3 or more"),
        ({"owners": "o.npy", "passes": 3}, "partition.passes is set, but partition.owners decides who owns a node"),
    ],
)
def test_options_that_a_cut_does_not_have_are_refused(partition, phrase):
    with pytest.raises(InputError, match=phrase):
        make_system(resolve({"system": "sar", "partition": partition}))


@pytest.mark.parametrize("value", [np.ones((150, 4)), torch.ones(150, 4)], ids=["array", "tensor"])
def test_an_array_in_the_place_of_a_word_is_named_by_type_and_shape(value: object) -> None:
    with pytest.raises(InputError) as caught:
        configure({"dataset": "karate"}, features=value)
    told = str(caught.value)
    assert f"'features' is of type {type(value).__name__} and shape [150, 4]:" in told and "\n" not in told
    with pytest.raises(InputError) as caught:
        configure({"dataset": "karate"}, features=[value])
    assert "\n" not in str(caught.value)
