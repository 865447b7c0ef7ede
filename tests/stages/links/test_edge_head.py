"""The head of a model of labelled edges."""

import pytest
import torch

from millrace.stages.links.edge_head import EdgeHead
from millrace.storage.errors import InputError


def test_it_reads_both_ends_in_order_and_the_edge():
    torch.manual_seed(0)
    head = EdgeHead(4, 2, 3).double()
    source, destination, own = torch.rand(5, 4).double(), torch.rand(5, 4).double(), torch.rand(5, 2)
    found = head(source, destination, own)
    rows = torch.cat([source, destination, own.double()], 1)
    hidden = (rows @ head.first.weight.T + head.first.bias).clamp(min=0)
    torch.testing.assert_close(found, hidden @ head.second.weight.T + head.second.bias)
    assert not torch.allclose(found, head(destination, source, own))
    assert EdgeHead(4, 0, 1)(source.float(), destination.float()).shape == (5, 1)


def test_rows_of_another_width_are_refused():
    with pytest.raises(InputError, match=r"rows of 3 columns, but link\.width is 4"):
        EdgeHead(4, 0, 1)(torch.rand(5, 3), torch.rand(5, 3))
