"""Colours that people with any kind of colour vision tell apart, on white and on black."""

from itertools import combinations

import numpy as np
import pytest

from millrace.pipeline.telemetry.palette import KINDS, LINES, STAGE_MEANINGS, STAGES

VISION = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
"""On linear RGB (Machado, Oliveira, Fernandes, 2009, severity 1)."""
WHITE = np.array([0.9505, 1.0, 1.089])
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour):
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    t = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    x, y, z = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize(
    "palette", [tuple(STAGES.values()), LINES, tuple(dict.fromkeys(KINDS.values()))], ids=["stages", "lines", "kinds"]
)
def test_colours_differ(palette, vision):
    seen = [lab(VISION[vision] @ linear(c)) for c in palette]
    close = [(a, b) for (a, x), (b, y) in combinations(zip(palette, seen), 2) if np.linalg.norm(x - y) < 7]
    assert not close


def test_every_stage_has_a_colour_and_a_meaning():
    assert set(STAGES) == set(STAGE_MEANINGS)
    assert len(set(STAGES.values())) == len(STAGES)
