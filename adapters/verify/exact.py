"""Everything in float64: models convert to float32 in places (a loss, a normalisation), which would hide what float64
shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

NARROW = (torch.float32, torch.bfloat16, torch.float16)


@contextmanager
def float64_by_default() -> Iterator[None]:
    """Inside, tensors that are made without a dtype are float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Exact(TorchFunctionMode):
    """Inside, what is made or converted is float64 wherever the model asks for fewer digits."""

    def __enter__(self) -> Exact:
        self.default = float64_by_default()
        self.default.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self.default.__exit__(None, None, None)

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        if function in (Tensor.float, Tensor.half, Tensor.bfloat16):
            return args[0].double()
        named = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return function(*map(_wide, args), **named)


def _wide(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value
