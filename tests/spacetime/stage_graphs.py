"""Plans by hand whose stages form a graph, one block a stage, for tests that need no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from partita.cluster import parse_cluster
from partita.draft import Draft, divide_state, drafted, op_assign, op_order, op_trans
from partita.graph import Block, Graph, Op, Tensor, check
from partita.plan import Axis, Plan
from partita.problem import Problem
from partita.spacetime.lower import lower
from partita.spacetime.program import Program

BATCH = 8


@dataclass(frozen=True)
class Stages:
    """Edges (maker, reader) of stages 0, 1, …; each adds up what it reads, and a linear layer follows.

    A stage that reads none has an input of its own. ``untrained`` of the first stages have no gradient. ``lanes``: how
    many devices serve the stages in turn, each in all of its stages with the same parameter; 0: each stage has its own.
    """

    edges: tuple[tuple[int, int], ...]
    schedule: str = "kfkb"
    arguments: Mapping[str, int] = field(default_factory=dict)
    micro_batches: Mapping[int, int] = field(default_factory=dict)
    copies: Mapping[int, int] = field(default_factory=dict)
    zero: int = 0
    untrained: int = 0
    lanes: int = 0

    @property
    def count(self) -> int:
        return 1 + max(reader for _, reader in self.edges)

    def graph(self, samples: int) -> Graph:
        tensors, ops, blocks = [], [], []
        for stage in range(self.count):
            read = [f"x{maker}" for maker, reader in self.edges if reader == stage]
            if not read:
                read = [f"input{stage}"]
                tensors.append(Tensor(read[0], (samples, 4), role="input", gradient=False))
            trains = stage >= self.untrained
            first, *others = read
            for number, name in enumerate(others):
                tensors.append(Tensor(f"sum{stage}.{number}", (samples, 4), gradient=trains))
                ops.append(Op(f"add{stage}.{number}", "add", (first, name), (f"sum{stage}.{number}",), f"b{stage}"))
                first = f"sum{stage}.{number}"
            weight = f"w{stage % self.lanes if self.lanes else stage}"
            if own := weight not in {tensor.name for tensor in tensors}:
                tensors.append(Tensor(weight, (4, 4), role="parameter"))
            tensors.append(Tensor(f"x{stage}", (samples, 4), gradient=trains))
            ops.append(Op(f"linear{stage}", "linear", (first, weight), (f"x{stage}",), f"b{stage}"))
            blocks.append(Block(f"b{stage}", (weight,) if own else ()))
        inputs = tuple(tensor.name for tensor in tensors if tensor.role == "input")
        last = (f"x{self.count - 1}",)
        return check(Graph("stages", samples, None, tuple(tensors), tuple(ops), tuple(blocks), inputs, last))

    def draft(self, draft: Draft) -> None:
        """The plan function."""
        first = 0
        for stage in range(self.count):
            copies, block = self.copies.get(stage, 1), [f"b{stage}"]
            devices = (stage % self.lanes,) if self.lanes else tuple(range(first, first + copies))
            op_assign(draft, block, devices, data=copies)
            op_trans(draft, block, "batch", Axis("micro", self.micro_batches.get(stage, 4), "turns"))
            divide_state(draft, block, self.zero)
            first += copies
        op_order(draft, self.schedule, **self.arguments)

    @cached_property
    def plan(self) -> Plan:
        devices = self.lanes or sum(self.copies.get(stage, 1) for stage in range(self.count))
        problem = Problem(self.graph(1), parse_cluster("cpu", devices), BATCH, precision="fp32", target="partita")
        return drafted(self.draft, "stages", problem, {})

    @cached_property
    def graphs(self) -> tuple[Graph, ...]:
        """The graph of each stage."""
        return tuple(self.graph(stage.samples // stage.dp) for stage in self.plan.stages)

    @cached_property
    def program(self) -> Program:
        """Proven, because lowering proves."""
        return lower(self.graphs, self.plan)


DIAMOND = ((0, 1), (0, 2), (1, 3), (2, 3))
# Two towers of two stages and what joins them.
TOWERS = ((0, 1), (2, 3), (1, 4), (3, 4))
# A branch of one stage beside one of three, and a skip over both.
BRANCHES = ((0, 1), (0, 2), (2, 3), (3, 4), (1, 5), (4, 5), (0, 5))
GRAPHS = {
    "diamond, 1f1b": Stages(DIAMOND, "1f1b"),
    "diamond, gpipe": Stages(DIAMOND, "gpipe"),
    "diamond, kfkb": Stages(DIAMOND),
    "diamond, rounds of two": Stages(DIAMOND, arguments={"k": 2}),
    "diamond, unlike micro-batches": Stages(DIAMOND, micro_batches={1: 2, 2: 8, 3: 2}),
    "diamond, a copied branch": Stages(DIAMOND, copies={1: 2}),
    "towers, kfkb": Stages(TOWERS),
    "towers, rounds of two": Stages(TOWERS, arguments={"k": 2}),
    "towers, unlike micro-batches": Stages(TOWERS, micro_batches={0: 2, 1: 2, 2: 8}),
    "towers, copied under ZeRO 3": Stages(TOWERS, copies=dict.fromkeys(range(5), 2), zero=3),
    "skip over two": Stages(((0, 1), (1, 2), (2, 3), (0, 3)), "1f1b"),
    "branches and a skip": Stages(BRANCHES),
    "a frozen tower": Stages(TOWERS, untrained=2),
    "three passes, 3f1b": Stages(
        (*((stage, stage + 1) for stage in range(8)), (2, 8)), "3f1b", {"passes": 3}, untrained=6, lanes=3
    ),
}  # fmt: skip
