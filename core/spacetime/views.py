"""How values that cross between stages lie on their devices, and which gradient goes with which view.

Between stages a value is whole on each device of a data-parallel copy, which has samples [i·b, (i+1)·b) of the turn.
Where two stages have the same copies, device sends to device. Where they don't, ``samples_arriving`` is what
``materialise`` would find on the views, in closed form: the cost is linear in what is sent. Turns of unlike size divide
the global batch as copies divide a turn: whatever divides samples evenly does it in *runs*, which are numbered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product

from partita.errors import PlanError, listed
from partita.redistribution.layout import Interval
from partita.redistribution.view import Box, View, intersection, said
from partita.spacetime.communication import sender

Copies = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Arrival:
    """Samples ``interval``, as the device ``source`` has them; None: a value that has no samples, whole."""

    source: int
    interval: Interval | None


def copies_of(devices: Sequence[int], dp: int) -> Copies:
    """A stage's devices by data-parallel copy, as a plan lists them: the copies one after another."""
    width = len(devices) // dp
    return tuple(tuple(devices[copy * width : (copy + 1) * width]) for copy in range(dp))


@cache
def samples_arriving(samples: int, sources: Copies, targets: Copies) -> Mapping[int, tuple[Arrival, ...]]:
    """For each target device where the samples of its copy come from, in their order and each once.

    ``samples`` are those of one turn over all copies of a stage; ``sources[i]`` are the devices of copy i of the stage
    that makes the value (or, of a gradient, of the one that read the value). A device that is among the sources of an
    interval keeps it: an arrival from itself is no transfer. PlanError where the copies don't divide the samples.
    """
    has, wants = _each(samples, len(sources)), _each(samples, len(targets))
    found: dict[int, tuple[Arrival, ...]] = {}
    for copy, devices in enumerate(targets):
        arriving = run_arriving(copy, wants, devices, has, sources.__getitem__)
        found |= dict(zip(devices, arriving, strict=True))
    return found


def run_arriving(
    run: int, wants: int, devices: Sequence[int], has: int, sources: Callable[[int], Sequence[int]]
) -> list[tuple[Arrival, ...]]:
    """Where each of the devices that take one run of ``wants`` samples gets it from, in the order of the samples.

    ``sources(i)`` are the devices that have run i of ``has`` samples; its readers are divided among them.
    """
    arriving: list[list[Arrival]] = [[] for _ in devices]
    for i, interval in overlaps(run, wants, has):
        readers = [reader for reader, _ in overlaps(i, has, wants)]
        for at, device in enumerate(devices):
            number = readers.index(run) * len(devices) + at
            arriving[at].append(Arrival(sender(sources(i), device, number), interval))
    return [tuple(arrivals) for arrivals in arriving]


