"""Masks that turn out to be causal are said to be; all others are read as they are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from partita.graph import Op
from partita.plugins.capture_torch import capture_module

TOKENS = 6


class Masked(nn.Module):
    """Attention under the mask that ``make`` builds, of a projected input."""

    def __init__(self, make) -> None:
        super().__init__()
        self.make = make
        self.project = nn.Linear(8, 8)

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        q = self.project(x).unflatten(-1, (2, 4)).transpose(1, 2)
        mask = self.make(x) if seen is None else self.make(x) & seen[:, None, None, :]
        return scaled_dot_product_attention(q, q, q, attn_mask=mask, scale=0.5).sum()


def positions(x: Tensor) -> Tensor:
    return torch.arange(x.shape[1], device=x.device)


def lower(x: Tensor) -> Tensor:
    return (positions(x)[:, None] >= positions(x)[None, :]).expand(x.shape[0], 1, -1, -1)


def additive(x: Tensor, hidden: float) -> Tensor:
    return torch.zeros(lower(x).shape, device=x.device).masked_fill(~lower(x), hidden)


MASKS = {
    "lower triangle": (lower, True),
    "expanded later": (lambda x: lower(x)[:, 0][:, None], True),
    "minus infinity above": (lambda x: additive(x, float("-inf")), True),
    "the least number above": (lambda x: additive(x, torch.finfo(torch.float32).min), True),
    "a small penalty above": (lambda x: additive(x, -10.0), False),
    "strictly lower": (lambda x: positions(x)[:, None] > positions(x)[None, :], False),
    "a window": (lambda x: lower(x) & (positions(x)[:, None] - positions(x)[None, :] < 3), False),
    "everything": (lambda x: torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device), False),
}


def attention(make, *more: Tensor) -> Op:
    captured = capture_module(lambda: Masked(make), (torch.zeros(2, TOKENS, 8), *more), name="masked")
    (op,) = [op for op in captured.graph.ops if op.kind == "scaled_dot_product_attention"]
    return op


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_is_causal_exactly_where_it_is(name: str) -> None:
    make, causal = MASKS[name]
    op = attention(make)
    marked = op.attributes["args"][5:] == [True]
    assert (marked, len(op.inputs)) == (causal, 3 if causal else 4)
    assert op.attributes["kwargs"]["scale"] == 0.5


def test_a_mask_of_the_batch_is_read() -> None:
    assert len(attention(lower, torch.ones(2, TOKENS, dtype=torch.bool)).inputs) == 4
