"""Minibatch queue on an object store: S3, Google Cloud Storage, Azure, or any other URL that obstore supports.

The stores, their names and their bytes are those of `zarr`. An object store has atomic puts and no rename, so the
manifest commits a store: data objects are written first, the manifest last, and a store without one does not exist.

The endpoint, the region and the keys come from the environment, as obstore reads them: ``AWS_ENDPOINT_URL``,
``AWS_REGION``, ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, and ``AWS_ALLOW_HTTP=true`` for an endpoint without
TLS.
"""

import io
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zarr
from zarr.storage import MemoryStore, StorePath

from ..errors import InputError, MissingExtraError, RunError, StoreError, install
from ..store.arrays import open_array, write_arrays
from ..store.manifest import MANIFEST, manifest_text, no_manifest, parse_manifest
from ..urls import has_secrets, is_url
from .bulk_codec import Words
from .location import BULK_KIND, Header, Location, unreadable
from .zarr import ZarrQueue

if TYPE_CHECKING:
    from zarr.core.buffer import Buffer

REQUEST_TIMEOUT_S, RETRY_TIMEOUT_S, MAX_RETRIES = 15, 10, 3
"""Timeouts and retries. A request is retried within RETRY_TIMEOUT_S of its start, so a store that does not answer is
given up after at most REQUEST_TIMEOUT_S + RETRY_TIMEOUT_S."""
UPLOADS = 4
"""Parts (5 MiB each) of a large shard uploaded at once: few enough for each to end within REQUEST_TIMEOUT_S on a slow
line."""
RANGE_BYTES = 8 << 20
"""Bytes of packed rows that a request asks for."""
DOWNLOAD_BYTES = 8 << 20
"""Bytes of an object that are in memory while it is copied."""
_SILENT = re.compile(r"HTTP error: (?!builder)|status code: (?:5\d\d|408|429)")
"""Messages of obstore that mean no answer, or a temporary failure. A request that the server refuses would be refused
again."""
_BULK_OBJECT = re.compile(r"(epoch-\d+/(?:bulk|rows)-\d+)/")


def queue_at(location: str | Path) -> type[ZarrQueue]:
    """Queue class for a location: ``queue_at(where).create(where, ...)``, ``queue_at(where).open(where)``."""
    return ObjectQueue if is_url(location) else ZarrQueue


