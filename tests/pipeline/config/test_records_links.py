"""Sources of pairs are ranked where they can be, and refused elsewhere."""

import numpy as np
import pytest

import millrace as mr
from millrace.storage.errors import InputError

JOB = {"hidden": 8, "layers": 1, "epochs": 1, "verbose": False, "threads": 1}


def test_sources_are_ranked_too(tmp_path):
    data = mr.link_dataset(mr.open_dataset("sbm:nodes=80,classes=3"))
    runs = {
        ends: mr.run(data, out=tmp_path / ends, link={"ranked": ends, "decoder": "complex"}, **JOB)
        for ends in ("destination", "both")
    }
    assert runs["both"].parameters_sha256 == runs["destination"].parameters_sha256
    assert runs["both"].test_metrics["mrr"] != runs["destination"].test_metrics["mrr"]
    assert 0 < runs["both"].test_metrics["mrr"] <= 1


def test_where_sources_cannot_be_ranked_they_are_refused(tmp_path):
    data = mr.open_dataset("sbm:nodes=80,classes=3")
    pairs = np.stack([np.arange(40), (np.arange(40) * 7 + 3) % 80], 1)
    given = {"train": pairs[:20], "val": pairs[20:30], "test": pairs[30:], "val_negatives": np.add(pairs[:5], [0, 30])}
    np.savez(tmp_path / "pairs.npz", **given)
    links = mr.link_dataset(data, pairs=tmp_path / "pairs.npz")
    with pytest.raises(InputError, match=r'link\.ranked is "both", but given negatives are ranked against'):
        mr.run(links, out=tmp_path / "given", link={"ranked": "both"}, **JOB)
    whole, both = mr.link_dataset(data), {"link": {"ranked": "both"}, **JOB}
    with pytest.raises(InputError, match="ranks that hold parts tell each other"):
        mr.run(whole, out=tmp_path / "parts", ranks=2, bulk={"topology": "partitioned"}, **both)
    timed = mr.link_dataset(mr.open_dataset("tsbm:nodes=80,classes=3"), split="time:0.7,0.15")
    with pytest.raises(InputError, match="samples by time are drawn around destinations"):
        mr.run(timed, out=tmp_path / "time", sampler={"name": "temporal", "fanout": [4]}, **both)
