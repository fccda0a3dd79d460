"""Schedules: every lane's order of turns. One small file each; what a device holds is counted from the order."""

from partita.schedules.breadth_first import breadth_first
from partita.schedules.forward import forward_only
from partita.schedules.gpipe import gpipe
from partita.schedules.interlaced import interlaced
from partita.schedules.interleaved import interleaved
from partita.schedules.kfkb import kfkb, kfkb_on
from partita.schedules.named import GENERATORS, find
from partita.schedules.one_f_one_b import one_f_one_b
from partita.schedules.schedule import Schedule
from partita.schedules.three_f_one_b import three_f_one_b
from partita.schedules.turn import Argument, Phase, Turn, in_flight
from partita.schedules.zero_bubble import zero_bubble

__all__ = [
    "GENERATORS", "Argument", "Phase", "Schedule", "Turn", "breadth_first", "find", "forward_only", "gpipe",
    "in_flight", "interlaced", "interleaved", "kfkb", "kfkb_on", "one_f_one_b", "three_f_one_b", "zero_bubble",
]  # fmt: skip
