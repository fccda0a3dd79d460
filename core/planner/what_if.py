"""What another question would be answered: one decision held otherwise, more memory, more devices, a larger batch.

Each is searched again, and all are compared under the formula.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from partita.errors import PlanError, divisors
from partita.planner.fix import check_fix
from partita.planner.joint.engine import TIE, Answer
from partita.planner.joint.plan import Solved, searched, solve
from partita.planner.joint.price import Pricing
from partita.planner.reasons import said
from partita.planner.words import counted
from partita.problem import Problem

GIB = 2**30
# A question that isn't answered by then is answered by the best so far.
SECONDS = 10.0
# Alternatives: answers of other tables up to so many times as slow, of so many tables.
WITHIN, TABLES, SHOWN = 1.5, 48, 5


@dataclass(frozen=True)
class Changed:
    """The best answer to a changed question: its seconds, samples a second and words; None where nothing fits.

    ``proven``: not where the time for it was over.
    """

    change: str
    kind: Literal["decision", "resource"]
    step_seconds: float | None
    samples_per_second: float | None
    words: str
    proven: bool

    def costs(self, seconds: float) -> bool:
        """Whether it takes longer than ``seconds``, or nothing fits."""
        return self.proven and (self.step_seconds is None or self.step_seconds > seconds * (1 + TIE))


@dataclass(frozen=True)
class Alternative:
    """Another answer to the same question."""

    step_seconds: float
    words: str


@dataclass(frozen=True)
class Asked:
    """All that was asked about a problem whose best answer takes ``step_seconds`` for so many ``samples``."""

    step_seconds: float
    samples: int
    alternatives: tuple[Alternative, ...]
    changes: tuple[Changed, ...]

    @property
    def matters_most(self) -> Changed | None:
        """The decision whose change costs most; one without which nothing fits before all others."""
        decisions = [change for change in self.changes if change.kind == "decision" and change.costs(self.step_seconds)]
        return max(decisions, key=lambda change: change.step_seconds or inf, default=None)

    @property
    def sentence(self) -> str:
        """What matters most, in words."""
        most = self.matters_most
        if most is None:
            return ""
        if most.step_seconds is None:
            return f"The decision that matters most: {most.change}, {most.words}."
        share = most.step_seconds / self.step_seconds - 1
        return f"The decision that matters most: {most.change}, the best takes {share:.1%} more."


def asked(problem: Problem) -> Asked:
    """A problem that has an answer, asked again. Errors are those of ``solve``."""
    solved = solve(problem)
    return Asked(solved.best.seconds, problem.global_batch, tuple(alternatives(solved)), tuple(changes(solved)))


def changes(solved: Solved) -> Iterator[Changed]:
    """The changed questions: first each decision that the best answer took, then what there is to use."""
    whole, best = solved.engine.pricing, solved.best
    problem = whole.problem
    for change, held in _decisions(problem, best):
        yield _asked(whole, replace(problem, fix={**problem.fix, **held}), change, "decision")
    if len({(s.dp, s.tp, s.zero, s.mixed) for s in _shapes(best)}) > 1:
        yield _asked(whole, problem, "stages all alike", "decision", uniform=True)
    cluster = problem.cluster
    yield _asked(whole, _roomier(problem), "1 GiB more a device", "resource")
    more = max(cluster.nodes) if len(cluster.nodes) > 1 else 1
    larger = replace(problem, cluster=cluster.resized(cluster.devices + more))
    node = f"one more node of {counted(more)}" if len(cluster.nodes) > 1 else "one more device"
    yield _asked(whole, larger, node, "resource")
    yield _asked(whole, replace(problem, global_batch=2 * problem.global_batch), "twice the global batch", "resource")


def _roomier(problem: Problem) -> Problem:
    """With a GiB more on each device, also where they differ."""
    if problem.memory_limit == problem.largest_memory_limit:
        return replace(problem, memory_bytes=problem.memory_limit + GIB)
    larger = problem.cluster.with_kinds(
        lambda kind: replace(kind, device=replace(kind.device, memory_bytes=kind.device.memory_bytes + GIB))
    )
    return replace(problem, cluster=larger)


def alternatives(solved: Solved) -> list[Alternative]:
    """The best answers of other tables, the fastest first."""
    others = sorted(solved.engine.others(solved.best, WITHIN, TABLES), key=lambda answer: answer.seconds)
    return [Alternative(answer.seconds, said(solved, answer)) for answer in others[:SHOWN]]


def _shapes(answer: Answer) -> list:
    return [answer.family.shapes[stage.shape] for stage in answer.found.stages]


def _decisions(problem: Problem, best: Answer) -> Iterator[tuple[str, dict[str, int | str]]]:
    """The decisions that the answer took and that aren't held, each with what is held instead."""
    shapes, count, stages = _shapes(best), best.table.micro_batches, len(best.found.stages)
    options = {best.family.options[m].recompute for stage in best.found.stages for m in stage.options}
    free = problem.fix.keys()
    if options != {"none"} and "recompute" not in free:
        yield "without recomputation", {"recompute": "none"}
    if any(shape.zero for shape in shapes) and "zero" not in free:
        yield "without ZeRO", {"zero": 0}
    if any(shape.tp > 1 for shape in shapes) and "tp" not in free:
        yield "without tensor parallelism", {"tp": 1}
    if stages > 1 and "pp" not in free:
        yield "in one stage", {"pp": 1}
    if stages > 1 and "schedule" not in free:
        other = "gpipe" if best.table.schedule == "1f1b" else "1f1b"
        yield f"by {other}", {"schedule": other}
    if "micro_batches" not in free:
        counts = divisors(problem.global_batch)
        at = counts.index(count)
        for other_count in counts[max(0, at - 1) : at + 2]:
            if other_count != count:
                many = "micro-batch" if other_count == 1 else "micro-batches"
                yield f"with {other_count} {many}", {"micro_batches": other_count}


def _asked(
    whole: Pricing, problem: Problem, change: str, kind: Literal["decision", "resource"], uniform: bool = False
) -> Changed:  # fmt: skip
    try:
        check_fix(problem, whole.groups)
        found = searched(whole.on(problem), SECONDS, uniform=uniform)
    except PlanError as error:
        return Changed(change, kind, None, None, str(error), False)
    if found is None:
        return Changed(change, kind, None, None, "nothing fits", True)
    seconds = found.best.seconds
    return Changed(
        change, kind, seconds, problem.global_batch / seconds if seconds else None, said(found, found.best),
        found.searched.optimal,
    )  # fmt: skip
