"""Properties common to all pictures of a report."""

import numpy as np
import pytest

from millrace.pipeline.telemetry.curves import MOST_POINTS, by_epoch, thinned


@pytest.mark.parametrize("epochs", [1, 2, 5, 30])
def test_axes_of_epochs_have_whole_numbers(epochs):
    """With two epochs matplotlib would mark quarters."""
    ax = pytest.importorskip("matplotlib.figure").Figure(figsize=(10, 3)).subplots()
    ax.plot([e + 1 for e in range(epochs)], range(epochs), marker="o")
    by_epoch(ax)
    ax.figure.canvas.draw()
    assert ax.get_xlabel() == "epoch"
    assert all(float(tick).is_integer() for tick in ax.get_xticks())


def test_more_points_than_can_be_seen_become_means():
    values = np.arange(6 * MOST_POINTS, dtype=float).reshape(-1, 2)
    found = thinned(values)
    assert np.array_equal(found, values.reshape(MOST_POINTS, 3, 2).mean(1))
    assert thinned(found) is found
