"""Samplers of the user's own, by the names of their classes."""

import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest

import millrace as mr
from millrace.pipeline.config.load import resolve
from millrace.pipeline.config.records import make_system
from millrace.pipeline.setup.configure import configure
from millrace.storage.errors import InputError
from millrace.tests.contracts.matrix_neighbor import MatrixNeighbor

NAME = "millrace.tests.contracts.matrix_neighbor:MatrixNeighbor"


def test_a_sampler_is_found_by_the_name_of_its_class() -> None:
    job = resolve({"dataset": "digits", "sampler": {"name": NAME, "fanout": [4, 3]}})
    assert (job.sampler["name"], job.model["layers"]) == (NAME, 2)
    assert make_system(job).sample.sampler == MatrixNeighbor((4, 3))


def test_the_sampler_of_a_system_is_named_by_its_class_unless_it_has_a_registered_name() -> None:
    named = configure({"dataset": "digits"}, system=mr.bulk(MatrixNeighbor((4, 3))))
    assert named.sampler == {"name": NAME, "fanout": [4, 3], "edge_ids": False}
    assert configure({"dataset": "digits"}, system=mr.bulk(mr.LaborSampler((4, 3)))).sampler["name"] == "labor"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere:Own", r"sampler is 'nowhere:Own', which cannot be imported \(ModuleNotFoundError"),
        ("json:Own", r"sampler is 'json:Own', which cannot be imported \(AttributeError"),
        ("json:JSONDecoder", "sampler.name is 'json:JSONDecoder', which is no sampler; expected a frozen dataclass"),
        ("json:", "sampler is 'json:'; expected MODULE:NAME"),
    ],
)
def test_names_of_no_sampler_are_refused(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        resolve({"dataset": "digits", "sampler": {"name": name}})


@dataclass(frozen=True)
class OfScript(MatrixNeighbor):
    """As one that is defined in a script."""

    name: ClassVar[str] = "of-script"


def test_a_sampler_of_a_script_serves_its_own_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OfScript, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "OfScript", OfScript, raising=False)
    system = mr.bulk(OfScript((4, 3)))
    assert configure({"dataset": "digits"}, system=system).sampler["name"] == "__main__:OfScript"
    with pytest.raises(InputError, match="the sampler OfScript is defined in the script or notebook that runs, which"):
        configure({"dataset": "digits", "ranks": 2}, system=system)


def test_the_eps_of_gin_is_no_option_of_an_optimizer():
    for model in ("sage", "gin"):
        with pytest.raises(InputError, match=f"model '{model}' has no option 'eps'; gin trains its eps"):
            resolve({"model": {"name": model, "eps": 0.1}})
