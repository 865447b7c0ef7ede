"""The registry of trackers: one entry each, and a command for what is not installed."""

import pytest

from millrace.pipeline.trackers import base
from millrace.pipeline.trackers.base import TRACKERS, Tracker, check_trackers
from millrace.storage.errors import MissingExtraError
from millrace.tests.test_layers import PYPROJECT


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_each_is_an_extra_of_its_name(name, monkeypatch):
    kind = TRACKERS.find(name)
    assert issubclass(kind, Tracker) and kind.name == name
    assert f"'.[{name}]'" in kind.install and name in PYPROJECT["project"]["optional-dependencies"]
    monkeypatch.setattr(base, "find_spec", lambda package: None)
    with pytest.raises(MissingExtraError, match=rf"{name} is not installed: pip install '\.\[{name}\]' in a clone"):
        check_trackers([name])


def test_none_is_fine():
    check_trackers([])
