"""op-assign and op-order (SuperScaler, section 3.3): which devices run which stages, every device's order of turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partita.errors import PlanError, listed
from partita.plan import Order
from partita.schedules import Turn, find
from partita.spacetime.program import Place


def assign(devices_of: Sequence[Sequence[int]], dp: Sequence[int], tp: Sequence[int]) -> dict[int, tuple[Place, ...]]:
    """Each device's places, one in each stage that it serves: data-parallel copy, then its number in the copy,
    row-major in the stage's list.

    PlanError when a stage's list is not dp × tp long, a device is listed twice in it, or belongs to different
    data-parallel copies of different stages: it would need two batches.
    """
    places: dict[int, list[Place]] = {}
    for stage, devices in enumerate(devices_of):
        if len(devices) != dp[stage] * tp[stage]:
            needed = dp[stage] * tp[stage]
            raise PlanError(
                f"stage {stage} lists {len(devices)} devices, but dp={dp[stage]} × tp={tp[stage]} needs {needed}"
            )
        for index, device in enumerate(devices):
            place = Place(stage, *divmod(index, tp[stage]))
            before = places.setdefault(device, [])
            if before and before[-1].stage == stage:
                raise PlanError(f"device {device} is listed in stage {stage} twice")
            if before and before[-1].data != place.data:
                raise PlanError(
                    f"device {device} is in data-parallel copy {before[-1].data} of stage {before[-1].stage} and in "
                    f"copy {place.data} of stage {stage}: it must be in one"
                )
            before.append(place)
    return {device: tuple(found) for device, found in places.items()}


def order(
    wanted: Order, places: Mapping[int, Sequence[Place]], counts: Sequence[int], edges: Sequence[tuple[int, int]]
) -> dict[int, list[Turn]]:
    """Each device's turns: those of the lane that serves the same stages, or those that the plan itself lists.

    ``counts`` are the micro-batches of each stage, ``edges`` the pairs (maker, reader) of stages between which values
    go. PlanError for a schedule that doesn't exist or that can't order unlike counts, and where its lanes aren't the
    plan's devices.
    """
    if max(counts) != wanted.micro_batches or len(counts) != wanted.stages:
        raise PlanError(
            f"the plan's order is of {wanted.stages} stages and {wanted.micro_batches} micro-batches, its stages take "
            f"{listed(counts)}; {len(counts)} stages and {max(counts)} micro-batches, the most of a stage, work"
        )
    if wanted.generator == "turns":
        if odd := sorted(set(wanted.turns) ^ set(places)):
            raise PlanError(f"the plan's order and its stages must have the same devices; device {odd[0]} is in one")
        for device, at in places.items():
            served_here = {place.stage for place in at}
            for turn in wanted.turns[device]:
                if turn.stage not in served_here or not 0 <= turn.micro < counts[turn.stage]:
                    count = counts[turn.stage] if turn.stage in served_here else wanted.micro_batches
                    raise PlanError(
                        f"device {device} has a turn of stage {turn.stage} and micro-batch {turn.micro}; it serves the "
                        f"stages {listed(sorted(served_here))}, with the micro-batches 0 to {count - 1}"
                    )
        return {device: list(wanted.turns[device]) for device in places}
    schedule = find(wanted.generator)
    lanes = schedule.on(counts, edges, wanted.arguments)
    served = {frozenset(turn.stage for turn in turns): turns for turns in lanes.values()}
    found = {}
    for device, at in places.items():
        stages = frozenset(place.stage for place in at)
        if stages not in served:
            lists = "; ".join(str(sorted(lane)) for lane in served)
            raise PlanError(
                f'device {device} serves the stages {sorted(stages)}; schedule "{wanted.generator}" of {wanted.stages} '
                f"stages has devices for {lists}"
            )
        found[device] = served[stages]
    return found
