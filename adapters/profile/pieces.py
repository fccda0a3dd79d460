"""The blocks of a model as one device of a tensor-parallel group runs them: real parameters, inputs of real shapes.

Of blocks that are alike one is made, so that a model larger than the device can be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from partita.adapters.profile.alone import Alone
from partita.adapters.torch.prepare import Lowered
from partita.adapters.torch.stage import StageModule
from partita.cost.alike import alike
from partita.graph import Graph
from partita.plan import Plan

SPREAD = 0.02


@dataclass(frozen=True)
class Runnable:
    """One block: ``run()`` gives its outputs; ``leaves`` are its parameters and the inputs that get a gradient."""

    block: str
    run: Callable[[], dict[str, Tensor]]
    leaves: tuple[Tensor, ...]
    parameters: int


def runnables(
    graph: Graph, plan: Plan, lowered: Lowered, example: Callable[[int], Mapping[str, Any]], device: torch.device
) -> Iterator[Runnable]:
    """One block of each kind of ``graph``, of the piece of the one-stage plan that was lowered, one after another."""
    (piece,) = lowered.program.pieces
    kinds = {graph.blocks[kind].name for kind in alike(graph).kinds}
    segments = tuple(segment for segment in piece.segments if segment.block in kinds)
    tp = plan.stages[0].tp
    stage = StageModule(
        lowered.captured.graph, replace(piece, segments=segments), buffers=lowered.captured.buffers, device=device,
        groups={"tensor": Alone(tp)}, coordinates={"tensor": 0},
    )  # fmt: skip
    with torch.no_grad():
        for parameter in stage.parameters():
            # Memory that nobody wrote holds denormals, with which arithmetic on a host is slow.
            parameter.uniform_(-SPREAD, SPREAD)
    batch = {name: value.to(device) for name, value in example(plan.stages[0].samples).items() if name in piece.batch}
    code = stage.code
    context = replace(stage.context, key=(0,))
    known = stage.constants(batch, context, code, code.piece.constants)
    for block, segment in zip(stage.blocks, segments, strict=True):
        read = {
            name: known[name] if name in known else _value(lowered.captured.graph, name, device)
            for name in segment.inputs
        }

        def run(block: Any = block, segment: Any = segment, read: dict[str, Tensor] = read) -> dict[str, Tensor]:
            outputs: dict[str, Tensor] = block(code.ops[segment.block], segment.outputs, read, context)
            return outputs

        leaves = tuple(tensor for tensor in (*block.read.values(), *read.values()) if tensor.requires_grad)
        yield Runnable(segment.block, run, leaves, sum(p.numel() for p in block.read.values()))


def _value(graph: Graph, name: str, device: torch.device) -> Tensor:
    """A value that another block makes."""
    tensor = graph.tensor[name]
    dtype = getattr(torch, tensor.dtype)
    if not dtype.is_floating_point:
        return torch.zeros(tensor.shape, dtype=dtype, device=device)
    return torch.randn(tensor.shape, device=device).to(dtype).requires_grad_(tensor.gradient)
