"""The drawing of the graph of stages: a box for each, an edge for what it reads, and nothing on top of anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path
from random import Random
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from partita.graph.edges import paths_behind
from partita.plugins.report.stage_graph import drawing
from partita.simulate.stage_graph import Edge, StageGraph, sentence
from tests.report.pages import Step, step
from tests.towers import plan, saved, towers

MIB = 2**20


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether they have more than an edge in common."""
        across = max(self.left, other.left) < min(self.right, other.right)
        return across and max(self.top, other.top) < min(self.bottom, other.bottom)


def boxes(svg: Element) -> dict[int, Box]:
    found = {}
    for group in svg:
        if (stage := group.get("data-stage")) is not None:
            x, y, width, height = (float(group.find("rect").get(key)) for key in ("x", "y", "width", "height"))
            found[int(stage)] = Box(x, y, x + width, y + height)
    return found


def edges(svg: Element) -> dict[tuple[int, int], Element]:
    found = [(tuple(map(int, group.get("data-edge").split())), group) for group in svg if group.get("data-edge")]
    assert len(dict(found)) == len(found)
    return dict(found)


def parts(edge: Element) -> Iterator[Box]:
    """What the straight and bent parts of an edge lie in: bends have level ends, so that they stay between these."""
    path = edge.find("path").get("d")
    (x, y), *rest = ([float(value) for value in found.split()] for found in re.findall(r"[MHC]([^MHC]+)", path))
    for numbers in rest:
        to, down = (numbers[0], y) if len(numbers) == 1 else numbers[4:]
        if len(numbers) > 1:
            assert (numbers[1], numbers[3]) == (y, down)
            assert x <= numbers[0] == numbers[2] <= to
        yield Box(x, min(y, down), to, max(y, down))
        x, y = to, down


def words(edge: Element) -> Box:
    """The room of an edge's words, letters some seven pixels wide."""
    label = edge.find("text")
    x, y = float(label.get("x")), float(label.get("y"))
    return Box(x, y - 9, x + 7 * len(label.text), y)


def check(svg: Element, stages: StageGraph) -> None:
    drawn, lines = boxes(svg), edges(svg)
    assert sorted(drawn) == list(range(len(stages.behind)))
    assert set(lines) == {(edge.maker, edge.reader) for edge in stages.edges}
    whole = Box(*(float(value) for value in svg.get("viewBox").split()))
    whole = Box(whole.left, whole.top, whole.left + whole.right, whole.top + whole.bottom)
    for box in drawn.values():
        assert whole.left <= box.left < box.right <= whole.right
        assert whole.top <= box.top < box.bottom <= whole.bottom
    assert [pair for pair in combinations(drawn, 2) if drawn[pair[0]].meets(drawn[pair[1]])] == []
    columns = {stage: at for at, layer in enumerate(stages.layers) for stage in layer}
    lefts = sorted({box.left for box in drawn.values()})
    assert {stage: lefts.index(box.left) for stage, box in drawn.items()} == columns
    level = []
    for (maker, reader), line in lines.items():
        run = list(parts(line))
        assert run[0].left == drawn[maker].right
        assert run[-1].right == drawn[reader].left
        assert drawn[maker].top < run[0].top < drawn[maker].bottom
        # A line has no height: a hair's breadth, so that it would meet what it runs through.
        for part in run:
            hair = Box(part.left, part.top - 0.01, part.right, part.bottom + 0.01)
            assert not any(hair.meets(box) for box in drawn.values())
        level += [(part.left, part.right, part.top) for part in run if part.top == part.bottom]
        assert not any(words(line).meets(box) for box in drawn.values())
    level.sort(key=lambda part: (part[2], part[0]))
    assert all(one[2] != two[2] or one[1] <= two[0] for one, two in pairwise(level))
    assert not any(words(one).meets(words(two)) for one, two in combinations(lines.values(), 2))


def drawn(pairs: list[tuple[int, int]], count: int) -> tuple[Element, StageGraph]:
    """The picture of these stages, each that of the same made plan."""
    made = plan(towers())
    costs = made.predicted.breakdown
    found = StageGraph(tuple(Edge(*pair, ("v",), 100.5 * MIB) for pair in pairs), tuple(paths_behind(pairs, count)))
    costs = replace(costs, stages=costs.stages[:1] * count)
    many = replace(made, stages=made.stages[:1] * count, predicted=replace(made.predicted, breakdown=costs))
    return ElementTree.fromstring(drawing(found, many, None)), found


@pytest.fixture(scope="module")
def branchy(tmp_path_factory: pytest.TempPathFactory) -> Step:
    return step(saved(tmp_path_factory.mktemp("branchy")))


def test_boxes_and_edges_of_the_towers(branchy: Step) -> None:
    check(branchy.graph, branchy.stages)
    assert (len(boxes(branchy.graph)), len(edges(branchy.graph))) == (4, 3)
    said = [[line.text for line in group.iter("text")] for group in branchy.graph if group.get("data-stage")]
    assert said == [
        ["stage0", "right0", "device 0", "holds 3 by graph, 4 as chain"],
        ["stage1", "left", "device 1", "holds 2 by graph, 3 as chain"],
        ["stage2", "right1", "device 2", "holds 2 by graph, 2 as chain"],
        ["stage3", "head", "device 3", "holds 1 by graph, 1 as chain"],
    ]
    assert {pair: edge.find("text").text for pair, edge in edges(branchy.graph).items()} == dict.fromkeys(
        [(0, 2), (1, 3), (2, 3)], "1 MiB"
    )
    assert edges(branchy.graph)[1, 3].find("title").text == "stage3 reads 1 MiB of stage1 for one of its micro-batches."
    marked = [group for group in branchy.graph if any("longest" in each.get("class", "") for each in group)]
    assert [group.get("data-stage") or group.get("data-edge") for group in marked] == ["0 2", "2 3", "0", "2", "3"]


