"""Clusters that a caller holds: addresses, files of schedulers, clients, and what is refused."""

import json

import pytest
from distributed import Client, LocalCluster

import millrace as mr
from millrace.pipeline.config.held_cluster import address_of, cluster_table, held_at, is_held
from millrace.pipeline.config.load import resolve
from millrace.storage.errors import InputError

ADDRESS = "tcp://10.0.0.1:8786"


def test_a_file_of_a_scheduler_is_its_address(tmp_path):
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"type": "Scheduler", "address": ADDRESS, "workers": {}}))
    assert address_of(file) == address_of(str(file)) == address_of(ADDRESS) == ADDRESS and address_of(None) is None
    assert resolve({"cluster": {"scheduler": str(file)}}).cluster.scheduler == ADDRESS
    for text in ("{", "[1]", '{"address": 3}', "[" * 100_000):
        file.write_text(text)
        with pytest.raises(InputError, match=r"scheduler\.json is no file of a scheduler"):
            address_of(file)
    with pytest.raises(InputError, match="is no file of a scheduler"):
        address_of(tmp_path / "gone.json")


def test_two_clusters_are_refused():
    assert cluster_table(ADDRESS, {"insecure": True}) == {"insecure": True, "scheduler": ADDRESS}
    assert cluster_table(ADDRESS, {"scheduler": ADDRESS}, ADDRESS) == {"scheduler": ADDRESS} and cluster_table() == {}
    other = "tcp://10.0.0.2:8786"
    with pytest.raises(InputError, match="scheduler and client name different Dask clusters"):
        cluster_table(ADDRESS, client=other)
    with pytest.raises(InputError, match=r"client and cluster\.scheduler name different"):
        cluster_table(None, {"scheduler": ADDRESS}, other)
    with pytest.raises(InputError, match="scheduler is a int; expected a Client or cluster of Dask"):
        cluster_table(3)


def test_classes_of_clusters_are_not_called():
    for kind in (LocalCluster, Client):
        with pytest.raises(InputError, match=f"scheduler is the class {kind.__name__}; expected a Client or cluster"):
            mr.run("digits", scheduler=kind, verbose=False)


def test_workers_that_are_threads_and_closed_clients_are_refused():
    with LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster, Client(cluster) as client:
        assert is_held(cluster) and is_held(client) and not is_held("distributed")
        for held in (cluster, client):
            with pytest.raises(InputError, match="are threads of this process, and ranks are processes"):
                mr.run("digits", scheduler=held, verbose=False)
    with pytest.raises(InputError, match="the Client is not running"):
        mr.predict("run", client=client)
    assert held_at(None) is None and held_at("inproc://gone") is None
    with LocalCluster(n_workers=1, processes=True, dashboard_address=None) as cluster, Client(cluster) as client:
        address = address_of(client)
        assert held_at(address) is client
    assert held_at(address) is None


def test_names_of_proxies():
    assert resolve({"cluster": {"dashboard_hosts": "Hub.example, b.example"}}).cluster.dashboard_hosts == [
        "hub.example",
        "b.example",
    ]
    for wrong in ("https://hub.example", "hub.example:443", "hub/x", "*", "", "a,,b"):
        with pytest.raises(InputError, match="names of hosts alone, such as"):
            resolve({"cluster": {"dashboard_hosts": wrong}})
