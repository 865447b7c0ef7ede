"""Named entries of one kind, such as samplers, open to other installed packages through entry points."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import Any, Generic, TypeVar

from .errors import InputError, one_of

T = TypeVar("T")
LONGEST = 80
"""Characters of an unknown name that a message shows."""


@cache
def entry_points_by_group() -> Mapping[str, tuple[EntryPoint, ...]]:
    """Entry points for Millrace of all installed packages, whose files are read once, not for each kind."""
    found = entry_points()
    return {group: tuple(found.select(group=group)) for group in found.groups if group.startswith("millrace.")}


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from names to entries.

    Entries that live in another module, or in another package, are imported when they are first looked up. One that
    cannot be imported breaks no other.
    """

    def __init__(
        self, kind: str, entries: Iterable[T] = (), deferred: Mapping[str, Callable[[], T]] | None = None
    ) -> None:
        """
        Args:
            kind: a word for one entry, in messages. Packages add theirs under ``millrace.<kind>s``.
            entries: each with a `name`.
            deferred: imports of further entries, by name.
        """
        self.kind, self.group = kind, f"millrace.{kind}s"
        self._entries: dict[str, T] = {}
        self._deferred: dict[str, Callable[[], T]] = dict(deferred or {})
        self._scanned = False
        for entry in entries:
            self.register(entry)

    def register(self, entry: T) -> T:
        """Add an entry under its `name`. Returns it, so that this can decorate a class.

        Raises:
            InputError: the name is taken by another entry.
        """
        # pyrefly: ignore[missing-attribute]
        name: str = entry.name
        if self._entries.get(name, entry) is not entry or (name in self._deferred and name not in self._entries):
            raise InputError(f"the {self.kind} '{name}' is registered already; give this one another name")
        self._entries[name] = entry
        return entry

    def find(self, name: str, key: str | None = None) -> T:
        """The entry of this name.

        Args:
            name: to look up.
            key: what a message calls it, such as ``sampler.name``; by default the registry's kind.

        Raises:
            InputError: there is none, or it cannot be imported.
        """
        self._scan()
        if name in self._entries:
            return self._entries[name]
        if name not in self._deferred:
            known, shown = list(self), name[:LONGEST]
            raise InputError(f"{key or self.kind} is '{shown}'; {one_of(shown, known)}")
        # It stays deferred where this fails, and is tried again.
        self._entries[name] = self._deferred[name]()
        return self._entries[name]

    def available(self) -> dict[str, T]:
        """All entries that can be imported."""
        found: dict[str, T] = {}
        for name in self:
            try:
                found[name] = self.find(name)
            except InputError:
                continue
        return found

    def _scan(self) -> None:
        """Look for entry points of installed packages, once."""
        if self._scanned:
            return
        self._scanned = True
        for point in entry_points_by_group().get(self.group, ()):
            taken = point.name in self._entries or point.name in self._deferred
            self._deferred[point.name] = self._clash(point) if taken else self._load(point)
            if taken:
                self._entries.pop(point.name, None)

    def _load(self, point: EntryPoint) -> Callable[[], T]:
        def load() -> T:
            try:
                entry: Any = point.load()
            except Exception as e:
                reason = " ".join(f"{type(e).__name__}: {e}".split())[:200]
                raise InputError(
                    f"the {self.kind} '{point.name}' of {_package(point)} cannot be imported ({reason}); "
                    "install that package again, or remove it"
                ) from None
            if (name := getattr(entry, "name", None)) != point.name:
                raise InputError(
                    f"the {self.kind} '{point.name}' of {_package(point)} is {point.value}, whose name is {name!r}; "
                    "expected the name of its entry point"
                )
            return entry

        return load

    def _clash(self, point: EntryPoint) -> Callable[[], T]:
        def load() -> T:
            raise InputError(
                f"{_package(point)} brings a {self.kind} '{point.name}', which is the name of another; "
                "remove that package, or ask for another name in it"
            )

        return load

    def __getitem__(self, name: str) -> T:
        self._scan()
        if name not in self._entries and name not in self._deferred:
            raise KeyError(name)
        return self.find(name)

    def __contains__(self, name: object) -> bool:
        self._scan()
        return name in self._entries or name in self._deferred

    def __iter__(self) -> Iterator[str]:
        self._scan()
        return iter(list(dict.fromkeys([*self._entries, *self._deferred])))

    def __len__(self) -> int:
        return len(list(iter(self)))


def _package(point: EntryPoint) -> str:
    return f"package '{point.dist.name}' {point.dist.version}" if point.dist is not None else "an installed package"


def imported(module: str, name: str, package: str) -> Callable[[], Any]:
    """An import to be done later: `name` of `module`, which is relative to `package`."""
    return lambda: getattr(import_module(module, package), name)


@contextmanager
def importing(said: Callable[[str], str]) -> Iterator[None]:
    """Context in which modules are found as ``python -m`` would, in this folder or among installed packages; an error
    is an InputError that is `said` of its reason."""
    sys.path.insert(0, "")
    try:
        yield
    except Exception as e:
        raise InputError(said(f"{type(e).__name__}: {' '.join(str(e).split())[:200]}")) from e
    finally:
        sys.path.remove("")


def object_in(module: str, name: str) -> Any:
    """An object of a module by its name, whose parts dots divide."""
    return attrgetter(name)(import_module(module))


def found_by_name(name: str, kind: str) -> Any:
    """An object by its name MODULE:NAME, or MODULE.NAME, found as ``python -m`` would: in this folder or among
    installed packages.

    Args:
        name: the name.
        kind: what it stands for, for messages.

    Raises:
        InputError: it is not found.
    """
    module, colon, inner = name.partition(":")
    if not colon:
        module, _, inner = name.rpartition(".")
    if not (module and inner):
        raise InputError(f"{kind} is '{name}'; expected MODULE:NAME, such as my.code:{kind}, or the object itself")
    wanted = "expected MODULE:NAME of a module in this folder or installed"
    with importing(lambda reason: f"{kind} is '{name}', which cannot be imported ({reason}); {wanted}"):
        return object_in(module, inner)
