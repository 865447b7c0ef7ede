"""The environment of a rank's process."""

import dask.config
import pytest

from millrace.pipeline.cluster.rank_host import TRIM, own_environment


@pytest.mark.parametrize(
    ("of_worker", "of_dask", "left"),
    [("65536", 65536, None), ("1048576", 65536, "1048576"), (None, 65536, None), ("65536", None, "65536")],
)
def test_the_allocator_of_a_rank_is_not_that_of_its_worker(
    monkeypatch: pytest.MonkeyPatch, of_worker: str | None, of_dask: int | None, left: str | None
) -> None:
    """Values set by Dask are removed; values set by others, and all other variables, stay."""
    monkeypatch.delenv(TRIM, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if of_worker is not None:
        monkeypatch.setenv(TRIM, of_worker)
    with dask.config.set({f"distributed.nanny.pre-spawn-environ.{TRIM}": of_dask}):
        environment = own_environment()
    assert environment.get(TRIM) == left
    assert environment["OMP_NUM_THREADS"] == "1"


def test_dask_still_sets_what_is_taken_away() -> None:
    """Or there is nothing to take away any more."""
    import distributed  # noqa: F401  its defaults

    assert TRIM in dask.config.get("distributed.nanny.pre-spawn-environ")
