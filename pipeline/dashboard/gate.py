"""Access to the page: requests need its token, and must be sent to a name or address of the scheduler's machine."""

import hmac
import ipaddress
import socket
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from tornado.httputil import HTTPServerRequest
from tornado.web import ErrorHandler, RequestHandler

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Hosts that are always accepted, including requests through an ssh tunnel."""
UNKNOWN = (
    "the request names a host that this scheduler does not have; behind a proxy, allow its name: "
    "set cluster.dashboard_hosts of the run"
)
FORM = """<!DOCTYPE html><title>Millrace</title>
<p>This page needs the token of the address that the run has printed (<code>this run: ...?token=...</code>).
<form><input name="token" type="password" autofocus> <button>Show</button></form>
"""


def guard(application: Any, token: str, hosts: Collection[str], any_address: bool) -> None:
    """Make an application answer only requests with the token that are sent to a known host.

    A web page elsewhere whose name is made to resolve to this machine (DNS rebinding) sends that name as the host.

    Args:
        application: a Tornado application.
        token: required as ``?token=`` in a request.
        hosts: names and addresses that requests may be sent to, looked up at each.
        any_address: accept any IP address as the host.
    """
    find = application.find_handler

    def guarded(request: HTTPServerRequest, **options: Any) -> Any:
        found = find(request, **options)
        if issubclass(found.handler_class, ErrorHandler):
            return found
        if not _is_known(request.host, hosts, any_address):
            return application.get_handler_delegate(request, _Refused, {"why": UNKNOWN})
        given = request.query_arguments.get("token", [b""])[-1]
        if not hmac.compare_digest(given, token.encode()):
            return application.get_handler_delegate(request, _Refused, {"why": FORM})
        return found

    application.find_handler = guarded


def known_hosts(scheduler: Any) -> tuple[set[str], bool]:
    """Hosts in the addresses of a scheduler's dashboard, and True if one stands for all the machine's addresses."""
    bound = str(scheduler.http_server.address)
    hosts = {*LOOPBACK, bound, urlsplit(scheduler.address).hostname or ""} - {""}
    if bound not in LOOPBACK:
        hosts |= {name.lower() for name in (socket.gethostname(), socket.getfqdn())}
    return hosts, bound in ("", "0.0.0.0", "::")


def _is_known(host: str, hosts: Collection[str], any_address: bool) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name in hosts or (any_address and ipaddress.ip_address(name) is not None)
    except ValueError:
        return False


class _Refused(RequestHandler):
    def initialize(self, why: str) -> None:
        self._why = why

    def prepare(self) -> None:
        self.set_status(403)
        self.set_header("Cache-Control", "no-store")
        self.finish(self._why)