def test_the_page_says_what_the_graph_wins_above_the_timeline(branchy: Step) -> None:
    said = sentence(branchy.stages, branchy.forms)
    assert branchy.words.count(said) == 1
    assert branchy.words.index("Who reads whom") < branchy.words.index("What the devices do")
    (table,) = (table for table in branchy.root.iter("table") if table.find("caption").text == "Graph of stages")
    rows = [[cell.text for cell in row] for row in table.iter("tr")]
    assert rows[0] == [
        "stage", "reads", "longest path", "micro-batches held by the graph", "micro-batches held as a chain",
        "GiB by the graph", "GiB as a chain",
    ]  # fmt: skip
    assert [row[:5] for row in rows[1:]] == [
        ["stage0", "–", "3", "3", "4"], ["stage1", "–", "2", "2", "3"], ["stage2", "stage0 (1 MiB)", "2", "2", "2"],
        ["stage3", "stage1 (1 MiB), stage2 (1 MiB)", "1", "1", "1"],
    ]  # fmt: skip
    again = replace(branchy, plan=replace(branchy.plan, reasons=(said,)))
    assert again.words.count(said) == 1


def test_a_chain_has_a_picture_and_no_more(two: Step) -> None:
    check(two.graph, two.stages)
    assert two.stages.is_chain
    assert [line.text for line in two.graph.iter("text")][-1] == "holds 1 micro-batch"
    assert "longest" not in "".join(each.get("class", "") for each in two.graph.iter())
    assert "The stages form a graph" not in two.words
    assert "Graph of stages" not in [table.find("caption").text for table in two.root.iter("table")]


def test_another_schedule_has_one_number(tmp_path: Path) -> None:
    found = step(saved(tmp_path, "gpipe"))
    assert "holds 8 micro-batches" in [line.text for line in found.graph.iter("text")]
    assert "The stages form a graph, whose longest path has 3 of 4." in found.words


@pytest.mark.parametrize(
    ("pairs", "count"),
    [
        ([], 1),
        ([], 3),
        ([(0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (1, 3)], 4),  # skips over boxes of their own column
        ([(stage, 9) for stage in range(9)], 10),  # a box as high as its nine edges
        ([(0, stage) for stage in range(1, 10)], 10),
        (
            [(stage, stage + 1) for stage in range(15)] + [(4, stage) for stage in range(6, 16)],
            16,
        ),
        ([(maker, reader) for maker in range(5) for reader in range(5, 10)], 10),
    ],
)
def test_nothing_lies_on_anything(pairs: list[tuple[int, int]], count: int) -> None:
    check(*drawn(pairs, count))


@pytest.mark.parametrize("seed", range(20))
def test_nothing_lies_on_anything_in_any_graph(seed: int) -> None:
    random = Random(seed)
    count = random.randint(2, 12)
    check(*drawn([(m, r) for r in range(count) for m in range(r) if random.random() < 0.3], count))


def test_towers_side_by_side_are_joined_by_straight_lines() -> None:
    """Stages that only read one another stand at one height, so that four branches of two don't cross."""
    svg, _ = drawn([(0, 1), (2, 3), (4, 5), (6, 7), (1, 8), (3, 8), (5, 8), (7, 8)], 9)
    found = boxes(svg)
    assert all(found[stage].top == pytest.approx(found[stage + 1].top, abs=0.011) for stage in (0, 2, 4, 6))
    middle = (found[0].top + found[6].bottom) / 2
    assert (found[8].top + found[8].bottom) / 2 == pytest.approx(middle, abs=0.011)


@pytest.mark.parametrize(
    ("pairs", "count"),
    [
        ([(0, 5), (1, 4), (2, 3)], 6),  # in the order of the list all three would cross
        ([(stage, 4) for stage in range(4)], 5),  # ends at a box in the order of where they come from
        ([(0, stage) for stage in range(1, 5)], 5),
        ([(0, 3), (1, 2), (2, 4), (3, 5), (4, 6), (5, 6)], 7),
        ([(0, 1), (1, 2), (2, 3), (0, 3), (0, 2)], 4),
    ],
)
def test_what_need_not_cross_does_not(pairs: list[tuple[int, int]], count: int) -> None:
    svg, _ = drawn(pairs, count)
    bends: dict[float, list[tuple[float, float]]] = {}
    for line in edges(svg).values():
        for left, y, down in re.findall(r"H(\S+)C\S+ (\S+) \S+ \S+ \S+ (\S+?)(?=H|$)", line.find("path").get("d")):
            bends.setdefault(float(left), []).append((float(y), float(down)))
    assert sum(map(len, bends.values())) >= len(pairs)
    for found in bends.values():
        assert all((one[0] - two[0]) * (one[1] - two[1]) > 0 for one, two in combinations(found, 2))
