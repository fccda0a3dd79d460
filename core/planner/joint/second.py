"""The next best arrangement: what the best plan is better than."""

from __future__ import annotations

from partita.planner.joint.engine import Answer, Engine
from partita.planner.joint.search import STOPS, is_stop
from partita.planner.joint.space import Shape

# So many families and numbers of micro-batches are looked at, those first whose bounds are the least.
MOST = 24


def second(engine: Engine, best: Answer) -> Answer | None:
    """The best answer whose stages have other shapes than those of ``best``, each the best of its family and number of
    micro-batches; None where none is found, or where Ctrl-C or the deadline came first.

    Where stages choose their shapes by themselves, a family's second best isn't looked for.
    """
    found: Answer | None = None
    looked = 0
    try:
        for task in engine.by_bound:
            same = len(task.family.shapes) == 1 and task.family.stages == best.family.stages
            if task.mixed or task.family.stages is None or (same and arranged(best) == {_use(task.family.shapes[0])}):
                continue
            if looked == MOST or (found is not None and task.bound >= found.seconds):
                break
            looked += 1
            answer = engine.solve(task, found.seconds if found is not None else float("inf"))
            if answer is not None and answer.shapes != best.shapes:
                found = answer
    except STOPS as stop:
        if not is_stop(stop):
            raise
        return None
    return found


def arranged(answer: Answer) -> set[tuple[int, int, str]]:
    """The sizes (dp, tp) and the manners that an answer's stages have."""
    return {_use(answer.family.shapes[stage.shape]) for stage in answer.found.stages}


def _use(shape: Shape) -> tuple[int, int, str]:
    return shape.dp, shape.tp, shape.manner.name
