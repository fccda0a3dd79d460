"""The second engine: UniAP's programme for each number of stages, solved by HiGHS, and the best of them.

It shares with the search nothing but the table and the formula: it confirms the search, and it takes blocks that are
no chain. A table of a real model (34 blocks, 4 units, 27 prices, 4 options) takes it some ten seconds, and the search
some thousandths of one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite
from time import monotonic

from partita.planner.joint.convex import Edges, condensed
from partita.planner.joint.formula import fits, step_seconds
from partita.planner.joint.programme import Stages
from partita.planner.joint.table import Chosen, JointTable

# By what share of its seconds an answer must be better to be looked for: HiGHS tells apart no less.
GAIN = 1e-9


@dataclass(frozen=True)
class Solved:
    """The best answer found; no stages and infinite seconds where there is none.

    ``order``: the blocks, stage by stage; a stage's start and stop count in it. No answer takes less than
    ``bound_seconds``. ``optimal``: nothing is better by more than ``GAIN``. ``interrupted``: by Ctrl-C.
    """

    stages: tuple[Chosen, ...]
    order: tuple[int, ...]
    seconds: float
    bound_seconds: float
    optimal: bool
    interrupted: bool = False

    @property
    def gap(self) -> float:
        """By what share of its seconds the answer may be above the best; 1 where there is no answer yet."""
        if self.optimal:
            return 0.0
        return 1 - self.bound_seconds / self.seconds if isfinite(self.seconds) else 1.0


def best(table: JointTable, *, edges: Edges | None = None, below: float = inf, limit_seconds: float = inf) -> Solved:
    """The answer with the least step time under ``below``; at the time limit or at Ctrl-C the best so far.

    ``edges`` (u, w), u < w: where the blocks are no chain, and then none of them uses what another stage lends.
    """
    assert edges is None or not (table.prices.lent_bytes.any() or table.prices.lent_sync.any())
    until = monotonic() + limit_seconds
    counts = range(1, min(table.most_stages, table.blocks, table.all_units) + 1)
    bounds = dict.fromkeys(counts, 0.0)
    found = Solved((), (), below, below, True)
    try:
        programmes = {}
        for count in counts:
            programmes[count] = Stages(table, edges, count)
            bounds[count] = programmes[count].relaxed_seconds(until - monotonic())
        # The number of stages that promises most comes first, and cuts others off.
        for count in sorted(counts, key=bounds.__getitem__):
            if bounds[count] < found.seconds * (1 - GAIN) and not found.interrupted:
                found, bounds[count] = _further(programmes[count], edges, found, until)
    except KeyboardInterrupt:
        found = replace(found, interrupted=True)
    bound = min([found.seconds, *bounds.values()])
    optimal = bound >= found.seconds * (1 - 2 * GAIN)
    return replace(
        found, seconds=found.seconds if found.stages else inf, bound_seconds=found.seconds if optimal else bound,
        optimal=optimal,
    )  # fmt: skip


def _further(stages: Stages, edges: Edges | None, found: Solved, until: float) -> tuple[Solved, float]:
    """The best so far with what one number of stages adds to it; what no answer of that number is below."""
    table, unit = stages.table, stages.unit_seconds
    while True:
        solution = stages.linear.solve(found.seconds / unit, until - monotonic())
        found = replace(found, interrupted=solution.interrupted)
        if solution.values is None:
            return found, solution.bound * unit
        order, chosen = stages.chosen(solution.values)
        judged = (table, chosen) if edges is None else condensed(table, edges, order, chosen)
        if fits(*judged):
            seconds = step_seconds(*judged)
            if seconds < found.seconds:
                found = replace(found, stages=chosen, order=order, seconds=seconds)
            return found, min(solution.bound * unit, seconds)
        # HiGHS keeps a row up to a tolerance; the limit on bytes has none.
        stages.forbid(solution.values)
