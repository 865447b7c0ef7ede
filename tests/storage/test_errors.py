"""The error family: exit codes, and the builtins that each resembles."""

import numpy as np
import pytest

from millrace.storage import errors
from millrace.storage.errors import (
    InputError,
    MillraceError,
    MissingExtraError,
    QueueTimeoutError,
    RunError,
    StoreError,
    nearest,
    whole_number,
)


@pytest.mark.parametrize(
    ("error", "builtin", "code"),
    [
        (InputError, ValueError, 2),
        (MissingExtraError, ImportError, 2),
        (StoreError, ValueError, 2),
        (RunError, RuntimeError, 3),
        (QueueTimeoutError, TimeoutError, 3),
    ],
)
def test_family(error, builtin, code):
    caught = error("what was seen")
    assert isinstance(caught, MillraceError)
    assert isinstance(caught, builtin)
    assert caught.exit_code == code
    assert str(caught) == "what was seen"


def test_every_error_is_of_the_family():
    own = [e for e in vars(errors).values() if isinstance(e, type) and e.__module__ == errors.__name__]
    assert all(issubclass(e, MillraceError | UserWarning) for e in own)


def test_nearest():
    assert nearest("mettis", ["hash", "metis"]) == "; did you mean 'metis'?"
    assert nearest("zzz", ("hash", "metis")) == ""
    assert nearest("SAGE", ("gat", "sage")) == "; did you mean 'sage'?"
    for word, far in (
        ("cora", "rmat"),
        ("reddit", "digits"),
        ("class_weight", "tls_cert"),
        ("callbacks", "backend"),
        ("learning_rate", "weight_decay"),
    ):
        assert nearest(word, (far,)) == "", word


@pytest.mark.parametrize(
    ("value", "bounds", "expected"),
    [
        ("a", (), "x is 'a'; expected a whole number"),
        (True, (), "x is True; expected a whole number"),
        (1.0, (0,), "x is 1.0; expected a whole number, 0 or more"),
        (np.int64(-1), (0,), "expected a whole number, 0 or more"),
        (0, (1, 8), "x is 0; expected a whole number from 1 to 8"),
        (9, (1, 8), "x is 9; expected a whole number from 1 to 8"),
    ],
)
def test_no_whole_number(value, bounds, expected):
    with pytest.raises(InputError, match=expected):
        whole_number("x", value, *bounds)


def test_whole_numbers_are_ints():
    for value in (3, np.uint8(3), np.int64(3)):
        number = whole_number("x", value, 1, 3)
        assert type(number) is int
        assert number == 3


def test_an_input_error_is_shown_without_what_was_handled_when_it_was_raised():
    import traceback

    for error, shown in ((InputError, False), (MissingExtraError, False), (RunError, True)):
        try:
            try:
                raise KeyError("inner")
            except KeyError:
                raise error("what was seen")  # noqa: B904
        except MillraceError as e:
            text = "".join(traceback.format_exception(e))
        assert ("during handling" in text.lower()) == shown
