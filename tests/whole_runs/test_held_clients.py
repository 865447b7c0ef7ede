"""Runs, predictions, conversions and sweeps on a client that the caller holds, which stays open."""

import numpy as np
import pytest
from distributed import Client

import millrace as mr

JOB = {
    "dataset": "sbm:nodes=200,classes=3,train=0.4",
    "hidden": 8,
    "layers": 2,
    "epochs": 1,
    "verbose": False,
    "threads": 1,
}


def test_a_client_in_hand(scheduler, tmp_path):
    (tmp_path / "nodes.csv").write_text("id,label\n" + "".join(f"{v},{v % 2}\n" for v in range(20)))
    (tmp_path / "edges.csv").write_text("src,dst\n" + "".join(f"{v},{(v + 1) % 20}\n" for v in range(20)))
    with Client(scheduler) as client:
        run = mr.run(out=tmp_path / "run", client=client, ranks=2, **JOB)
        alone = mr.run(out=tmp_path / "alone", ranks=2, scheduler=scheduler, **JOB)
        assert run.parameters_sha256 == alone.parameters_sha256
        found = mr.predict(run, client=client)
        assert np.array_equal(found.probabilities, mr.predict(run, scheduler=client).probabilities)
        assert np.allclose(found.probabilities, mr.predict(run).probabilities)
        options = mr.ReadOptions(direction="directed")
        store = mr.convert(tmp_path, tmp_path / "store", client=client, workers=2, options=options, verbose=False)
        again = {"options": options, "verbose": False, "cluster": {"scheduler": scheduler}}
        assert store.path.is_dir() and mr.convert(tmp_path, tmp_path / "again", **again).path.is_dir()
        with pytest.raises(mr.InputError, match="client and cluster name different Dask clusters"):
            mr.convert(tmp_path, tmp_path / "third", client=client, cluster="tcp://127.0.0.1:9")
        swept = mr.sweep(out=tmp_path / "sweep", grid={"lr": [0.01, 0.02]}, client=client, **JOB)
        assert len(swept.rows) == 2 and not swept.failures
        assert client.status == "running" and client.submit(int, "7").result() == 7
