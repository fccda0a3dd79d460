"""Schedules by the names that plans write: Partita's own, then those of plugins."""

from __future__ import annotations

from partita.errors import PlanError, nearest
from partita.hooks import plugins
from partita.schedules.breadth_first import breadth_first
from partita.schedules.gpipe import gpipe, gpipe_of
from partita.schedules.interlaced import interlaced, interlaced_lanes
from partita.schedules.interleaved import interleaved, interleaved_lanes
from partita.schedules.kfkb import kfkb, kfkb_on
from partita.schedules.one_f_one_b import one_f_one_b, one_f_one_b_of
from partita.schedules.schedule import Schedule
from partita.schedules.three_f_one_b import three_f_one_b, three_f_one_b_lanes
from partita.schedules.zero_bubble import zero_bubble

GENERATORS = {
    schedule.name: schedule
    for schedule in (
        Schedule("1f1b", one_f_one_b, arguments={"depth": 0}, generate_of=one_f_one_b_of),
        Schedule("gpipe", gpipe, generate_of=gpipe_of),
        Schedule("kfkb", kfkb, arguments={"k": 1, "depth": 0}, each=frozenset({"depth"}), generate_on=kfkb_on),
        Schedule("interleaved", interleaved, interleaved_lanes, {"lanes": None}),
        Schedule("breadth-first", breadth_first, interleaved_lanes, {"lanes": None}),
        Schedule("zb-h1", zero_bubble, weight=True),
        Schedule("3f1b", three_f_one_b, three_f_one_b_lanes, {"passes": 3}),
        Schedule("interlaced", interlaced, interlaced_lanes, {"extra": 0}),
    )
}


def find(name: str) -> Schedule:
    """The schedule of a name; PlanError where there is none.

    Partita's own come first: a plugin adds names and can't change what a plan that exists means.
    """
    found: Schedule | None = GENERATORS.get(name) or plugins().hook.partita_schedule(name=name)
    if found is None:
        raise PlanError(f'no schedule "{name}".{nearest(name, GENERATORS)}')
    return found
