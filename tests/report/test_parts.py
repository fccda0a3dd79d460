"""The parts of which pages are made: ticks, shades, marks drawn together, devices that are alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.plugins.report.lanes import Lane, groups
from partita.plugins.report.marks import Mark, shades, together
from partita.plugins.report.scale import Scale, scale
from partita.plugins.report.svg import cut, number
from partita.simulate.engine import Timing
from tests.report.pages import Step


@pytest.mark.parametrize(
    ("seconds", "pixels", "first", "last"),
    [
        (1.0, 1000, ["0 s", "0.2 s", "0.4 s"], "1 s"),
        (5.82, 3000, ["0 s", "0.5 s", "1 s"], "5.5 s"),
        (0.0141, 1000, ["0 ms", "2 ms", "4 ms"], "14 ms"),
        (3e-5, 1000, ["0 µs", "5 µs", "10 µs"], "30 µs"),
        (1000.0, 1000, ["0 s", "200 s", "400 s"], "1000 s"),
    ],
)
def test_ticks_are_round(seconds: float, pixels: int, first: list[str], last: str) -> None:
    words = [label for _, label in Scale(seconds, pixels).ticks()]
    assert (words[:3], words[-1]) == (first, last)


@pytest.mark.parametrize(
    ("seconds", "turns", "pixels"),
    [
        (1.0, [0.1] * 10, 1000),  # all would fit into less
        (1.0, [0.01] * 100, 1400),  # 14 pixels a turn
        (1.0, [0.0001] * 10_000, 3000),  # no wider than that
        (1.0, [0.01] * 80 + [0.5] * 20, 1400),  # the shorter ones count
        (1.0, [], 1000),
        (0.0, [0.0], 1000),
    ],
)
def test_a_step_is_as_wide_as_its_turns_need(seconds: float, turns: list[float], pixels: int) -> None:
    assert scale(seconds, turns).pixels == pixels


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([(0,), (1,), (2,)], [0, 0, 0]),  # a pipeline
        ([(0,), (1,), (0,), (1,)], [0, 0, 1, 1]),  # interleaved: two stages a device
        ([(0, 1, 2), (0,), (1,), (2,)], [0, 1, 1, 1]),  # interlaced: one stage on all devices
        ([(0,), (0, 1), (1,)], [0, 1, 0]),
        ([(0,)] * 5, [0, 1, 2, 3, 0]),  # there are four
    ],
)
def test_stages_of_one_device_have_different_shades(
    two: Step, devices: list[tuple[int, ...]], expected: list[int]
) -> None:
    stages = tuple(replace(two.plan.stages[0], devices=own) for own in devices)
    assert shades(replace(two.plan, stages=stages)) == expected


def marks(*bounds: tuple[float, float, str]) -> list[Mark]:
    return [Mark(start, end, look, "", f"{look} at {start}") for start, end, look in bounds]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([(0, 2, "a"), (2, 4, "a")], [(0, 2, "a", 1), (2, 4, "a", 1)]),
        ([(0, 0.5, "a"), (0.5, 1, "a"), (1, 1.5, "a")], [(0, 1.5, "a", 3)]),
        ([(0, 0.5, "a"), (1.4, 1.6, "b")], [(0, 1.6, "several", 2)]),
        ([(0, 0.5, "a"), (1.5, 1.6, "a")], [(0, 0.5, "a", 1), (1.5, 1.6, "a", 1)]),  # a gap that is seen
        ([(0, 0.5, "a"), (0.5, 1.5, "a"), (1.5, 1.6, "a")], [(0, 0.5, "a", 1), (0.5, 1.5, "a", 1), (1.5, 1.6, "a", 1)]),
        ([(0, 0.9, "a"), (0.1, 0.2, "a")], [(0, 0.9, "a", 2)]),  # one inside the other
        ([], []),
    ],
)
def test_what_is_too_short_is_drawn_together(
    given: list[tuple[float, float, str]], expected: list[tuple[float, float, str, int]]
) -> None:
    found = together(marks(*given), 1.0)
    assert [(mark.start, mark.end, mark.look, mark.count) for mark in found] == expected


def test_devices_of_a_lane_are_alike(wide: Step) -> None:
    """Each device stands in one lane; with one of them a little late, it is alike to half a pixel and no more."""
    assert [lane.devices for lane in groups(wide.simulation, 0.0)] == [
        tuple(range(first, first + 16)) for first in range(0, 64, 16)
    ]
    times = wide.simulation.timings[5]
    timing = Timing(*(tuple(second + 1e-3 for second in own) for own in (times.issued, times.starts, times.ends)))
    moved = replace(wide.simulation, timings={**wide.simulation.timings, 5: timing})
    assert groups(moved, 1.9e-3)[:2] == [Lane((0, 1, 2, 3, 4, *range(6, 16))), Lane((5,))]
    (first, *_) = groups(moved, 2.1e-3)
    assert first.devices == tuple(range(16))
    assert first.off_seconds == pytest.approx(1e-3)


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (-0.001, "0"), (12.5, "12.5"), (100, "100"), (1 / 3, "0.33")])
def test_coordinates_are_short(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(("words", "text"), [("stage0", "stage0"), ("stage0, stage4, x", "stage0…"), ("", "")])
def test_long_names_are_cut(words: str, text: str) -> None:
    assert cut(words, 9) == text
