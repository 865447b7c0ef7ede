"""Kinds of arrays."""

from millrace.storage import array_kinds


def test_each_kind_has_one_name():
    kinds = {name: str(kind) for name, kind in vars(array_kinds).items() if name.endswith(("Array", "Mask"))}
    assert len({*kinds.values()}) == len(kinds) > 5
