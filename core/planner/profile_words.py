"""What a plan owes to a measured profile: which blocks are measured, and where numbers go beyond the measurements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from partita.errors import listed
from partita.planner.candidates import Candidate

if TYPE_CHECKING:
    from partita.planner.numbers import Numbers


def profile_sentences(numbers: Numbers, candidate: Candidate) -> Iterator[str]:
    """Nothing without a profile; otherwise how many blocks are measured, what stands for the others, what is
    extrapolated."""
    cluster, costs = numbers.cluster, numbers.costs(candidate.tp)
    measured = numbers.device.measured
    yield from _unlike(numbers)
    if measured is None:
        return
    found = [measured.find(cost.shape, cluster.threads) for cost in costs]
    known = [block for block in found if block is not None]
    rest = "single kernels of the profile" if measured.rates else "the preset's figures"
    if not known:
        yield f"Profile {measured.source}: it has none of these blocks at tp={candidate.tp}; {rest} price all of them."
        return
    others = f"; {rest} price the others" if len(known) < len(found) else ""
    yield f"Profile {measured.source}: {len(known)} of {len(found)} blocks are measured at tp={candidate.tp}{others}."
    outside = {tuple(int(s.micro_batch) for s in block.samples) for block in known if not block.covers(candidate.micro)}
    for sizes in sorted(outside):
        yield (
            f"A micro-batch of {candidate.micro} lies outside the measured {listed(sizes)}: times and bytes are "
            "extrapolated."
        )


def _unlike(numbers: Numbers) -> Iterator[str]:
    """Of devices that differ, whose profile there is."""
    devices = numbers.cluster.different_devices()
    profiles = {device.name: device.measured.source for device in devices if device.measured is not None}
    if len(devices) > 1 and profiles:
        text = f"Profile {listed(dict.fromkeys(profiles.values()))} is of {listed(profiles)}"
        yield text + ("." if numbers.device.measured else "; unlike devices in step have the presets' figures.")
