"""Random draws that can be compared: they are made whole for each (op, sample), and a device takes its part of them.

The draws of a rank depend on the micro-batch and the device, as they should; on virtual devices and on one device the
same elements are dropped, however the model is cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from partita.adapters.torch.execute import PROBABILITY, Context, is_random
from partita.adapters.torch.stage import StageModule
from partita.adapters.verify.parts import followed, inner_axes, part_of, taken
from partita.errors import ModelError
from partita.graph import Graph, Op
from partita.graph.table import argument
from partita.plan import Axis
from partita.spacetime.program import LocalOp, Program
from partita.spacetime.prove_code import Made

# Uniform numbers, of which stochastic depth makes masks of its own.
UNIFORM = ("rand", "rand_like")
# What stands for all of them where nothing is to be dropped.
KEEPING = 0.999


class Undropped(TorchFunctionMode):
    """Inside, a module in training mode drops nothing: dropout passes everything, uniform numbers are ``KEEPING``."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        if function in (functional.dropout, torch.dropout):
            return args[0]
        if function is functional.scaled_dot_product_attention:
            named = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False))
            args, kwargs = (), {**named, **(kwargs or {}), "dropout_p": 0.0}
        found = function(*args, **(kwargs or {}))
        return torch.full_like(found, KEEPING) if function in (torch.rand, torch.rand_like) else found


def random_ops(program: Program) -> list[LocalOp]:
    """The ops that draw random numbers. ModelError, by name, for one whose draws can't be compared."""
    found = [o for piece in program.pieces for segment in piece.segments for o in segment.ops if is_random(o)]
    for local in found:
        if local.op.kind not in PROBABILITY and local.op.kind not in UNIFORM:
            raise ModelError(
                f'op "{local.op.name}" ({local.op.kind}) draws random numbers by the micro-batch, which can\'t be '
                "compared with one device; dropout and uniform numbers can. Turn it off for verification"
            )
    return found


def share_draws(program: Program, graphs: Sequence[Graph], stages: Mapping[int, StageModule], drop: bool) -> None:
    """Let a device's random ops draw from here; without ``drop`` nothing is dropped, nor scaled.

    ``graphs`` are by stage.
    """
    made = followed(graphs, program)
    for number, stage in stages.items():
        draws = Draws(graphs[number], inner_axes(program, number), made[number], drop)
        stage.context = replace(stage.context, draw=draws)


@dataclass(frozen=True)
class Draws:
    """What random ops of a stage give, in their place. ``axes`` are the stage's inner ones, turns among them; ``made``
    says how what its ops make is cut."""

    graph: Graph
    axes: Sequence[Axis]
    made: Made
    drop: bool

    @cached_property
    def ops(self) -> Mapping[str, Op]:
        """The model's ops by name: those of a piece read and make values under local names."""
        return {op.name: op for op in self.graph.ops}

    def __call__(self, local: LocalOp, tensors: Sequence[Tensor], context: Context) -> list[Tensor]:
        op, of_model = local.op, self.ops.get(local.op.name, local.op)
        if op.kind in UNIFORM:
            made = self.graph.tensor[of_model.outputs[0]]
            mine = torch.full(local.shapes[0], KEEPING, dtype=getattr(torch, made.dtype))
            return [self._drawn(local, made.shape, mine, context).to(mine.dtype) if self.drop else mine]
        chance = float(argument(op, *PROBABILITY[op.kind], 0.0)) if self.drop else 0.0
        if op.kind != "scaled_dot_product_attention":
            mask = self._drawn(local, self.graph.tensor[of_model.inputs[0]].shape, tensors[0], context) >= chance
            return [tensors[0] * mask / (1 - chance), mask][: len(op.outputs)]
        query, key, value = tensors[:3]
        whole = (*self.graph.tensor[of_model.inputs[0]].shape[:-1], key.shape[-2])
        weights = attention_weights(local, query, key, tensors[-1] if len(tensors) > 3 else None)
        mask = self._drawn(local, whole, weights, context) >= chance
        repeats = query.shape[-3] // value.shape[-3]
        return [(weights * mask / (1 - chance)) @ value.repeat_interleave(repeats, -3)]

    def _drawn(self, local: LocalOp, shape: tuple[int, ...], mine: Tensor, context: Context) -> Tensor:
        """The part of the whole draw, of that shape, that belongs to what the device has."""
        op = self.ops.get(local.op.name, local.op)
        whole = _uniform(context.key, op.name, shape, self.graph.samples)
        if values := self.made.get(op.name):
            # Attention's weights are cut as its result, whose last dim isn't.
            return taken(whole, values[0].state, self.axes, context.coordinates)[0]
        found = part_of(self.graph, local, op.outputs[0], mine, whole, self.axes, context.coordinates)
        if found is None:
            what = f"{list(mine.shape)} of {list(shape)}"
            raise ModelError(f'op "{op.name}" ({op.kind}) draws {what}, which is no cut of the model')
        return found[0]


def attention_weights(local: LocalOp, query: Tensor, key: Tensor, bias: Tensor | None) -> Tensor:
    """What attention multiplies values with: the softmax of scaled products under its mask."""
    scale = argument(local.op, 6, "scale", None) or query.shape[-1] ** -0.5
    scores = query @ key.repeat_interleave(query.shape[-3] // key.shape[-3], -3).transpose(-2, -1) * scale
    # With some of the rows alone the mask comes as the last input.
    if local.form != "queries" and argument(local.op, 5, "is_causal", False):
        bias = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if bias is not None and bias.dtype == torch.bool:
        scores = scores.masked_fill(~bias, float("-inf"))
    elif bias is not None:
        scores = scores + bias
    # A row that sees nothing has no weights.
    return scores.softmax(-1).masked_fill((scores == float("-inf")).all(-1, keepdim=True), 0.0)


def _uniform(key: tuple[int, ...], op: str, shape: tuple[int, ...], samples: int) -> Tensor:
    """Numbers from 0 to 1: [samples × rows, ...], or one draw for all samples where the value has none.

    ``key`` is (seed, step, number of the micro-batch in the global batch).
    """
    *run, micro = key
    if not shape or shape[0] % samples:
        return _draw((*run, op), shape)
    rows = (shape[0] // samples, *shape[1:])
    draws = [_draw((*run, micro * samples + index, op), rows) for index in range(samples)]
    return torch.cat(draws)


def _draw(key: tuple[object, ...], shape: tuple[int, ...]) -> Tensor:
    text = ",".join(map(str, key))
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
