"""What crosses between two stages of unlike shapes: who sends to whom, and what part of a turn's samples.

As ``spacetime.preserve`` lowers it: a value is whole on each device of a copy, every device that reads a copy's samples
gets them once, and the devices that have them send in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import gcd, lcm

import numpy as np

from partita.cost.samples import Amount
from partita.spacetime.views import overlaps, run_arriving


@cache
def messages(dp: int, tp: int, other_dp: int, other_tp: int) -> tuple[dict[tuple[int, int], int], int]:
    """The samples that a device sends to another, by their numbers in their stages, of a turn of so many; from ``dp``
    copies of ``tp`` devices each to ``other_dp`` of ``other_tp``."""
    samples = lcm(dp, other_dp)
    has, wants = samples // dp, samples // other_dp
    found: dict[tuple[int, int], int] = {}
    for copy in range(other_dp):
        readers = range(copy * other_tp, (copy + 1) * other_tp)
        # Negative numbers: none of the devices is in both stages.
        arriving = run_arriving(copy, wants, [-1 - r for r in readers], has, lambda i: range(i * tp, (i + 1) * tp))
        for reader, arrivals in zip(readers, arriving, strict=True):
            for arrival in arrivals:
                assert arrival.interval is not None
                pair = arrival.source, reader
                found[pair] = found.get(pair, 0) + arrival.interval[1] - arrival.interval[0]
    return found, samples


@cache
def boundary_share(dp: int, tp: int, other_dp: int, other_tp: int) -> float:
    """The largest part of a turn's samples that one device sends or gets. Messages of one device share its port."""
    # The pattern repeats: so many copies of each side have nothing to do with the others.
    alone = gcd(dp, other_dp)
    dp, other_dp = dp // alone, other_dp // alone
    samples = lcm(dp, other_dp)
    has, wants = samples // dp, samples // other_dp
    if other_tp % tp == 0:
        most = has * other_tp // tp
    elif other_dp % dp == 0:
        # Each reads as much: those who read most messages of one device.
        most = wants * -(-other_dp // dp * other_tp // tp)
    else:
        most = max(_sent(copy, has, wants, tp, other_tp) for copy in range(dp))
    return max(most, wants) / (samples * alone)


def shared_share(tp: int, other_tp: int) -> float:
    """The same of a value that all samples share: of each copy one of the other stage's has it whole."""
    return boundary_share(1, tp, 1, other_tp)


def shares(ports: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """[P, P] each, from port to port: ``boundary_share`` and ``shared_share``."""
    return (
        np.array([[boundary_share(*one, *other) for other in ports] for one in ports]),
        np.array([[shared_share(one[1], other[1]) for other in ports] for one in ports]),
    )


def boundary_bytes(size: Amount, ratio: float, port: tuple[int, int], other: tuple[int, int]) -> float:
    """Bytes of a turn that the busiest device moves from a stage of (dp, tp) to another. ``ratio``: the turn's samples
    over all copies, in units of the graph's."""
    found: float = size.of(ratio * boundary_share(*port, *other), shared_share(port[1], other[1]))
    return found


def _sent(copy: int, has: int, wants: int, tp: int, readers: int) -> int:
    """The most samples that a device of a copy of ``tp`` sends, to copies of ``readers`` each, in turn."""
    sent = [0] * tp
    for index, (_, (start, stop)) in enumerate(overlaps(copy, has, wants)):
        for at in range(readers):
            sent[(index * readers + at) % tp] += stop - start
    return max(sent)
