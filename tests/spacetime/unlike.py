"""Plans whose stages have unlike data and tensor parallelism and micro-batches, in a few words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from partita.graph import Graph
from partita.graph.cuts import block_cuts
from partita.plan import BATCH_CUT, UNPREDICTED, Axis, Cut, Order, Plan, Search, Stage, Strategy
from partita.schedules import Turn
from partita.spacetime.lower import lower
from partita.spacetime.program import Program
from tests.runtime.programs import Layout


@dataclass(frozen=True)
class Part:
    """One stage: its copies, devices of a copy along ``tensor``, micro-batches.

    ``flow``: a dim (``sequence`` or ``batch``) that an axis of two more devices cuts.
    """

    dp: int = 1
    tp: int = 1
    micro_batches: int = 2
    flow: str = ""
    recompute: bool = False

    @property
    def other_axes(self) -> tuple[Axis, ...]:
        return (Axis("context" if self.flow == "sequence" else "expert", 2, "space"),) if self.flow else ()

    @property
    def devices(self) -> int:
        return self.dp * self.tp * prod(axis.size for axis in self.other_axes)


@dataclass(frozen=True)
class Case:
    """A model of the runtime's tests on such stages, with so many samples a step; ``whole`` classes aren't cut."""

    parts: tuple[Part, ...]
    batch: int = 8
    model: str = "gpt2 untied"
    schedule: str = "1f1b"
    turns: dict[int, tuple[Turn, ...]] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    zero: int = 0
    whole: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        return sum(part.devices for part in self.parts)


def plan(graph_of: Callable[[int], Graph], case: Case, precision: str = "fp64") -> Plan:
    """The case as a plan by hand, for the model at any number of samples."""
    graph = graph_of(case.batch // case.parts[0].dp // case.parts[0].micro_batches)
    blocks = Layout(pp=len(case.parts), sizes=case.sizes).stages([block.name for block in graph.blocks])
    stages, first = [], 0
    for index, part in enumerate(case.parts):
        strategies = tuple(_strategy(graph, block, part, case) for block in blocks[index])
        stages.append(
            Stage(
                f"stage {index}", blocks[index], tuple(range(first, first + part.devices)), part.dp, part.tp,
                case.batch // part.micro_batches, part.micro_batches, strategies, part.other_axes,
            )
        )  # fmt: skip
        first += part.devices
    most = max(part.micro_batches for part in case.parts)
    schedule = "turns" if case.turns else case.schedule
    return Plan(
        model=graph.name, problem="", cluster="cpu", target="partita", precision=precision, optimizer="adam",
        seq=graph.seq, global_batch=case.batch, schedule=schedule,
        order=Order(schedule, len(stages), most, turns=case.turns), stages=tuple(stages), shared_parameters=(),
        predicted=UNPREDICTED, reasons=(), search=Search("by hand", False, 0, 0),
    )  # fmt: skip


def lowered(graph_of: Callable[[int], Graph], case: Case) -> Program:
    """The case's program; proven, because lowering proves."""
    graphs = [graph_of(case.batch // part.dp // part.micro_batches) for part in case.parts]
    return lower(graphs, plan(graph_of, case))


def _strategy(graph: Graph, block: str, part: Part, case: Case) -> Strategy:
    names = dict.fromkeys(cut.name for cut in block_cuts(graph, block)) if part.tp > 1 else {}
    cuts = [Cut(name, ("tensor",)) for name in names if name not in case.whole]
    if part.flow == "sequence":
        cuts.append(Cut("sequence", ("context",)))
    samples = Cut("batch", (*BATCH_CUT.axes, "expert")) if part.flow == "batch" else BATCH_CUT
    return Strategy((samples, *cuts), case.zero, "full" if part.recompute else "none")


CASES = {
    "dp2 to tp2": Case((Part(dp=2), Part(tp=2))),
    "tp2 to dp2": Case((Part(tp=2), Part(dp=2))),
    "dp2 to one device": Case((Part(dp=2), Part())),
    "twice the micro-batches": Case((Part(micro_batches=4), Part(micro_batches=2))),
    "half the micro-batches": Case((Part(micro_batches=2), Part(micro_batches=4))),
    "2 to 3 of 6": Case((Part(micro_batches=3), Part(micro_batches=2)), batch=6),
    "dp2 to dp3": Case((Part(dp=2, micro_batches=1), Part(dp=3, micro_batches=1)), batch=6),
    "three stages": Case((Part(dp=2, micro_batches=2), Part(micro_batches=4), Part(tp=2, micro_batches=1)), batch=8),
    "gpipe": Case((Part(dp=2, micro_batches=1), Part(micro_batches=4)), schedule="gpipe"),
    "turns of one's own": Case(
        (Part(micro_batches=2), Part(micro_batches=4)),
        turns={
            0: tuple(Turn(0, phase, micro) for micro in (0, 1) for phase in ("forward", "backward")),
            1: tuple(Turn(1, phase, micro) for micro in range(4) for phase in ("forward", "backward")),
        },
    ),
    "tokens cut": Case((Part(dp=2), Part(flow="sequence"))),
    "skip": Case((Part(dp=2, micro_batches=1), Part(micro_batches=4), Part(dp=2, micro_batches=2)), model="skip"),
    "one sample behind two": Case((Part(micro_batches=2), Part(micro_batches=4)), batch=4, model="narrowing"),
    "one sample before two": Case((Part(dp=2, micro_batches=2), Part(micro_batches=2)), batch=4, model="narrowing"),
    "frozen start": Case((Part(dp=2), Part(micro_batches=4)), model="gpt2 frozen start"),
    "recomputed": Case((Part(dp=2, recompute=True), Part(tp=2, micro_batches=1))),
    "tied, as many copies": Case((Part(dp=2, micro_batches=1), Part(dp=2, micro_batches=2)), model="gpt2"),
    "tied, fewer copies": Case((Part(dp=2, micro_batches=1), Part(micro_batches=4)), model="gpt2"),
    "tied, more copies": Case((Part(micro_batches=4), Part(dp=2)), model="gpt2"),
    "tied, wider": Case((Part(dp=2), Part(tp=2)), model="gpt2", whole=("vocabulary",)),
    "tied, narrower": Case((Part(tp=2), Part(dp=2, micro_batches=1)), model="gpt2", whole=("vocabulary",)),
    "tied, 2 and 3 copies": Case((Part(dp=2, micro_batches=1), Part(dp=3, micro_batches=1)), 6, "gpt2", zero=1),
    "dropout of one sample": Case((Part(micro_batches=2), Part(micro_batches=4)), 4, "gpt2 dropout"),
    "dropout": Case((Part(dp=2, micro_batches=1), Part(dp=2, micro_batches=2)), model="gpt2 dropout"),
    "zero 1": Case((Part(dp=2), Part(tp=2)), zero=1),
    "zero 3": Case((Part(dp=2, micro_batches=1), Part(micro_batches=4)), zero=3),
}  # fmt: skip
