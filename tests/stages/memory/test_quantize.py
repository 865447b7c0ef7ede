"""Rows as they travel: how far rounding may move an element, and how many bytes a row takes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from millrace.stages.memory.quantize import LARGEST_HALF, Payload, decode, encode, rounded, row_bytes

PAYLOADS: tuple[Payload, ...] = ("full", "fp16", "int8")
DTYPES = {np.float32: torch.float32, np.float64: torch.float64}
SHAPES = st.tuples(st.integers(0, 5), st.integers(0, 6))


@st.composite
def rows(draw: st.DrawFn) -> np.ndarray:
    """Ordinary, tiny, huge and equal elements; no rows, no columns."""
    dtype = draw(st.sampled_from(list(DTYPES)))
    shape = draw(SHAPES)
    h = np.random.default_rng(draw(st.integers(0, 10**6))).normal(size=shape)
    h *= 10.0 ** draw(hnp.arrays(np.int64, (shape[0], 1), elements=st.integers(-12, 12)))
    h[draw(hnp.arrays(np.bool_, shape))] = draw(st.sampled_from([0.0, 1.0, -1e30, 7e4]))
    return h.astype(dtype)


@given(h=rows(), payload=st.sampled_from(PAYLOADS))
@settings(deadline=None)
def test_a_row_takes_so_many_bytes_and_keeps_its_shape(h: np.ndarray, payload: Payload) -> None:
    dtype = DTYPES[h.dtype.type]
    sent = encode(torch.from_numpy(h), payload)
    wanted = {"full": h.shape[1] * h.itemsize, "fp16": 2 * h.shape[1], "int8": h.shape[1] + 4}[payload]
    assert row_bytes(h.shape[1], payload, dtype) == wanted
    assert (sent.dtype, list(sent.shape)) == (torch.uint8, [len(h), wanted])
    back = decode(sent, payload, dtype)
    assert (back.dtype, back.shape) == (dtype, h.shape)
    assert torch.equal(back, rounded(torch.from_numpy(h), payload)), "owner and reader see the same"
    # As it arrives: cut out of a larger message, beginning anywhere.
    message = torch.cat([torch.zeros(3, dtype=torch.uint8), sent.flatten()])
    if payload == "int8" and sent.numel():
        assert torch.equal(decode(message[3:].view(sent.shape), payload, dtype), back)


@given(h=rows())
@settings(deadline=None)
def test_in_full_nothing_changes(h: np.ndarray) -> None:
    x = torch.from_numpy(h)
    assert rounded(x, "full") is x
    assert torch.equal(decode(encode(x, "full"), "full", x.dtype), x)


@given(h=rows())
@settings(deadline=None)
def test_half_precision_keeps_eleven_bits(h: np.ndarray) -> None:
    got, want = rounded(torch.from_numpy(h), "fp16").numpy().astype(np.float64), h.astype(np.float64)
    normal = (np.abs(want) >= 2.0**-14) & (np.abs(want) <= LARGEST_HALF)
    # Torch goes by way of float32, which rounds too.
    assert (np.abs(got - want)[normal] <= (2.0**-11 + 2.0**-24) * np.abs(want)[normal]).all()
    assert (np.abs(got - want)[np.abs(want) < 2.0**-14] <= 2.0**-25 + 2.0**-38).all()
    beyond = np.abs(want) > LARGEST_HALF
    assert np.array_equal(got[beyond], np.sign(want[beyond]) * LARGEST_HALF)
    assert np.array_equal(
        got, np.clip(h, -LARGEST_HALF, LARGEST_HALF).astype(np.float32).astype(np.float16).astype(np.float64)
    )


@given(h=rows())
@settings(deadline=None)
def test_eight_bits_are_off_by_half_a_step_at_most(h: np.ndarray) -> None:
    """A step is the 127th part of the row's largest magnitude: other rows do not matter."""
    got, want = rounded(torch.from_numpy(h), "int8").numpy().astype(np.float64), h.astype(np.float64)
    largest = np.abs(want).max(1, initial=0, keepdims=True)
    step = largest / 127
    # The scale itself is in float32, and has no more than its range.
    slack = 127 * step * 2.0**-22 + 127 * 2.0**-148
    assert (np.abs(got - want) <= step / 2 + slack).all()
    assert (got[want == 0] == 0).all()
    assert np.array_equal(rounded(torch.from_numpy(h[::-1].copy()), "int8").numpy()[::-1], got.astype(h.dtype))


@given(h=rows(), payload=st.sampled_from(PAYLOADS))
@settings(deadline=None)
def test_rounding_again_changes_nothing(h: np.ndarray, payload: Payload) -> None:
    once = rounded(torch.from_numpy(h), payload)
    twice = rounded(once, payload)
    if payload == "int8":  # but for the rounding of the scale
        torch.testing.assert_close(twice, once, rtol=2e-7, atol=1e-43)
    else:
        assert torch.equal(twice, once)


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_nothing_can_be_sent(payload: Payload, shape: tuple[int, int]) -> None:
    """NumPy gives its empty arrays strides of zero, which torch does not expect."""
    for empty in (
        torch.from_numpy(np.empty(shape)),
        torch.from_numpy(np.ones((4, 5))[:0] if shape == (0, 5) else np.empty(shape)),
        torch.empty(shape),
    ):
        sent = encode(empty, payload)
        assert list(sent.shape) == [shape[0], row_bytes(shape[1], payload, empty.dtype)]
        assert decode(sent, payload, empty.dtype).shape == shape


@pytest.mark.parametrize("payload", PAYLOADS)
def test_rows_may_lie_in_any_layout(payload: Payload) -> None:
    h = torch.randn(6, 4, dtype=torch.float64)
    for view in (h.t(), h[:, 1:3], h[::2]):
        assert torch.equal(encode(view, payload), encode(view.contiguous(), payload))


def test_a_row_is_rounded_by_its_own_magnitude() -> None:
    h = torch.tensor([[1.0, -0.5, 0.004], [1000.0, 3.0, -1000.0], [0.0, 0.0, 0.0]])
    steps, scale = encode(h, "int8")[:, :3].view(torch.int8), encode(h, "int8")[:, 3:].clone().view(torch.float32)
    assert steps.tolist() == [[127, -64, 1], [127, 0, -127], [0, 0, 0]]
    assert torch.equal(scale[:, 0], torch.tensor([1.0, 1000.0, 0.0]) / 127)


@pytest.mark.parametrize(("payload", "largest"), [("fp16", LARGEST_HALF), ("int8", float(np.finfo(np.float32).max))])
def test_what_is_beyond_the_range_becomes_its_end(payload: Payload, largest: float) -> None:
    h = torch.tensor([[1e300, -1e300, 0.0], [-1e39, 1.0, 2e39]], dtype=torch.float64)
    want = [[largest, -largest, 0.0], [-largest, 1.0 if payload == "fp16" else 0.0, largest]]
    torch.testing.assert_close(rounded(h, payload), torch.tensor(want, dtype=torch.float64), rtol=1e-6, atol=0)
