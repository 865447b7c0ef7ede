"""Who is shown the page of a run, and who is not."""

import json
import urllib.error
import urllib.request
from types import SimpleNamespace

import dask.config
import pytest
from distributed import Client, LocalCluster

from millrace.pipeline.dashboard import gate, plugin, publisher

WAIT_S = 60


@pytest.fixture(scope="module")
def board():
    """A scheduler with the page, and the port of its dashboard."""
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(plugin.MillracePage())
        why, token = client.run_on_scheduler(plugin.opened, [])
        assert why == ""
        yield SimpleNamespace(port=cluster.scheduler.http_server.port, token=token)


def ask(board, path, host="127.0.0.1"):
    request = urllib.request.Request(f"http://127.0.0.1:{board.port}/{path}", headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


@pytest.mark.parametrize("path", ["millrace", "millrace.json", "millrace?part=1", "millrace?run=x&over=whole"])
def test_the_token_is_needed(board, path):
    joined = f"{path}{'&' if '?' in path else '?'}token="
    for refused in (path, joined, f"{joined}{board.token[:-1]}", f"{joined}{board.token}&token=x"):
        status, said = ask(board, refused)
        assert status == 403 and "needs the token" in said and board.token not in said
    for host in ("127.0.0.1", "localhost:1234", "[::1]:8787"):
        assert ask(board, f"{joined}{board.token}", host)[0] == 200
    for host in ("evil.example", "localhost.evil.example:8787", "10.0.0.1", "[", "127.0.0.1@evil.example:x"):
        status, said = ask(board, f"{joined}{board.token}", host)
        assert (status in (400, 403) and "a host that this scheduler does not have" in said) or status == 400


def test_a_proxys_name_is_allowed_by_a_run(monkeypatch):
    """By the key, and by Dask's own link, in whatever order runs come to a scheduler."""
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        assert publisher._register(client)[0] == ""
        _, token = client.run_on_scheduler(plugin.opened, [])
        there = SimpleNamespace(port=cluster.scheduler.http_server.port, token=token)
        path = f"millrace?token={token}"
        status, said = ask(there, path, "hub.example.org")
        assert status == 403 and "set cluster.dashboard_hosts" in said
        with dask.config.set({publisher.HOSTS: ["hub.example.org"]}):
            publisher._register(client)
        with dask.config.set({"distributed.dashboard.link": "https://Other.example/user/me/proxy/{port}/status"}):
            publisher._register(client)
        for host in ("hub.example.org", "hub.example.org:443", "other.example"):
            assert ask(there, path, host)[0] == 200
        assert ask(there, path, "evil.example")[0] == 403


def test_pages_of_dask_and_paths_that_are_not_there_are_left_alone(board):
    assert [ask(board, path)[0] for path in ("status", "health", "nowhere", "millrace/nowhere")] == [200, 200, 404, 404]


def test_a_page_that_fails_says_so_and_nothing_else(board, monkeypatch):
    monkeypatch.setattr(plugin, "body", lambda *_: 1 / 0)
    status, said = ask(board, f"millrace?token={board.token}&part=1")
    assert status == 200 and "This page has failed: ZeroDivisionError" in said
    assert json.loads(ask(board, f"millrace.json?token={board.token}")[1])["runs"] == []


@pytest.mark.parametrize(
    ("bound", "asked", "known"),
    [
        ("127.0.0.1", ["localhost", "127.0.0.1:1", "[::1]"], ["10.0.0.1", "head", "head.example", ""]),
        (
            "10.0.0.1",
            ["localhost", "10.0.0.1:8787", "HEAD:8787", "head.example"],
            ["10.0.0.2", "other.example", "head.evil"],
        ),
        ("0.0.0.0", ["localhost", "10.0.0.9:8787", "[fe80::1]:8787", "head"], ["other.example"]),
    ],
)
def test_hosts_are_those_of_the_scheduler(bound, asked, known, monkeypatch):
    monkeypatch.setattr(gate.socket, "gethostname", lambda: "head")
    monkeypatch.setattr(gate.socket, "getfqdn", lambda: "Head.Example")
    hosts = gate.known_hosts(SimpleNamespace(http_server=SimpleNamespace(address=bound), address="tls://10.0.0.1:8786"))
    if bound == "127.0.0.1":
        hosts = (hosts[0] - {"10.0.0.1"}, hosts[1])
    assert all(gate._is_known(host, *hosts) for host in asked)
    assert not any(gate._is_known(host, *hosts) for host in known)
