"""From a layout in a few words to a plan by hand, and to its Program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from partita.graph import Graph
from partita.graph.cuts import block_cuts
from partita.graph.flows import FLOWS
from partita.plan import BATCH_CUT, UNPREDICTED, Axis, Cut, Order, Plan, Recompute, Search, Stage, Strategy
from partita.spacetime.lower import lower
from partita.spacetime.program import Program


@dataclass(frozen=True)
class Layout:
    """How a model is divided: stages, copies, pieces, micro-batches; ``sizes`` are blocks a stage, else evenly.

    ``cuts`` are along the inner axes, of which ``other_axes`` are those beside ``tensor``; a block has those for which
    it has dims. Without any, ``tensor`` cuts every class of dims. ``zero``: of all, or of each stage; ``zeros``: of
    some blocks, by their number.
    """

    pp: int = 1
    dp: int = 1
    tp: int = 1
    micro_batches: int = 2
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    sizes: tuple[int, ...] = ()
    recompute: Recompute = "none"
    zero: int | tuple[int, ...] = 0
    zeros: tuple[tuple[int, int], ...] = ()
    cuts: tuple[Cut, ...] = ()
    other_axes: tuple[Axis, ...] = ()

    @property
    def width(self) -> int:
        """Devices of one copy of a stage."""
        return self.tp * prod(axis.size for axis in self.other_axes if axis.kind == "space")

    @property
    def devices(self) -> int:
        return self.pp * self.dp * self.width

    def stages(self, blocks: Sequence[str]) -> list[tuple[str, ...]]:
        """The blocks of each stage."""
        n = len(blocks)
        sizes = self.sizes or [round((i + 1) * n / self.pp) - round(i * n / self.pp) for i in range(self.pp)]
        assert (len(sizes), sum(sizes)) == (self.pp, n), f"{sizes} for {n} blocks on {self.pp} stages"
        assert min(sizes) > 0, f"an empty stage: {sizes}"
        ends = [sum(sizes[: i + 1]) for i in range(self.pp)]
        return [tuple(blocks[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def plan(graph: Graph, layout: Layout, precision: str = "fp32") -> Plan:
    """The layout as a plan by hand: it predicts nothing."""
    pp, dp, tp = layout.pp, layout.dp, layout.tp
    samples, c, each = graph.samples * dp, layout.micro_batches, dp * layout.width
    stages = tuple(
        Stage(
            f"stage {index}", blocks, tuple(range(index * each, (index + 1) * each)), dp, tp, samples, c,
            tuple(_strategy(graph, index, block, layout) for block in blocks), layout.other_axes,
        )
        for index, blocks in enumerate(layout.stages([block.name for block in graph.blocks]))
    )  # fmt: skip
    return Plan(
        model=graph.name, problem="", cluster="cpu", target="partita", precision=precision, optimizer="adam",
        seq=graph.seq, global_batch=samples * c, schedule=layout.schedule, order=Order(layout.schedule, pp, c),
        stages=stages, shared_parameters=(), predicted=UNPREDICTED, reasons=(),
        search=Search("by hand", False, 0, 0),
    )  # fmt: skip


def _strategy(graph: Graph, stage: int, block: str, layout: Layout) -> Strategy:
    names = dict.fromkeys(cut.name for cut in block_cuts(graph, block))
    cuts = tuple(cut for cut in layout.cuts if cut.dim in FLOWS or cut.dim in names)
    if layout.tp > 1 and not layout.cuts:
        cuts = tuple(Cut(name, ("tensor",)) for name in names)
    zero = layout.zero if isinstance(layout.zero, int) else layout.zero[stage]
    number = [found.name for found in graph.blocks].index(block)
    return Strategy((BATCH_CUT, *cuts), dict(layout.zeros).get(number, zero), layout.recompute)


def program(graph: Graph, layout: Layout) -> Program:
    """The program of a graph that was captured with the samples of one micro-batch of one copy."""
    return lower(graph, plan(graph, layout))
