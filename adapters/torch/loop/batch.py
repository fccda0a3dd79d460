"""What a loop calls the model with: tensors with samples in their first dim, scalars, and plain values."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from partita.errors import InputError

PLAIN = (bool, int, float, str, torch.dtype)


@dataclass(frozen=True)
class Shape:
    """All that the model's code depends on: its arguments' names, shapes and dtypes, and plain values.

    ``samples`` is the first dim of the first tensor that has one; tensors that have it too are divided by samples.
    """

    tensors: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
    plain: tuple[tuple[str, Any], ...]
    samples: int

    def divided(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of that shape has the samples in its first dim."""
        return bool(shape) and shape[0] == self.samples

    def of(self, samples: int) -> Shape:
        """The same with another number of samples."""
        tensors = tuple(
            (name, (samples, *shape[1:]) if self.divided(shape) else shape, dtype)
            for name, shape, dtype in self.tensors
        )
        return replace(self, tensors=tensors, samples=samples)

    @property
    def mergeable(self) -> bool:
        """Whether batches of this shape can be joined: nothing but samples, and scalars, belongs to one of them."""
        return all(self.divided(shape) for _, shape, _ in self.tensors if shape)

    def example(self) -> dict[str, Any]:
        """Arguments of this shape, without values."""
        tensors = {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape, dtype in self.tensors}
        return {**tensors, **dict(self.plain)}

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {list(shape)} {str(dtype).removeprefix('torch.')}" for name, shape, dtype in self.tensors
        )


@dataclass(frozen=True)
class Given:
    """One call's arguments by name."""

    shape: Shape
    tensors: Mapping[str, Tensor]

    @property
    def scalars(self) -> tuple[float, ...]:
        """The values of the tensors without dims: batches can be joined only where these are equal."""
        return tuple(float(value) for value in self.tensors.values() if not value.dim())


def given(
    model: nn.Module, forward: Any, args: Sequence[Any], kwargs: Mapping[str, Any], device: torch.device
) -> Given:
    """The arguments of a call by name, on the device. InputError for what can't be divided over ranks."""
    what = type(model).__name__
    try:
        bound = inspect.signature(forward).bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(f"{what} can't be called so: {error}") from None
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for name, value in _named(bound, forward):
        if isinstance(value, Tensor):
            if value.requires_grad and torch.is_grad_enabled():
                raise InputError(
                    f"{what} was called with {name}, which wants a gradient: a plan gives none to what the model is "
                    "called with. Make it in the model, or call it with a detached one"
                )
            tensors[name] = value.to(device)
        elif name == "num_items_in_batch" and isinstance(value, int):
            # It differs from step to step; as a plain value it would be part of the code.
            tensors[name] = torch.tensor(value, device=device)
        elif isinstance(value, PLAIN):
            plain[name] = value
        elif value is not None:
            raise InputError(
                f"{what} was called with {name}={type(value).__name__}: tensors, numbers, words and None can be given"
            )
    first = next((value for value in tensors.values() if value.dim()), None)
    if first is None:
        raise InputError(
            f"{what} was called without a tensor of samples; its first one has the samples in its first dim"
        )
    if not first.shape[0]:
        raise InputError(f"{what} was called with no samples: {list(first.shape)}")
    shape = Shape(
        tuple((name, tuple(value.shape), value.dtype) for name, value in tensors.items()), tuple(plain.items()),
        first.shape[0],
    )  # fmt: skip
    return Given(shape, tensors)


def _named(bound: inspect.BoundArguments, forward: Any) -> Iterator[tuple[str, Any]]:
    parameters = inspect.signature(forward).parameters
    for name, value in bound.arguments.items():
        if parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            yield from value.items()
        elif parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            raise InputError(f"arguments without a name (*{name}) can't be given")
        else:
            yield name, value
