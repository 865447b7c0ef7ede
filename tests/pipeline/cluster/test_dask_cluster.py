"""Clusters that are started here."""

import io
import logging

import pytest

import millrace as mr

pytestmark = pytest.mark.usefixtures("forked_workers")


def test_dask_is_silent_where_the_root_logger_had_a_handler_before_it(tmp_path, monkeypatch):
    logger, root, stream = logging.getLogger("distributed"), logging.getLogger(), io.StringIO()
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.setattr(root, "handlers", [logging.StreamHandler(stream)])
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        cluster = {"dashboard_port": 0}
        mr.run(
            "sbm:nodes=90,classes=3,features=4", epochs=1, executor="dask", cluster=cluster, out=tmp_path, verbose=False
        )
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)
    assert "distributed" not in stream.getvalue() and "Scheduler" not in stream.getvalue()
