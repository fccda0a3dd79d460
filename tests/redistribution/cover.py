"""The proof that a device gets what it wants: each element once, or once of each part of a sum.

It looks at the takes alone and not at how they were found, so that it holds for takes of any origin.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from partita.errors import PlanError
from partita.redistribution.view import Box, View, intersection, said
from tests.redistribution.materialise import Take, wanted_parts


def require_cover(tensor: str, device: int, wanted: View, takes: Sequence[Take]) -> None:
    """PlanError that names the tensor and the region that lacks, comes twice, or is written where it doesn't belong.

    A part of a sum other than the first may stay zero: its whole value can be in the first part.
    """
    where = f'tensor "{tensor}": device {device} wants {wanted}'
    for take in takes:
        _in_place(where, wanted, take)
    cuts = [
        sorted({start, stop, *(end for take in takes for end in take.region[dim])})
        for dim, (start, stop) in enumerate(wanted.intervals)
    ]
    grid = tuple(len(ends) - 1 for ends in cuts)
    cells = [{end: index for index, end in enumerate(ends)} for ends in cuts]
    written = np.zeros(grid, dtype=np.int64)
    masks = sorted({(take.view.n, take.view.k) for take in takes})
    count = {mask: np.zeros(grid, dtype=np.int64) for mask in masks}
    for take in takes:
        at = tuple(slice(place[a], place[b]) for place, (a, b) in zip(cells, take.region, strict=True))
        if not ((written[at] > 0) == take.add).all():
            how = "is added to what nobody wrote" if take.add else "is written over what came before"
            raise PlanError(f"{where}, but {said(take.region)} from device {take.source} {how}")
        written[at] += 1
        count[take.view.n, take.view.k][at] += 1

    def region(found: np.ndarray) -> str:
        index = np.argwhere(found)[0]
        return said(tuple((ends[i], ends[i + 1]) for ends, i in zip(cuts, index, strict=True)))

    whose = np.zeros(grid, dtype=np.int64)
    lacking = np.ones(grid, dtype=bool) if wanted.k == 0 and wanted.elements else np.zeros(grid, dtype=bool)
    for n, group in itertools.groupby(masks, key=lambda mask: mask[0]):
        parts = {k: count[n, k] for _, k in group}
        here = np.any([found > 0 for found in parts.values()], axis=0)
        for k in sorted({*parts, *wanted_parts(wanted, n)}):
            times, right = parts.get(k, np.zeros(grid, dtype=np.int64)), int(k in wanted_parts(wanted, n))
            part = f"part {k} of {n} of " if n > 1 else ""
            if (few := here & (times < right)).any():
                raise PlanError(f"{where}, but {part}{region(few)} is missing")
            if (many := here & (times > right)).any():
                much = f"{times[many].max()} times" if right else "although another device's part has it"
                raise PlanError(f"{where}, but {part}{region(many)} is counted {much}")
        if (both := here & (whose > 0)).any():
            few = whose[both].flat[0]
            first = "whole" if few == 1 else f"as parts of {few}"
            raise PlanError(f"{where}, but {region(both)} is counted {first} and as parts of {n}")
        whose[here] = n
        lacking &= ~here
    if lacking.any():
        raise PlanError(f"{where}, but {region(lacking)} is missing")


def _in_place(where: str, wanted: View, take: Take) -> None:
    """PlanError unless the take reads inside its source's view and writes the same elements of the tensor."""
    region: Box = take.region
    inside = intersection(take.view.intervals, region) == region
    if not inside or intersection(wanted.intervals, region) != region:
        outside = "what it wants" if inside else f"what device {take.source} has, {take.view}"
        raise PlanError(f"{where}, but {said(region)} is outside of {outside}")
    if take.into != wanted.local(region):
        raise PlanError(f"{where}, but {said(region)} is written to {said(take.into)}: a wrong offset")
