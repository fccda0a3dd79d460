"""The page of the plan library: every plan has its part, and the pictures of orders are those of the schedules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from partita.drafted import library
from partita.schedules import Turn, find

PAGE = (Path(__file__).parents[1] / "docs" / "library.md").read_text()
# Two devices and four micro-batches: the schedule's name, its stages and its arguments.
PICTURES = {
    "gpipe": (2, {}),
    "1f1b": (2, {"depth": 0}),
    "zb-h1": (2, {}),
    "interleaved": (4, {"lanes": 2}),
    "breadth-first": (4, {"lanes": 2}),
    "interlaced": (4, {"extra": 0}),
    "3f1b": (6, {"passes": 3}),
}
LANES, MICRO_BATCHES = 2, 4
Key = tuple[int, str, int]


def picture(name: str, stages: int, arguments: dict[str, int]) -> str:
    """A row a device, three letters a unit of time: `0a` is the forward turn of micro-batch 0 in stage a, `0A` its
    backward turn, which takes two units or, with weight turns (`0w`), one.
    """
    left = {lane: list(turns) for lane, turns in find(name)(stages, MICRO_BATCHES, **arguments).items()}
    trained = {turn.stage for turns in left.values() for turn in turns if turn.phase == "backward"}
    short = any(turn.phase == "weight" for turns in left.values() for turn in turns)
    ends: dict[Key, int] = {}
    rows: dict[int, list[str]] = {lane: [] for lane in left}
    while any(left.values()):
        turn = next(turns[0] for turns in left.values() if turns and _ready(turns[0], left, ends, stages, trained))
        lanes = [lane for lane, turns in left.items() if turn in turns]
        start = max([len(rows[lane]) for lane in lanes] + [ends[key] for key in _needs(turn, stages)])
        cells = [f"{turn.micro}{_letter(turn)}", *(["--"] if turn.phase == "backward" and not short else [])]
        for lane in lanes:
            left[lane].remove(turn)
            rows[lane] += ["  "] * (start - len(rows[lane])) + cells
        ends[turn.stage, turn.phase, turn.micro] = start + len(cells)
    return "\n".join(f"device {lane}  {' '.join(cells)}".rstrip() for lane, cells in rows.items())


def _letter(turn: Turn) -> str:
    letter = "abcdef"[turn.stage]
    return {"forward": letter, "backward": letter.upper(), "weight": "w"}[turn.phase]


def _needs(turn: Turn, stages: int) -> list[Key]:
    s, micro = turn.stage, turn.micro
    if turn.phase == "forward":
        return [(s - 1, "forward", micro)] if s else []
    if turn.phase == "weight":
        return [(s, "backward", micro)]
    return [(s, "forward", micro), *([(s + 1, "backward", micro)] if s + 1 < stages else [])]


def _ready(
    turn: Turn, left: dict[int, list[Turn]], ends: dict[Key, int], stages: int, trained: set[int]
) -> bool:  # fmt: skip
    """Whether its inputs are there, and all devices that take it (a stage that they share) are at it."""
    assert turn.phase == "forward" or turn.stage in trained
    together = all(turns[0] == turn for turns in left.values() if turn in turns)
    return together and all(key in ends for key in _needs(turn, stages))


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_that_of_the_schedule(name: str) -> None:
    drawn = picture(name, *PICTURES[name])
    assert drawn.count("device") == LANES
    assert f"```text\n{drawn}\n```" in PAGE


def test_every_plan_has_its_part() -> None:
    headings = re.findall(r"^### (.+)$", PAGE, re.M)
    assert [name for heading in headings for name in re.findall(r"`([^`]+)`", heading)] == list(library())


@pytest.mark.parametrize("name", ["my_plan.py", "wide_end.py"])
def test_an_example_is_the_file(name: str) -> None:
    example = (Path(__file__).parents[1] / "docs" / "examples" / name).read_text()
    assert f"```py\n{example}```" in PAGE