class ObjectLocation:
    """A prefix of an object store.

    Raises:
        InputError: the URL holds credentials or a query, which obstore would not use.
        MissingExtraError: obstore is not installed.
        StoreError: the URL or the environment is not usable; the bucket is missing; access is refused.
        RunError: the object store does not answer, within `REQUEST_TIMEOUT_S` + `RETRY_TIMEOUT_S` seconds.
    """

    def __init__(self, url: str) -> None:
        if has_secrets(url):
            raise InputError(
                f"{url} holds credentials or a query, and is written down and shown; leave them out, and give keys in "
                "the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, ... for S3)"
            )
        try:
            import obstore
            from obstore.store import from_url
        except ImportError:
            raise MissingExtraError(f"{url} needs obstore, which is not installed: {install('cloud')}") from None
        # Options given here would override the environment, so this one is read from it.
        allow_http = any(
            os.environ.get(f"{cloud}_ALLOW_HTTP", "").lower() in ("true", "1", "yes")
            for cloud in ("AWS", "AZURE", "GOOGLE")
        )
        self.url = url
        self._obstore = obstore
        with self._asking():
            self._objects = from_url(
                url,
                client_options={"timeout": timedelta(seconds=REQUEST_TIMEOUT_S), "allow_http": allow_http},
                retry_config={"max_retries": MAX_RETRIES, "retry_timeout": timedelta(seconds=RETRY_TIMEOUT_S)},
            )

    def path(self, name: str) -> str:
        return "/".join(part for part in (self.url.rstrip("/"), name) if part)

    def has(self, name: str) -> bool:
        with self._asking():
            try:
                self._obstore.head(self._objects, _manifest(name))
            except FileNotFoundError:
                return False
        return True

    def names(self, under: str) -> set[str]:
        below = [key.split("/") for key in self._keys(under)]
        return {parts[0] for parts in below if len(parts) > 1 and parts[-1] == MANIFEST}

    def manifest(self, name: str, kind: str) -> dict[str, Any]:
        with self._asking():
            try:
                text = self._obstore.get(self._objects, _manifest(name)).bytes().to_bytes()
            except FileNotFoundError as e:
                if "NoSuchBucket" in str(e):
                    raise
                raise no_manifest(self.path(name)) from None
        return parse_manifest(text, self.path(name), kind)

    def rows(self, name: str) -> zarr.Array:
        """See `Location.rows`. The array reads a minibatch by two byte ranges: the shard's index, and its chunk."""
        from zarr.storage import ObjectStore

        entries = self.manifest(name, BULK_KIND)["arrays"]
        with self._asking():
            at = StorePath(ObjectStore(self._objects, read_only=True), f"{name}/arrays/rows")
            return open_array(at, "rows", entries, self.path(name))

    def commit(self, name: str, header: Header, words: Words | None = None, *, overwrite: bool = False) -> None:
        """See `Location.commit`. Two writers of one bulk put the same bytes in the same objects."""
        if not overwrite and self.has(name):
            return
        data: dict[str, Buffer] = {}
        entries = {} if words is None else write_arrays(MemoryStore(data), {"rows": words}, one_shard=True)
        text = manifest_text(*header, entries).encode()
        with self._asking():
            for key, value in data.items():
                self._obstore.put(
                    self._objects, f"{name}/arrays/{key}", value.as_buffer_like(), max_concurrency=UPLOADS
                )
            if overwrite:
                self._obstore.put(self._objects, _manifest(name), text)
            else:
                self._create(_manifest(name), text)

    def _create(self, key: str, text: bytes) -> None:
        with suppress(self._obstore.exceptions.AlreadyExistsError):
            try:
                self._obstore.put(self._objects, key, text, mode="create")
            except NotImplementedError:
                # AWS_CONDITIONAL_PUT=disabled, for servers without conditional puts: the last of two writers then wins.
                self._obstore.put(self._objects, key, text)

    @contextmanager
    def making(self, name: str, kind: str, meta: Mapping[str, object]) -> Iterator[Path]:
        """See `Location.making`. Files lie in a temporary folder of this machine until then."""
        with tempfile.TemporaryDirectory(prefix="millrace-rows-") as folder:
            yield Path(folder)
            with self._asking():
                for path in sorted(Path(folder).iterdir()):
                    self._obstore.put(self._objects, f"{name}/{path.name}", path, max_concurrency=UPLOADS)
                self._create(_manifest(name), manifest_text(kind, {}, meta, {}).encode())

    def read(self, name: str, file: str, first: int, into: memoryview) -> Iterator[memoryview]:
        """See `Location.read`: by ranges of `RANGE_BYTES`, several at a time."""
        end = first + len(into)
        starts = list(range(first, end, RANGE_BYTES))
        with self._asking():
            ends = [min(at + RANGE_BYTES, end) for at in starts]
            found = self._obstore.get_ranges(self._objects, f"{name}/{file}", starts=starts, ends=ends, coalesce=0)
            pieces = [memoryview(piece).cast("B") for piece in found]
        done = 0
        for piece in pieces:
            into[done : done + len(piece)] = piece
            yield piece
            done += len(piece)
        if done < len(into):
            raise unreadable(self.path(f"{name}/{file}"), first + done, "it ends there")

    def remove(self, name: str) -> None:
        self._delete([_manifest(name)])
        self._delete([f"{name}/{key}" for key in self._keys(name)])

    def remove_empty(self, name: str) -> None:
        """See `Location.remove_empty`. Object stores have no folders."""

    def sweep(self) -> None:
        keys = self._keys("")
        whole = {key for key in keys if key.endswith(f"/{MANIFEST}")}
        self._delete([key for key in keys if (m := _BULK_OBJECT.match(key)) and f"{m[1]}/{MANIFEST}" not in whole])

    def silence(self, error: Exception) -> RunError | None:
        if not _SILENT.search(str(error)):
            return None
        return RunError(
            f"{self.url} does not answer ({_gist(error)}); see the endpoint in the environment (AWS_ENDPOINT_URL for "
            "S3) and the network, then go on: what is there is kept"
        )

    def files(self) -> dict[str, tuple[int, int]]:
        """Size, and time of the last change in nanoseconds, of each object by its name."""
        with self._asking():
            found = [item for batch in self._obstore.list(self._objects) for item in batch]
        return {item["path"]: (item["size"], round(item["last_modified"].timestamp() * 1e9)) for item in found}

    def reader(self, name: str) -> "ObjectReader":
        """An object as a file, of which ranges are read."""
        with self._asking():
            return ObjectReader(self._obstore.open_reader(self._objects, name), self._asking)

    def upload(self, store: Path) -> None:
        """Put the files of a store that lies in a folder, the manifest last.

        Raises:
            StoreError: a store is there already, or access is refused.
            RunError: the object store does not answer.
        """
        if self.has(""):
            raise StoreError(f"{self.url} exists already; choose another URL, or remove it first")
        with self._asking():
            for path in sorted(p for p in store.rglob("*") if p.is_file() and p.name != MANIFEST):
                self._obstore.put(self._objects, path.relative_to(store).as_posix(), path, max_concurrency=UPLOADS)
            self._create(MANIFEST, (store / MANIFEST).read_bytes())

    def download(self, folder: Path) -> None:
        """Copy all objects into a folder."""
        for name in self._keys(""):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._asking(), path.open("wb") as file:
                for piece in self._obstore.get(self._objects, name).stream(min_chunk_size=DOWNLOAD_BYTES):
                    file.write(piece)

    def _keys(self, under: str) -> list[str]:
        """Keys of the objects below `under`, relative to it."""
        prefix = f"{under}/" if under else ""
        with self._asking():
            found = [
                item["path"] for batch in self._obstore.list(self._objects, prefix=prefix or None) for item in batch
            ]
        return [key.removeprefix(prefix) for key in found]

    def _delete(self, keys: list[str]) -> None:
        with self._asking(), suppress(FileNotFoundError):
            if keys:
                self._obstore.delete(self._objects, keys)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Turn obstore's exceptions into Millrace's."""
        try:
            yield
        except (self._obstore.exceptions.BaseError, OSError, StoreError) as e:
            if (silence := self.silence(e)) is not None:
                raise silence from e
            if isinstance(e, StoreError):
                raise
            raise StoreError(
                f"{self.url} cannot be used ({_gist(e)}); see that the bucket (or folder) exists, and that the keys in "
                "the environment (AWS_ACCESS_KEY_ID, AWS_ALLOW_HTTP, ... for S3) let you read and write there"
            ) from e


class ObjectReader(io.RawIOBase):
    """An object as a file that is read by ranges."""

    def __init__(self, reader: Any, asking: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()
        self._reader, self._asking = reader, asking

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Position after the move, in bytes."""
        with self._asking():
            return self._reader.seek(offset, whence)

    def readinto(self, buffer: Any, /) -> int:
        """Number of bytes read."""
        view = memoryview(buffer).cast("B")
        with self._asking():
            found = memoryview(self._reader.read(len(view)))
        view[: len(found)] = found
        return len(found)


def _manifest(name: str) -> str:
    return f"{name}/{MANIFEST}" if name else MANIFEST


def _gist(error: Exception) -> str:
    """Short form of an obstore error: with its code, without the server's document and the dump of its state."""
    code = re.search(r"<Code>(\w+)</Code>", str(error))
    return re.split(r"\n|<\?xml|<Error>", str(error))[0].rstrip(": ") + (f": {code[1]}" if code else "")


class ObjectQueue(ZarrQueue):
    """A `ZarrQueue` below a URL such as ``s3://bucket/prefix``.

    Its methods raise StoreError if the object store refuses a request, and RunError if it does not answer in time; see
    `ObjectLocation`.
    """

    # A poll is one or two requests. Five polls a second are cheap compared with the seconds that sampling a bulk takes,
    # and let a thousand waiting ranks stay below the 5500 reads a second that S3 serves under one prefix.
    _poll_s = 0.2
    _remedy = "mend that"
    _reads_bulks = False

    @staticmethod
    def _location_at(path: str | Path) -> Location:
        return ObjectLocation(str(path))
