"""Refusals are made of the table, and no remedy that they name is refused in turn."""

import re
from itertools import combinations
from typing import Any

import pytest

from millrace.pipeline.config.capabilities import Asked, RefusedError, needs_of, rows
from millrace.pipeline.config.load import resolve
from millrace.pipeline.config.refusals import able_systems, refuse, table
from millrace.pipeline.config.systems import SYSTEMS
from millrace.stages.capabilities import Need

ASKED = {need: Asked(f"it asks for {need.value}", "the.key" if need is Need.OWNED else "") for need in Need}


def met_by(system: str) -> set[Need]:
    """Needs that no row of a system names."""
    return {*Need} - {row.need for row, _ in rows(SYSTEMS.find(system))}


@pytest.mark.parametrize("system", SYSTEMS.available())
def test_a_system_that_a_refusal_names_meets_all_that_the_job_asks_for(system: str) -> None:
    job = resolve({"system": system})
    for asked in (c for size in (1, 2, 3) for c in combinations(Need, size)):
        needs = {need: ASKED[need] for need in asked}
        for need in asked:
            if need in met_by(system) - {Need.MAPPED}:
                refuse(need, needs, job)
            elif need is not Need.MAPPED:
                with pytest.raises(RefusedError) as refused:
                    refuse(need, needs, job)
                named = re.search(r"; use ([a-z0-9_ ]+)", str(refused.value))
                for other in named[1].split(" or ") if named else ():
                    assert not {*asked} - met_by(other), refused.value
                assert refused.value.row is not None
                assert refused.value.row.need is need


def test_a_need_that_is_not_asked_for_is_not_refused() -> None:
    refuse(Need.TYPES, {}, resolve({"system": "grappa"}))


@pytest.mark.parametrize(
    ("config", "needs"),
    [
        ({}, set()),
        ({"learned": {"width": 4}}, {Need.LEARNED}),
        ({"features": "owned", "graph": "mapped"}, {Need.OWNED, Need.MAPPED}),
        ({"queue": {"kind": "zarr"}, "train": {"compile": True}}, {Need.QUEUE, Need.COMPILE}),
        ({"device": "cuda"}, {Need.DEVICE}),
    ],
)
def test_needs_are_those_of_the_keys(config: dict[str, Any], needs: set[Need]) -> None:
    assert needs_of(resolve(config)).keys() == needs


@pytest.mark.parametrize(
    ("config", "because"),
    [
        ({"system": "sar"}, "arranges the edges of one rank in memory"),
        ({"system": "grappa", "grappa": {"chunks": 2}}, "joins the chunks"),
        ({"system": "retexo", "ranks": 2, "retexo": {"inductive": True}}, "copies the edges"),
    ],
)
def test_forms_that_are_chosen_have_rows_of_their_own(config: dict[str, Any], because: str) -> None:
    job = resolve({**config, "graph": "mapped"})
    with pytest.raises(RefusedError, match=f"^graph is 'mapped', but system '.*' {because}.*; leave graph out$"):
        refuse(Need.MAPPED, needs_of(job), job)


@pytest.mark.parametrize("kernel", ["cuda", "cugraph"])
def test_a_kernel_is_refused_where_nothing_is_sampled(kernel: str) -> None:
    with pytest.raises(
        RefusedError, match=f"^kernel is \"{kernel}\", but system 'sar' samples nothing; leave kernel out$"
    ):
        resolve({"system": "sar", "kernel": kernel})


@pytest.mark.parametrize("bulk", [{}, {"topology": "partitioned"}, {"topology": "partitioned", "algorithm": "1.5d"}])
def test_gpus_draw_into_a_queue_on_disk_unless_another_kernel_is_named(bulk: dict[str, Any]) -> None:
    given = {"bulk": bulk, "queue": {"kind": "zarr"}, "device": "cuda", "ranks": 2}
    assert resolve(given).kernel == "cuda" and resolve({**given, "kernel": "cpu"}).kernel == "cpu"
    assert resolve({**given, "device": "cpu"}).kernel == "cpu"


def test_forms_that_are_not_chosen_have_none() -> None:
    for config in ({"system": "sar", "ranks": 2}, {"system": "grappa"}, {"system": "retexo", "ranks": 2}):
        job = resolve({**config, "graph": "mapped"})
        refuse(Need.MAPPED, needs_of(job), job)


def test_each_line_of_the_table_has_a_reason_and_occurs_once() -> None:
    lines = table()
    assert len({(part, row.need) for part, row in lines}) == len(lines)
    assert all(row.part and row.because for _, row in lines)
    assert {part.partition(",")[0] for part, _ in lines} <= {*SYSTEMS.available()}


def test_the_default_system_meets_every_need() -> None:
    assert next(iter(SYSTEMS)) in able_systems(ASKED)
