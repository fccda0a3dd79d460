"""Schedules: every stage's order of turns. One small file each; what a device holds is counted from the order."""

from partita.schedules.forward import forward_only
from partita.schedules.gpipe import gpipe
from partita.schedules.one_f_one_b import one_f_one_b
from partita.schedules.turn import Turn, in_flight

GENERATORS = {"1f1b": one_f_one_b, "gpipe": gpipe}

__all__ = ["GENERATORS", "Turn", "forward_only", "gpipe", "in_flight", "one_f_one_b"]
