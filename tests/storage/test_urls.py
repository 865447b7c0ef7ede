"""The secrets in a URL, and that no message shows them."""

import pytest

from millrace.storage import errors
from millrace.storage.urls import has_secrets, without_secrets

SECRET = [
    ("s3://KEY:SECRET@bucket/p", "s3://***@bucket/p"),
    ("s3://KEY:SE/CR+ET@bucket/p", "s3://***@bucket/p"),
    ("s3://KEY:S@CR/ET@bucket/p", "s3://***@bucket/p"),
    ("s3://KEY:9/SECRET@bucket/p", "s3://***@bucket/p"),
    ("tcp://user:SECRET@host:8786", "tcp://***@host:8786"),
    ("https://SECRET@host/x", "https://***@host/x"),
    ("https://host/x.npz?token=SECRET", "https://host/x.npz?***"),
    ("HTTPS://u:SECRET@[::1]:8/x?sig=SECRET", "HTTPS://***@[::1]:8/x?***"),
]
PLAIN = [
    "s3://bucket/p@v2", "https://host:8080/a@b", "tls://[fe80::1]:8786", "http://[::1]:80/x@y", "gs://b/x?", "/a/b:c@d",
    "user@host",
    "sbm:nodes=3", "/data/x:/y@z?",
]  # fmt: skip


@pytest.mark.parametrize(("text", "shown"), SECRET)
def test_secrets_are_left_out(text, shown):
    assert has_secrets(text) and has_secrets(f"see {text} there")
    assert without_secrets(f"see {text} there, or {text}") == f"see {shown} there, or {shown}"
    assert without_secrets(shown) == shown
    for kind in (
        errors.InputError,
        errors.MissingExtraError,
        errors.StoreError,
        errors.RunError,
        errors.QueueTimeoutError,
    ):
        assert str(kind(f"{text} is not there")) == f"{shown} is not there"


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_secret_stays(text):
    assert not has_secrets(text)


def test_what_is_left_of_a_url_that_was_taken_for_a_path():
    assert without_secrets("s3:/KEY:SECRET@bucket/p is no file") == "s3:/***@bucket/p is no file"
