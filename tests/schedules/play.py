"""A step of a pipeline, played without any of the product's code: every lane follows its list, nothing else is known.

A turn begins when its lane is free and what it needs has ended; a turn that several lanes list begins on all at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def needs(turn, stages: int) -> list[tuple[int, str, int]]:
    """The turns that have to end before this one, as (stage, phase, micro)."""
    if turn.phase == "forward":
        return [(turn.stage - 1, "forward", turn.micro)] if turn.stage else []
    if turn.phase == "weight":
        return [(turn.stage, "backward", turn.micro)]
    later = [(turn.stage + 1, "backward", turn.micro)] if turn.stage < stages - 1 else []
    return [(turn.stage, "forward", turn.micro), *later]


def play(lanes: Mapping[int, Sequence], units: Mapping[tuple[int, str] | str, float]) -> float:
    """When the last turn ends. ``units`` of a turn by (stage, phase) or by phase. AssertionError for a deadlock."""
    stages = 1 + max(turn.stage for turns in lanes.values() for turn in turns)
    members: dict[object, list[int]] = {}
    for lane, turns in lanes.items():
        assert len(set(turns)) == len(turns), f"lane {lane} takes a turn twice"
        for turn in turns:
            members.setdefault(turn, []).append(lane)
    place, free, ended = dict.fromkeys(lanes, 0), dict.fromkeys(lanes, 0.0), {}
    moved = True
    while moved:
        moved = False
        for lane, turns in lanes.items():
            while place[lane] < len(turns):
                turn = turns[place[lane]]
                together = members[turn]
                if any(place[o] == len(lanes[o]) or lanes[o][place[o]] != turn for o in together):
                    break
                before = needs(turn, stages)
                if any(key not in ended for key in before):
                    break
                start = max([free[other] for other in together] + [ended[key] for key in before])
                seconds = units[turn.stage, turn.phase] if (turn.stage, turn.phase) in units else units[turn.phase]
                end = ended[turn.stage, turn.phase, turn.micro] = start + seconds
                for other in together:
                    free[other] = end
                    place[other] += 1
                moved = True
    stuck = {lane: turns[place[lane]] for lane, turns in lanes.items() if place[lane] < len(turns)}
    assert not stuck, f"the order deadlocks at {stuck}"
    return max(ended.values())
