"""Names, entry points of other packages, and what is said of broken ones."""

from importlib.metadata import EntryPoint

import pytest

from millrace.storage import registry
from millrace.storage.errors import InputError
from millrace.storage.registry import Registry, imported


class Thing:
    def __init__(self, name):
        self.name = name


@pytest.fixture
def installed(monkeypatch):
    def install(*points):
        found = tuple(EntryPoint(name, value, "millrace.things") for name, value in points)
        monkeypatch.setattr(registry, "entry_points_by_group", lambda: {"millrace.things": found})

    return install


def things():
    return Registry("thing", (Thing("one"), Thing("two")))


def test_is_a_mapping_in_the_order_of_registration(installed):
    installed()
    r = things()
    r.register(Thing("three"))
    assert list(r) == ["one", "two", "three"] and len(r) == 3 and "two" in r
    assert r["two"].name == "two" and r.find("one") is r["one"]
    with pytest.raises(KeyError):
        r["four"]


def test_a_wrong_name_gets_the_nearest_and_the_key(installed):
    installed()
    with pytest.raises(
        InputError, match=r"^things\.name is 'thre'; expected one of one, two, three; did you mean 'three'"
    ):
        Registry("thing", map(Thing, ("one", "two", "three"))).find("thre", "things.name")


def test_a_name_is_registered_once(installed):
    installed()
    r = things()
    r.register(r["one"])
    with pytest.raises(InputError, match="the thing 'one' is registered already"):
        r.register(Thing("one"))


def test_deferred_entries_are_imported_when_they_are_looked_up(installed):
    installed()
    calls = []

    def load():
        calls.append(1)
        return Thing("late")

    r = Registry("thing", (), {"late": load})
    assert list(r) == ["late"] and not calls
    assert r.find("late") is r.find("late") and calls == [1]
    assert imported(".errors", "InputError", "millrace.storage")() is InputError


def test_entry_points_of_other_packages(installed, monkeypatch, tmp_path):
    (tmp_path / "another_package.py").write_text("class C: name = 'third'\nclass D: name = 'other'\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed(("third", "another_package:C"), ("fourth", "another_package:D"), ("gone", "no_such_package:E"))
    r = things()
    assert list(r) == ["one", "two", "third", "fourth", "gone"]
    assert r.find("third").name == "third"
    with pytest.raises(InputError, match="the thing 'gone' of an installed package cannot be imported"):
        r.find("gone")
    with pytest.raises(InputError, match="whose name is 'other'; expected the name of its entry point"):
        r.find("fourth")
    assert list(r.available()) == ["one", "two", "third"]


def test_a_name_that_two_packages_bring_is_refused(installed):
    installed(("one", "another:C"))
    with pytest.raises(InputError, match="brings a thing 'one', which is the name of another"):
        things().find("one")
