"""Arguments of a call by name, and what can't be one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from partita.adapters.torch.loop.batch import Given, given
from partita.errors import InputError

CPU = torch.device("cpu")
X, Y = torch.zeros(3, 4), torch.ones(3, dtype=torch.long)


class Net(nn.Module):
    def forward(self, x: Any, y: Any = None, scale: float = 1.0, **more: Any) -> Any:
        return x


class Many(nn.Module):
    def forward(self, *xs: Any) -> Any:
        return xs


def call(*args: Any, model: Callable[[], nn.Module] = Net, **kwargs: Any) -> Given:
    made = model()
    return given(made, made.forward, args, kwargs, CPU)


def test_arguments_are_named() -> None:
    found = call(X, Y, scale=2.0, table=torch.zeros(7, 2), flag=True, word="a", nothing=None)
    assert list(found.tensors) == ["x", "y", "table"]
    assert found.shape.plain == (("scale", 2.0), ("flag", True), ("word", "a"))
    assert found.shape.samples == 3
    assert [found.shape.divided(shape) for _, shape, _ in found.shape.tensors] == [True, True, False]
    assert not found.shape.mergeable
    assert str(found.shape) == "x [3, 4] float32, y [3] int64, table [7, 2] float32"


def test_the_same_by_position_and_by_name() -> None:
    assert call(X, Y).shape == call(y=Y, x=X).shape == call(X, y=Y).shape


def test_another_number_of_samples() -> None:
    found = call(X, Y, table=torch.zeros(7, 2), scalar=torch.tensor(0.5)).shape.of(5)
    assert [shape for _, shape, _ in found.tensors] == [(5, 4), (5,), (7, 2), ()]
    assert found.samples == 5
    assert {name: tuple(value.shape) for name, value in found.example().items()}["x"] == (5, 4)


def test_numbers_of_items_are_values_and_no_part_of_the_code() -> None:
    one, two = call(X, num_items_in_batch=5), call(X, num_items_in_batch=7)
    assert one.shape == two.shape
    assert (one.scalars, two.scalars) == ((5.0,), (7.0,))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: call(), ["Net can't be called so", "'x'"]),
        (lambda: call(X, x=X), ["Net can't be called so", "multiple values"]),
        (lambda: call([X, X]), ["x=list", "tensors, numbers, words and None"]),
        (lambda: call({"ids": X}), ["x=dict"]),
        (lambda: call(X, numpy.zeros(3)), ["y=ndarray"]),
        (lambda: call(X, lambda: 1), ["y=function"]),
        (lambda: call(1.0), ["without a tensor of samples"]),
        (lambda: call(torch.tensor(1.0)), ["without a tensor of samples"]),
        (lambda: call(torch.zeros(0, 4)), ["no samples", "[0, 4]"]),
        (lambda: call(X, model=Many), ["*xs"]),
    ],
)
def test_what_cannot_be_given(make: Callable[[], Given], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert [word for word in words if word not in str(caught.value)] == []
