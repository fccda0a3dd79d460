"""A result that stays where it was made: whatever is done with it says so. And weights are compared in pieces."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import partita.adapters.deepspeed.model_weights as model_weights
from partita.adapters.torch.loop.returned import Elsewhere
from partita.errors import InputError

UNARY = [operator.neg, operator.pos, operator.abs, operator.invert, operator.truth, len, iter, int, float]
BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.matmul, operator.and_, operator.or_, operator.xor, operator.eq, operator.ne, operator.lt, operator.le,
    operator.gt, operator.ge,
]  # fmt: skip
TORCH = [
    torch.relu,
    lambda value: F.cross_entropy(value, torch.zeros(2, dtype=torch.long)),
    lambda value: F.cross_entropy(input=value, target=torch.zeros(2, dtype=torch.long)),
    lambda value: torch.cat([torch.ones(2), value]),
    lambda value: torch.ones(2).add(value),
]


def refuses(action: Callable[[], object]) -> None:
    with pytest.raises(InputError, match=r'^"logits" is not returned in training: .*Leave the labels out'):
        action()


@pytest.mark.parametrize("operation", UNARY)
def test_alone(operation: Callable[[object], object]) -> None:
    refuses(lambda: operation(Elsewhere("logits")))


@pytest.mark.parametrize("operation", BINARY)
@pytest.mark.parametrize("other", [2, torch.ones(2)], ids=["number", "tensor"])
def test_with_another(operation: Callable[[object, object], object], other: object) -> None:
    refuses(lambda: operation(Elsewhere("logits"), other))
    refuses(lambda: operation(other, Elsewhere("logits")))


@pytest.mark.parametrize("call", TORCH)
def test_in_torch(call: Callable[[object], object]) -> None:
    refuses(lambda: call(Elsewhere("logits")))


def test_what_only_asks() -> None:
    value = Elsewhere("logits")
    assert not hasattr(value, "shape")
    assert not isinstance(value, torch.Tensor)
    assert {value: 1}[value] == 1
    assert copy.deepcopy(value).name == copy.copy(value).name == "logits"


@pytest.mark.parametrize("elements", [1, 6, 7, 8, 23])
def test_sums_by_chunks(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.arange(elements, dtype=torch.float32).square() - 3
    whole = model_weights._sums(values)
    assert whole.tolist() == [float(values.sum()), sum((i + 1) * float(v) for i, v in enumerate(values))]
    monkeypatch.setattr(model_weights, "CHUNK_ELEMENTS", 7)
    assert torch.equal(model_weights._sums(values), whole)
