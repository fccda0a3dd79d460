"""What a call returns: the model's own structure, with the tensors that this rank can be given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from torch import Tensor
from torch.utils import _pytree as pytree

from partita.errors import InputError
from partita.plugins.capture_torch import Captured


class Elsewhere:
    """In the place of a result that stays on the ranks that made it. Whatever is done with it says so."""

    def __init__(self, name: str):
        self.name = name

    @property
    def reason(self) -> str:
        return (
            f'"{self.name}" is not returned in training: the model computes its loss, and the plan runs forward and '
            "backward within the call. Leave the labels out of the call to get it and compute the loss from it"
        )

    def __getattr__(self, attribute: str) -> NoReturn:
        # An AttributeError, so that code which only asks whether there is one goes on.
        raise AttributeError(self.reason)

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise InputError(self.reason)

    __getitem__ = __iter__ = __len__ = __float__ = __add__ = __radd__ = __mul__ = __rmul__ = _refuse

    def __repr__(self) -> str:
        return f"<{self.name}: not returned in training>"


def build(captured: Captured, tensors: Mapping[str, Tensor]) -> Any:
    """The model's return value from its tensors by name; those that are missing are ``Elsewhere``."""
    leaves = [
        one.value if one.name is None else tensors.get(one.name, Elsewhere(_label(captured, index)))
        for index, one in enumerate(captured.returned)
    ]
    return pytree.tree_unflatten(leaves, captured.tree)


def _label(captured: Captured, index: int) -> str:
    """What the user calls a result: its key, where it has one."""
    keys = captured.tree.context
    if isinstance(keys, (list, tuple)) and len(keys) == len(captured.returned):
        return str(keys[index])
    return f"result {index}"
