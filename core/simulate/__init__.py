"""Discrete-event execution of a Program on a cluster: the time of every task, memory over time, and why it differs."""

from partita.simulate.result import Simulation, Use
from partita.simulate.run import simulate

__all__ = ["Simulation", "Use", "simulate"]
