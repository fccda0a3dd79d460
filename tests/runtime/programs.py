"""From a layout in a few words to a Program: the phases of the lowering, as a plan would call them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partita.graph import Graph
from partita.spacetime.preserve import preserve, shared_parameters
from partita.spacetime.program import Program
from partita.spacetime.schedule import assign, order
from partita.spacetime.transform import StageCode, transform


@dataclass(frozen=True)
class Layout:
    """How a model is divided: stages, copies, pieces, micro-batches. ``sizes``: blocks of each stage, else as even as can be."""

    pp: int = 1
    dp: int = 1
    tp: int = 1
    micro_batches: int = 2
    schedule: str = "1f1b"
    sizes: tuple[int, ...] = ()
    recompute: bool = False

    @property
    def devices(self) -> int:
        return self.pp * self.dp * self.tp

    def stages(self, blocks: Sequence[str]) -> list[tuple[str, ...]]:
        """The blocks of each stage."""
        n = len(blocks)
        sizes = self.sizes or [round((i + 1) * n / self.pp) - round(i * n / self.pp) for i in range(self.pp)]
        assert len(sizes) == self.pp and sum(sizes) == n, f"{sizes} for {n} blocks on {self.pp} stages"
        ends = [sum(sizes[: i + 1]) for i in range(self.pp)]
        return [tuple(blocks[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def program(graph: Graph, layout: Layout) -> Program:
    """The program of a graph that was captured with the samples of one micro-batch of one copy."""
    pp, dp, tp = layout.pp, layout.dp, layout.tp
    stages = layout.stages([block.name for block in graph.blocks])
    pieces = transform(graph, [StageCode(blocks, tp, (layout.recompute,) * len(blocks)) for blocks in stages])
    devices_of = tuple(tuple(range(stage * dp * tp, (stage + 1) * dp * tp)) for stage in range(pp))
    places = assign(devices_of, [dp] * pp, [tp] * pp)
    turns = order(layout.schedule, pp, layout.micro_batches, places)
    shared: dict[str, tuple[int, ...]] = {}
    for name, owner, copy in shared_parameters(graph, pieces):
        shared[name] = (*shared.get(name, (owner,)), copy)
    return Program(
        pieces, preserve(graph, pieces, places, devices_of, turns), places, devices_of, (dp,) * pp, (tp,) * pp,
        layout.micro_batches, graph.samples, 0, graph.loss, shared,
    )  # fmt: skip
