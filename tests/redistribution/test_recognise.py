"""Patterns among takes: which are collectives, even when uneven, and which are not."""

from __future__ import annotations

import pytest

from partita.redistribution import Layout, View
from tests.redistribution.cases import layout_views
from tests.redistribution.materialise import materialise
from tests.redistribution.recognise import recognise

MESH = {"x": 2, "y": 3}

# Layouts of a 6 × 6 array on devices 0 … 5 (x major): pattern, groups, elements that a device receives.
COLLECTIVES = [
    ("x,-", "-,-", "all-gather", [(0, 3), (1, 4), (2, 5)], 18),
    ("y,x", "-,x", "all-gather", [(0, 1, 2), (3, 4, 5)], 12),
    ("-,-+y", "-,-", "all-reduce", [(0, 1, 2), (3, 4, 5)], 72),
    ("-,-+y", "-,y", "reduce-scatter", [(0, 1, 2), (3, 4, 5)], 24),
    ("y,-", "-,y", "all-to-all", [(0, 1, 2), (3, 4, 5)], 8),
    ("x.y,-", "x,y", "all-to-all", [(0, 1, 2), (3, 4, 5)], 4),
    ("-,-", "x,y", "local", [(0,), (1,), (2,), (3,), (4,), (5,)], 0),
    ("-,-+y", "-,-+y", "local", [(0,), (1,), (2,), (3,), (4,), (5,)], 0),
]


@pytest.mark.parametrize(("source", "target", "pattern", "groups", "received"), COLLECTIVES)
def test_layouts_of_one_mesh(source: str, target: str, pattern: str, groups: list, received: int) -> None:
    made, wanted = (list(enumerate(layout_views(Layout.parse(text), (6, 6), MESH))) for text in (source, target))
    found = recognise(list(enumerate(materialise("x", made, wanted))))
    assert [(exchange.pattern, exchange.group, exchange.received_elements) for exchange in found] == [
        (pattern, group, received) for group in groups
    ]


def window(start: int, stop: int) -> View:
    return View(((start, stop),))


OTHERS = [
    ("uneven all-gather", [(0, window(0, 3)), (1, window(3, 5))], [(0, window(0, 5)), (1, window(0, 5))],
     [("all-gather", (0, 1), 3)]),
    ("broadcast", [(4, window(0, 5))], [(0, window(0, 5)), (2, window(0, 5)), (1, window(0, 5))],
     [("broadcast", (4, 0, 1, 2), 5)]),
    ("one reader", [(4, window(0, 5))], [(0, window(0, 5))], [("send", (4, 0), 5)]),
    ("scatter", [(4, window(0, 5))], [(0, window(0, 3)), (1, window(3, 5))],
     [("send", (4, 0), 3), ("send", (4, 1), 2)]),
    ("gather", [(0, window(0, 3)), (1, window(3, 5))], [(4, window(0, 5))], [("send", (0, 4), 3), ("send", (1, 4), 2)]),
    ("shifted windows", [(0, window(0, 4)), (1, window(4, 8))], [(0, window(1, 5)), (1, window(3, 8))],
     [("all-to-all", (0, 1), 1)]),
    ("a halo at one side", [(0, window(0, 4)), (1, window(4, 8))], [(0, window(0, 4)), (1, window(3, 8))],
     [("send", (0, 1), 1)]),
    ("a sum of which one part is cut", [(0, View(((0, 4),), 0, 2)), (1, View(((0, 2),), 1, 2)),
      (2, View(((2, 4),), 1, 2))],
     [(device, window(0, 4)) for device in range(3)],
     [("send", (1, 0), 2), ("send", (2, 0), 2), ("send", (0, 1), 4), ("send", (2, 1), 2), ("send", (0, 2), 4),
      ("send", (1, 2), 2)]),
    ("pairs", [(0, window(0, 4)), (1, window(4, 8))], [(2, window(0, 4)), (3, window(4, 8))],
     [("send", (0, 2), 4), ("send", (1, 3), 4)]),
    ("nothing", [(0, window(0, 4))], [(1, window(2, 2))], []),
]  # fmt: skip


@pytest.mark.parametrize(("made", "wanted", "exchanges"), [row[1:] for row in OTHERS], ids=[row[0] for row in OTHERS])
def test_any_views(made: list, wanted: list, exchanges: list) -> None:
    taken = [(device, takes) for (device, _), takes in zip(wanted, materialise("x", made, wanted), strict=True)]
    assert [(e.pattern, e.group, e.received_elements) for e in recognise(taken)] == exchanges
