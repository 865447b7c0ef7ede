"""Seconds of messages over other links: the arithmetic, and measurements over links that are really that slow."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.benchmarks.retexo_links import network_seconds
from millrace.pipeline.planning.network import LINKS, Link
from millrace.storage.ledger import KINDS, Ledger
from millrace.tests.contracts.fresh_python import FreshPython

FREE = Link(float("inf"), 0.0)


def record(*ledgers: Ledger) -> dict:
    """The keys of ``result.json`` that `network` reads."""
    return {"bytes": {"per_rank": [ledger.as_record() for ledger in ledgers]}, "waits": ledgers[0].waits()}


def test_the_rank_that_sends_most_and_every_wait_are_paid_for():
    a, b = Ledger(), Ledger()
    a.add("network", "gradients", 1000, waits=6)
    b.add("network", "gradients", 4000, waits=6)
    a.add("network", "features", 500, waits=1)
    b.add("evaluation", "control", 200, waits=2)
    a.add("evaluation", "control", 100, waits=3)
    a.add("store", "features", 10**12)  # no message
    found = network_seconds(record(a, b), Link(100.0, 0.5))
    assert found == {"graph": 0, "features": 5 + 1.0, "activations": 0, "gradients": 40 + 6, "control": 0}
    assert network_seconds(record(a, b), Link(100.0, 0.5), "evaluation")["control"] == 2 + 3.0


amounts = st.dictionaries(
    st.sampled_from([(c, k) for c in ("network", "evaluation") for k in KINDS[c]]),
    st.tuples(st.integers(0, 10**9), st.integers(0, 10**4)),
)


def ledger_of(amounts: dict) -> Ledger:
    ledger = Ledger()
    for (channel, kind), (num_bytes, waits) in amounts.items():
        ledger.add(channel, kind, num_bytes, waits)
    return ledger


@given(amounts, amounts)
def test_a_link_that_costs_nothing_adds_nothing_and_a_worse_one_more(a, b):
    run, link = record(ledger_of(a), ledger_of(b)), Link(1e6, 0.01)
    for channel in ("network", "evaluation"):
        assert not any(network_seconds(run, FREE, channel).values())
        seconds = network_seconds(run, link, channel)
        for worse in (Link(5e5, 0.01), Link(1e6, 0.02)):
            assert all(s >= seconds[kind] for kind, s in network_seconds(run, worse, channel).items())
        # Twice as slow in both ways is twice as long, to the last bit.
        assert network_seconds(run, Link(5e5, 0.02), channel) == {
            kind: pytest.approx(2 * s, rel=1e-12) for kind, s in seconds.items()
        }


def test_typical_links_differ_as_they_should():
    for link in LINKS.values():
        assert link.bandwidth > 0
        assert 0 < link.latency_s < 1
    assert (
        LINKS["data centre"].bandwidth > LINKS["wan"].bandwidth > LINKS["edge"].bandwidth > LINKS["proximity"].bandwidth
    )


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


RANKS = 4
MBIT = 20
REPEATS = 3
NETWORK = "10.213.9"


@pytest.fixture(scope="module")
def slow_links() -> Iterator[list[str]]:
    """Namespaces at one switch, each of which sends and receives at `MBIT`."""
    if shutil.which("ip") is None or shutil.which("tc") is None or os.geteuid() != 0:
        pytest.skip("slow links need root and the commands `ip` and `tc`")
    switch, spaces = f"ml{os.getpid()}s", [f"ml{os.getpid()}n{r}" for r in range(RANKS)]
    shape = f"root tbf rate {MBIT}mbit burst 16kb latency 400ms".split()
    try:
        try:
            ip("netns", "add", switch)
            ip("-n", switch, "link", "add", "br0", "type", "bridge")
            ip("-n", switch, "link", "set", "br0", "up")
            for r, space in enumerate(spaces):
                ip("netns", "add", space)
                ip("-n", switch, "link", "add", f"p{r}", "type", "veth", "peer", "name", "link0", "netns", space)
                ip("-n", switch, "link", "set", f"p{r}", "master", "br0", "up")
                ip("-n", space, "addr", "add", f"{NETWORK}.{r + 1}/24", "dev", "link0")
                for device in ("lo", "link0"):
                    ip("-n", space, "link", "set", device, "up")
                for at, device in ((space, "link0"), (switch, f"p{r}")):
                    ip("netns", "exec", at, "tc", "qdisc", "add", "dev", device, *shape)
        except subprocess.CalledProcessError as e:
            pytest.skip(f"this machine allows no slow links: {e.stderr.strip()}")
        yield spaces
    finally:
        for space in (*spaces, switch):
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", space)


SPEAK = f"""
import json, sys, time
import torch
import torch.distributed as dist
from millrace.stages.comm.gloo import Contact, Gloo
from millrace.storage.ledger import Ledger

