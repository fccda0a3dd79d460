"""Batches to verify with, drawn from a model's example: integers in the range of what reads them, labels that don't
count here and there, so that micro-batches count unequal tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from partita.graph import Graph, Op
from partita.graph.table import argument
from partita.plugins.capture_torch import Captured
from partita.spacetime.program import Share

Example = Callable[[int], Mapping[str, Any]]

# Ops that pass integers on as they are: the range of what reads them is the range of the input.
PASSING = frozenset(
    """
    view slice select pad constant_pad_nd cat stack expand index gather transpose permute clone copy to split roll
    slice_scatter select_scatter contiguous narrow repeat
    """.split()
)
# These put other values in the place of labels that don't count.
REPLACING = frozenset(("masked_fill", "where", "clamp", "clamp_min"))


@dataclass(frozen=True)
class Range:
    """What an integer input may be: below ``bound`` (None: only what the example has). ``ignorable``: labels, of which
    some may be the ignored index."""

    bound: int | None
    ignorable: bool


def ranges(graph: Graph) -> dict[str, Range]:
    """The range of every integer input of a graph."""
    readers: dict[str, list[Op]] = {}
    for op in graph.ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op)
    return {
        name: _range(graph, readers, name) for name in graph.inputs if graph.tensor[name].dtype in ("int64", "int32")
    }


def _range(graph: Graph, readers: Mapping[str, list[Op]], name: str) -> Range:
    bounds, targets, odd = [], False, False
    pending, met = [(name, False)], set()
    while pending:
        value, replaced = pending.pop()
        if (value, replaced) in met:
            continue
        met.add((value, replaced))
        for op in readers.get(value, []):
            if op.kind == "embedding" and value in op.inputs[1:]:
                bounds.append(graph.tensor[op.inputs[0]].shape[0])
                odd = odd or not replaced
            elif op.kind == "cross_entropy" and value in op.inputs[1:]:
                scores = graph.tensor[op.inputs[0]].shape
                bounds.append(scores[1] if len(scores) > 1 else scores[0])
                targets = True
            elif op.kind == "one_hot":
                bounds.append(int(argument(op, 1, "num_classes", 1)))
                odd = True
            elif op.kind in PASSING or op.kind in REPLACING:
                pending += [(output, replaced or op.kind in REPLACING) for output in op.outputs]
    ignorable = targets and not odd and graph.loss is not None and graph.loss.weighting == "tokens"
    return Range(min(bounds) if bounds else None, ignorable)


def wide(example: Example) -> Example:
    """The same with floating tensors in float64, and without what is None."""

    def made(samples: int) -> dict[str, Any]:
        return {
            name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
            for name, value in example(samples).items()
            if value is not None
        }

    return made


class Batches:
    """Global batches of so many samples, by step. ``example`` is a wide one; names are the model's arguments."""

    def __init__(self, captured: Captured, example: Example, samples: int, seed: int):
        self.graph, self.seed, self.samples = captured.graph, seed, samples
        self.example = dict(example(samples))
        self.arguments = captured.given
        known = ranges(captured.graph)
        self.ranges = {self.arguments[name]: found for name, found in known.items()}
        # What has another shape for other samples has one row, or several, a sample.
        few = example(captured.graph.samples)
        self.rows = {
            name: value.shape[0] // samples
            for name, value in self.example.items()
            if isinstance(value, Tensor) and value.dim() and value.shape[0] % samples == 0
            and (value.shape != few[name].shape or samples == captured.graph.samples)
        }  # fmt: skip

    def batch(self, step: int) -> dict[str, Any]:
        """The model's arguments in that step."""
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + step)
        return {
            name: self._drawn(name, value, generator) if isinstance(value, Tensor) else value
            for name, value in self.example.items()
        }

    def _drawn(self, name: str, value: Tensor, generator: torch.Generator) -> Tensor:
        if value.is_floating_point():
            noise = torch.randn(value.shape, generator=generator, dtype=value.dtype)
            return value * (1 + 0.1 * noise) if value.any() else noise
        found = self.ranges.get(name)
        if found is None or found.bound is None:
            return value.clone()
        drawn = torch.randint(0, found.bound, value.shape, generator=generator, dtype=value.dtype)
        if found.ignorable and self.graph.loss is not None:
            # A third of the samples have all their labels, the others fewer and fewer.
            often = torch.arange(len(drawn)) % 3 / 4
            chance = torch.rand(drawn.shape, generator=generator)
            ignored = chance < often.reshape(-1, *[1] * (drawn.dim() - 1))
            drawn = drawn.masked_fill(ignored, self.graph.loss.ignore_index)
        return drawn

    def part(self, batch: Mapping[str, Any], start: int, samples: int) -> dict[str, Tensor]:
        """Some samples of a global batch, by the names of the graph's inputs."""
        found = {}
        for name, given in self.arguments.items():
            value, rows = batch[given], self.rows.get(given)
            found[name] = value if rows is None else value[start * rows : (start + samples) * rows]
        return found

    def micro_batches(self, batch: Mapping[str, Any], share: Share, copy: int) -> Iterator[dict[str, Tensor]]:
        """What a data-parallel copy of a stage trains on: its micro-batches."""
        for turn in range(share.turns):
            start, stop = share.interval(copy, turn)
            yield self.part(batch, start, stop - start)
