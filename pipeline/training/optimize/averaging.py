"""An exponential moving average of a model's parameters."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class ParameterAverage:
    """An exponential moving average of parameters: as `torch.optim.swa_utils.AveragedModel`, without a second model.

    The first update copies the parameters; each later one moves the average by 1 - decay of the way to them. Without a
    decay none is kept, and nothing changes.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float | None) -> None:
        """
        Args:
            parameters: by name; the average begins as a copy of them.
            decay: of the average at each update, in (0, 1); None: there is none.
        """
        if decay is None:
            parameters, decay = {}, 1.0
        self._parameters, self._decay = dict(parameters), decay
        self._values = [p.detach().clone() for p in self._parameters.values()]
        self._updates = 0

    @property
    def is_kept(self) -> bool:
        """True if there is an average."""
        return bool(self._parameters)

    @torch.no_grad()
    def update(self) -> None:
        """Take the parameters of a step into the average."""
        if not self._values:
            return
        now = [p.detach() for p in self._parameters.values()]
        if self._updates:
            torch._foreach_lerp_(self._values, now, 1 - self._decay)
        else:
            torch._foreach_copy_(self._values, now)
        self._updates += 1

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model's parameters are the average inside the block, and what they were after it."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for k, p in enumerate(self._parameters.values()):
            p.data, self._values[k] = self._values[k], p.data

    def state_dict(self) -> dict[str, Tensor | int]:
        """State for `load_state_dict`; tensors are not copied."""
        return {"updates": self._updates, **dict(zip(self._parameters, self._values))}

    def load_state_dict(self, state: Mapping[str, Tensor | int]) -> None:
        """Go on from a saved average."""
        self._updates = int(state["updates"])
        for name, value in zip(self._parameters, self._values):
            value.copy_(torch.as_tensor(state.get(name, value)))
