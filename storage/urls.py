"""URLs: recognising them, and removing secrets. Credentials belong in the environment, since addresses are logged and
shown."""

import re
from pathlib import Path

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_WHOLE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:/{1,2})([^\s<>]+)")
"""With one slash: a URL that was once taken for a path."""
_HAS_PORTS = ("http", "https", "tcp", "tls", "ws", "wss", "ucx")
_HIDDEN = "***"


def is_url(location: str | Path) -> bool:
    """True if a location is a URL (``s3://bucket/prefix``), rather than a path."""
    return isinstance(location, str) and _URL.match(location) is not None


def without_secrets(text: str) -> str:
    """`text` with ``***`` in place of the user and password, and of the query, of each URL in it.

    A password may hold an ``@`` or a ``/``, as AWS's secret keys do, so everything before the last ``@`` is removed.
    """
    return _WHOLE.sub(_shown, text)


def has_secrets(text: str) -> bool:
    """True if a URL in `text` has a user, a password or a query."""
    return "://" in text and without_secrets(text) != text


def _shown(found: re.Match[str]) -> str:
    scheme, rest = found[1], found[2]
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    _, colon, port = host.partition(":")
    is_port = not colon or (scheme.partition(":")[0].lower() in _HAS_PORTS and port.isdigit()) or host.startswith("[")
    if "@" in host or ("@" in rest and not is_port):
        rest = f"{_HIDDEN}@{rest.rpartition('@')[2]}"
    address, mark, query = rest.partition("?")
    return scheme + (f"{address}?{_HIDDEN}" if mark and query else rest)
