"""op-assign and op-order (SuperScaler, section 3.3): which devices run which stage, every device's order of turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partita.errors import PlanError
from partita.schedules import GENERATORS, Turn
from partita.spacetime.program import Place


def assign(devices_of: Sequence[Sequence[int]], dp: Sequence[int], tp: Sequence[int]) -> dict[int, Place]:
    """Each device's place: stage, then data-parallel copy, then tensor-parallel piece, row-major in the stage's list.

    PlanError when a stage's list is not dp × tp long or a device is listed twice.
    """
    places: dict[int, Place] = {}
    for stage, devices in enumerate(devices_of):
        if len(devices) != dp[stage] * tp[stage]:
            needed = dp[stage] * tp[stage]
            raise PlanError(
                f"stage {stage} lists {len(devices)} devices, but dp={dp[stage]} × tp={tp[stage]} needs {needed}"
            )
        for index, device in enumerate(devices):
            if device in places:
                raise PlanError(f"device {device} is listed in stage {places[device].stage} and again in stage {stage}")
            places[device] = Place(stage, *divmod(index, tp[stage]))
    return places


def order(generator: str, stages: int, micro_batches: int, places: Mapping[int, Place]) -> dict[int, list[Turn]]:
    """Each device's turns, from a schedule's name. PlanError for a schedule that doesn't exist."""
    if generator not in GENERATORS:
        raise PlanError(f'no schedule "{generator}"; there are {", ".join(sorted(GENERATORS))}')
    turns = GENERATORS[generator](stages, micro_batches)
    return {device: turns[place.stage] for device, place in places.items()}
