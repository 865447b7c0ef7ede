"""Properties common to all pictures of a report."""

import pytest

from millrace.pipeline.report.figures import by_epoch


@pytest.mark.parametrize("epochs", [1, 2, 5, 30])
def test_axes_of_epochs_have_whole_numbers(epochs):
    """With two epochs matplotlib would mark quarters."""
    ax = pytest.importorskip("matplotlib.figure").Figure(figsize=(10, 3)).subplots()
    ax.plot([e + 1 for e in range(epochs)], range(epochs), marker="o")
    by_epoch(ax)
    ax.figure.canvas.draw()
    assert ax.get_xlabel() == "epoch"
    assert all(float(tick).is_integer() for tick in ax.get_xticks())