def overlaps(run: int, samples: int, others: int) -> list[tuple[int, Interval]]:
    """Of the runs of ``others`` samples those that have some of a run of ``samples``, each with what both have."""
    start, stop = run * samples, (run + 1) * samples
    return [
        (i, (max(start, i * others), min(stop, (i + 1) * others))) for i in range(start // others, -(-stop // others))
    ]


@cache
def replicas_arriving(sources: Copies, targets: Copies) -> Mapping[int, tuple[Arrival, ...]]:
    """For each target device where it gets a value without samples, which every copy of the source stage has whole."""
    found: dict[int, tuple[Arrival, ...]] = {}
    holders = {device for devices in sources for device in devices}
    for copy, devices in enumerate(targets):
        near = copy * len(sources) // len(targets)
        readers = range(-(-near * len(targets) // len(sources)), -(-(near + 1) * len(targets) // len(sources)))
        for at, device in enumerate(devices):
            number = readers.index(copy) * len(devices) + at
            source = device if device in holders else sender(sources[near], device, number)
            found[device] = (Arrival(source, None),)
    return found


@cache
def sums_arriving(sources: Copies, targets: Copies) -> Mapping[int, tuple[Arrival, ...]]:
    """Where the gradient of a value without samples goes: each source copy has a part of its sum.

    Every part reaches exactly one target copy, where the arrivals are added in their order; with more target copies
    than source copies some get nothing, and their part of the sum is zero. The average over the copies of the target
    stage, which ends a step, adds up the rest.
    """
    found: dict[int, tuple[Arrival, ...]] = {}
    for copy, devices in enumerate(targets):
        # Part j of n belongs to part ⌊j·m/n⌋ of m, as in ``materialise``.
        n, m = len(sources), len(targets)
        parts = range(-(-copy * n // m), -(-(copy + 1) * n // m))
        for at, device in enumerate(devices):
            found[device] = tuple(Arrival(sender(sources[j], device, at), None) for j in parts)
    return found


def leaving(arriving: Mapping[int, Sequence[Arrival]]) -> dict[int, list[tuple[int, Arrival]]]:
    """The same from the senders' side: for each source (target device, what goes there), in the targets' order.

    What a device keeps for itself isn't sent.
    """
    found: dict[int, list[tuple[int, Arrival]]] = {}
    for device, arrivals in arriving.items():
        for arrival in arrivals:
            if arrival.source != device:
                found.setdefault(arrival.source, []).append((device, arrival))
    return found


def require_samples(tensor: str, device: int, wanted: Interval, arriving: Sequence[Interval]) -> None:
    """PlanError that names the samples that never arrive, arrive twice or are none of those that a device takes."""
    start, stop = wanted
    to = f"device {device}, which takes [{start}, {stop})"
    at = start
    for a, b in [*sorted(arriving), (stop, stop)]:
        if a < start or b > stop:
            raise PlanError(f'tensor "{tensor}": samples [{a}, {b}) reach {to}')
        if a < at:
            raise PlanError(f'tensor "{tensor}": samples [{a}, {min(at, b)}) reach {to} twice')
        if a > at:
            raise PlanError(f'tensor "{tensor}": samples [{at}, {a}) never reach {to}')
        at = b


def _each(samples: int, copies: int) -> int:
    each, rest = divmod(samples, copies)
    if rest or not each:
        raise PlanError(f"{copies} data-parallel copies don't divide the {samples} samples of a turn")
    return each


def gradient_views(uses: Sequence[View]) -> list[tuple[View, ...]]:
    """The views in which each use of a tensor has its gradient, none where it reads no elements.

    A gradient mirrors its value: where r uses read the same elements, each has one part of a sum of r; the gradient of
    a part of a sum is whole, because each part gets all of it. Where ``uses`` overlap in part they are divided, so that
    the number of uses is one in each piece. What makes the value wants the whole gradient of its intervals, also where
    it makes a part of a sum. PlanError where one part of a sum is read more often than another.
    """
    return [tuple(_gradient(cell, index, uses) for cell in _cells(view, uses)) for index, view in enumerate(uses)]


def _gradient(cell: Box, index: int, uses: Sequence[View]) -> View:
    """The gradient of use ``index`` in a cell, all of which each use reads or does not."""
    rank: dict[tuple[int, int], int] = {}
    own = None
    for at, view in enumerate(uses):
        if intersection(view.intervals, cell) is not None:
            if at == index:
                own = rank.get((view.n, view.k), 0)
            rank[view.n, view.k] = rank.get((view.n, view.k), 0) + 1
    before = count = 0
    for n in sorted({n for n, _ in rank}):
        times = [rank.get((n, k), 0) for k in range(n)]
        if len(set(times)) > 1:
            raise PlanError(
                f"the {n} parts of the sum {said(cell)} are read {listed(times)} times: the gradient is undefined"
            )
        if n < uses[index].n:
            before += times[0]
        count += times[0]
    assert own is not None
    return View(cell, before + own, count)


def _cells(view: View, uses: Sequence[View]) -> list[Box]:
    """The view's intervals, cut where another view that overlaps with it begins or ends."""
    if not view.elements:
        return []
    inside = [box for box in (intersection(view.intervals, use.intervals) for use in uses) if box is not None]
    cuts = [sorted({end for box in inside for end in box[dim]}) for dim in range(len(view.intervals))]
    return list(product(*(list(pairwise(ends)) for ends in cuts)))
