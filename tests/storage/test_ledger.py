"""The ledger counts every byte once, whoever adds it."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from millrace.storage.ledger import KINDS, Ledger


def test_starts_at_zero_with_every_kind():
    record = Ledger().as_record()
    assert {c: tuple(kinds) for c, kinds in record.items()} == KINDS
    assert set(record) == {"network", "store", "evaluation"}
    assert all(v == 0 for kinds in record.values() for v in kinds.values())


def test_adds_by_channel_and_kind():
    ledger = Ledger()
    for channel, kinds in KINDS.items():
        for i, kind in enumerate(kinds):
            ledger.add(channel, kind, i)
            ledger.add(channel, kind, 10)
            assert ledger.get(channel, kind) == 10 + i
    assert ledger.as_record() == {c: {k: 10 + i for i, k in enumerate(kinds)} for c, kinds in KINDS.items()}


@pytest.mark.parametrize(
    "key", [("network", "minibatches"), ("store", "gradients"), ("disk", "graph"), ("evaluation", "feature")]
)
def test_refuses_unknown_kinds(key):
    with pytest.raises(AssertionError, match="knows no"):
        Ledger().add(*key, 1)


def test_knows_who_was_sent_what():
    ledger = Ledger()
    ledger.add("network", "features", 10, to=[0, 10, 0])
    ledger.add("network", "features", 7, to=[0, 3, 4])
    ledger.add("network", "gradients", 5)
    ledger.add("evaluation", "graph", 0, to=[0, 0, 0])
    assert ledger.sent_to() == {"network": {"features": [0, 13, 4]}}
    assert ledger.get("network", "features") == 17


def test_refuses_negative_bytes():
    with pytest.raises(AssertionError, match="only add up"):
        Ledger().add("network", "graph", -1)


def test_merges_ledgers_and_records():
    a, b = Ledger(), Ledger()
    a.add("network", "features", 5)
    b.add("network", "features", 7)
    b.add("store", "graph", 1)
    a.merge(b)
    a.merge(b.as_record())
    a.merge(a)
    assert (a.get("network", "features"), a.get("store", "graph")) == (38, 4)
    assert b.get("network", "features") == 7


def test_state_is_plain_and_goes_back():
    ledger = Ledger()
    ledger.add("network", "control", 3)
    state = json.loads(json.dumps(ledger.counts()))
    ledger.add("network", "control", 4)
    ledger.add("store", "features", 4)
    ledger.restore(state)
    assert ledger.counts() == state
    ledger.add("network", "control", 1)
    assert ledger.get("network", "control") == 4


def test_many_threads_lose_nothing():
    ledger = Ledger()
    with ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(lambda: [ledger.add("network", "activations", 1) for _ in range(2000)])
    assert ledger.get("network", "activations") == 16000
