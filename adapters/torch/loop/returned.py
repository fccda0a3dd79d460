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

    # Where a copy is being made, which has no name yet, and is asked what it has.
    name = "a result"

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

    @classmethod
    def __torch_function__(
        cls, function: object, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> NoReturn:
        """What torch calls instead of its own function that is given one, as an argument or in a list of them."""
        given = pytree.tree_leaves((args, dict(kwargs or {})))
        raise InputError(next(one.reason for one in given if isinstance(one, Elsewhere)))

    __getitem__ = __setitem__ = __iter__ = __len__ = __contains__ = __bool__ = __int__ = __float__ = __index__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _refuse
    __neg__ = __pos__ = __abs__ = __invert__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __eq__ = __ne__ = _refuse  # type: ignore[assignment]
    # A class that says what equal means has none of its own.
    __hash__ = object.__hash__

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