rank, size = int(sys.argv[1]), {RANKS}
store = dist.TCPStore("{NETWORK}.1", 29400, is_master=rank == 0, wait_for_workers=False)
ledger = Ledger()
group = Gloo(store, rank, size, ledger, Contact("{NETWORK}." + str(rank + 1)))
rows = list(torch.zeros(size * 100_000).split(100_000))
into = list(torch.empty((size - 1) * 100_000).split([0 if r == rank else 100_000 for r in range(size)]))
flat, back, small = torch.zeros(250_000), torch.empty(250_000), torch.zeros(1)


def swap():
    work = group.swap(flat, rank ^ 1, back, rank ^ 1, 7, "activations")
    work.received("")
    work.sent("")


calls = {{
    "features": lambda: group.all_to_all(rows, "features", into),
    "gradients": lambda: group.all_reduce(flat, "gradients"),
    "activations": swap,
    "control": lambda: group.all_reduce(small, "control"),
}}
seconds = {{kind: [] for kind in calls}}
for _ in range({REPEATS}):
    for kind, call in calls.items():
        group.any(False)
        start = time.perf_counter()
        call()
        seconds[kind].append(time.perf_counter() - start)
print(json.dumps({{"seconds": seconds, "bytes": ledger.as_record(), "waits": ledger.waits()}}))
group.any(False)
group.close()
"""


@pytest.mark.slow
def test_messages_over_slow_links_take_what_is_predicted(slow_links, tmp_path):
    files = [(tmp_path / f"told-{r}", tmp_path / f"errors-{r}") for r in range(RANKS)]
    running = [
        FreshPython("-c", SPEAK, r, out=out, err=err, namespace=Path("/run/netns", space))
        for r, (space, (out, err)) in enumerate(zip(slow_links, files))
    ]
    try:
        codes = [p.wait(240) for p in running]
    finally:
        for p in running:
            p.kill()
    assert codes == [0] * RANKS, [err.read_text() for _, err in files]
    ranks = [json.loads(out.read_text()) for out, _ in files]
    run = {"bytes": {"per_rank": [r["bytes"] for r in ranks]}, "waits": ranks[0]["waits"]}
    predicted = network_seconds(run, Link(MBIT * 1e6 / 8, 1e-4))
    # The soonest of several, and of each the rank that was last: other work on this machine makes all of them late.
    took = {kind: min(map(max, zip(*(r["seconds"][kind] for r in ranks)))) for kind in ranks[0]["seconds"]}
    # Headers take a twentieth. Messages of three ranks to one get in each other's way; those of two to each other must
    # not.
    for kind, most in {"features": 2.3, "gradients": 1.5, "activations": 1.7}.items():
        once = predicted[kind] / REPEATS
        assert once > 0.35, "enough for the link to be what is waited for"
        assert 0.95 * once < took[kind] < most * once, (kind, once, took[kind])
    assert took["control"] < 0.05, "a few bytes take next to nothing"
    assert ranks[0]["waits"]["network"] == {
        "graph": 0,
        "features": REPEATS,
        "activations": REPEATS,
        "gradients": REPEATS * 2 * (RANKS - 1),
        "control": REPEATS * (len(took) + RANKS - 1),  # `any` before each; one element has only to go round
    }
