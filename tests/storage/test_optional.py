"""What is made of absent values is absent."""

import numpy as np
import torch

from millrace.storage.optional import moved, present, present_items, taken, when_present


def test_absent_values_are_left_out_and_empty_ones_are_not():
    assert present([0, None, "", False, None, []]) == [0, "", False, []]
    assert [*present_items({"b": 0, "a": None, "c": ""}).items()] == [("b", 0), ("c", "")]
    assert present([]) == [] and present_items({}) == {}


def test_rows_of_an_absent_array_are_absent():
    rows = np.arange(10)[::-1]
    assert taken(rows, np.array([0, 9])).tolist() == [9, 0] and taken(rows, slice(2)).tolist() == [9, 8]
    assert taken(torch.arange(3), slice(1, None)).tolist() == [1, 2] and taken(rows, []).tolist() == []
    assert taken(None, slice(2)) is None


def test_a_function_of_an_absent_value_is_not_called():
    assert when_present(len, "") == 0 and when_present(str, 0) == "0"
    assert when_present(lambda value: 1 / 0, None) is None


def test_absent_tensors_move_nowhere():
    assert moved(torch.ones(2), torch.float64).dtype == torch.float64
    assert moved(torch.ones(2), torch.device("cpu"), torch.int64).dtype == torch.int64
    assert moved(None, torch.float64) is None
