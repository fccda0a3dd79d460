"""The page of a simulated step: what is drawn is what was simulated, and the page stands alone."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from partita.cli.show import duration
from partita.cluster import Cluster
from partita.planner.words import gib
from partita.simulate import Simulation
from tests.report.pages import Step, heights, lanes, parsed, rectangles


def drawn(step: Step, device: int) -> Counter[str]:
    """How many tasks of each kind the lane's rectangles stand for."""
    found: Counter[str] = Counter()
    for rectangle in rectangles(lanes(step.pictures[0])[device]):
        found[rectangle.get("class").split()[0]] += int(rectangle.get("data-tasks", 1))
    return found


def test_every_task_is_drawn_once(two: Step) -> None:
    queues = two.simulation.program.queues
    assert lanes(two.pictures[0]).keys() == queues.keys() == {0, 1}
    for device, queue in queues.items():
        found = drawn(two, device)
        for kind in ("forward", "backward", "send", "receive"):
            assert found[kind] == sum(task.kind == kind for task in queue) > 0
        assert found.total() == len(queue)


def test_turns_lie_where_their_seconds_are(two: Step) -> None:
    """To the second decimal of a pixel, which is all that is written."""
    pixels = two.width / two.simulation.step_seconds
    for device, lane in lanes(two.pictures[0]).items():
        for kind in ("forward", "backward"):
            turns = [(t, s, e) for t, s, e in two.simulation.intervals(device) if t.kind == kind]
            found = list(rectangles(lane, kind))
            assert [float(r.get("x")) for r in found] == pytest.approx([s * pixels for _, s, _ in turns], abs=0.0051)
            assert [float(r.get("width")) for r in found] == pytest.approx(
                [(e - s) * pixels for _, s, e in turns], abs=0.0051
            )
            for (task, start, end), rectangle in zip(turns, found, strict=True):
                hint = rectangle.find("title").text
                assert hint.startswith(f"{kind} {task.micro} of {two.plan.stages[task.stage].name}: ")
                assert f"{duration(end - start)} from {duration(start)}" in hint
        numbers = Counter(text.text for text in lane.iter("text"))
        assert numbers == {str(micro): 2 for micro in range(4)}


def test_the_axis_says_where_the_seconds_are(two: Step) -> None:
    unit = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
    pixels = two.width / two.simulation.step_seconds
    for picture in two.pictures:
        ticks = [text for text in picture.iter("text") if text.get("class") == "middle axis"]
        assert len(ticks) > 4
        for tick in ticks:
            value, name = tick.text.split()
            assert float(tick.get("x")) == pytest.approx(float(value) * unit[name] * pixels, abs=0.0051)


@pytest.mark.parametrize("name", ["two", "wide"])
def test_the_head_has_the_simulation_s_figures(name: str, request: pytest.FixtureRequest) -> None:
    step: Step = request.getfixturevalue(name)
    simulation, plan = step.simulation, step.plan
    device = max(simulation.peaks, key=lambda device: simulation.peaks[device].total)
    assert step.words.startswith(f"{plan.model} on {plan.cluster} {plan.global_batch} samples")
    assert f"simulated step {duration(simulation.step_seconds)} predicted " in step.words
    assert f"bubble {simulation.bubble_fraction:.1%} predicted " in step.words
    assert f"peak memory {gib(simulation.peaks[device].total)} of 80.00 GiB, device {device}" in step.words
    assert "does not fit" not in step.words
    for reason in plan.reasons:
        assert " ".join(reason.split()) in step.words


@pytest.mark.parametrize(("room", "over"), [((1.5, 1.5), None), ((0.99, 0.99), "0-1"), ((1.5, 0.9), "1")])
def test_memory_is_as_high_as_it_is_held(two: Step, room: tuple[float, float], over: str | None) -> None:
    """The upper edge over every pixel against all moments; limit and peak at their bytes, below and above the limit."""
    limits = [int(share * two.simulation.peaks[number].total) for number, share in enumerate(room)]
    kinds = [replace(two.cluster.kind, device=replace(two.cluster.device, memory_bytes=limit)) for limit in limits]
    step = replace(two, cluster=Cluster("two nodes", (1, 1), tuple(kinds)))
    pixels = step.width / step.simulation.step_seconds
    charts = lanes(step.pictures[1])
    assert charts.keys() == {0, 1}
    for number, chart in charts.items():
        peak = step.simulation.peaks[number]
        circle = chart.find("circle")
        limit = limits[number]
        assert float(circle.get("cx")) == pytest.approx(peak.seconds * pixels, abs=0.0051)
        (line,) = (path for path in chart.iter("path") if path.get("class") == "limit")
        states = list(chart.iter("rect"))
        ground = max(float(r.get("y")) + float(r.get("height")) for r in states)
        # Pixels a byte, from the line of the limit; the edges of areas have one decimal.
        scale = (ground - float(re.fullmatch(r"M0 (\S+)H.*", line.get("d"))[1])) / limit
        assert ground - float(circle.get("cy")) == pytest.approx(peak.total * scale, abs=0.011)
        state = peak.total - sum(peak.items()[item] for item in ("activations", "temporary", "buffers"))
        assert ground - min(float(r.get("y")) for r in states) == pytest.approx(state * scale, abs=0.011)
        held = [(0, state)] + [
            (moment.seconds * pixels, state + moment.total) for moment in step.simulation.memory(number)
        ]
        edges = [heights(path.get("d")) for path in chart.iter("path") if path.get("class") in peak.items()]
        for pixel in range(int(step.width)):
            after = [
                size for (x, size), (end, _) in pairwise([*held, (step.width, 0)]) if x < pixel + 1 and end >= pixel
            ]
            top = min(edge[max(x for x in edge if x <= pixel)] for edge in edges)
            assert ground - top == pytest.approx(max(after) * scale, abs=0.06)
        assert f"peak {gib(peak.total)} at {duration(peak.seconds)}" in {
            t.text.split(" ·")[0] for t in chart.iter("text")
        }
    assert (f"It does not fit: devices {over} need more" in step.words) == (over is not None)


def test_many_devices_that_do_the_same_are_one_lane(wide: Step) -> None:
    assert lanes(wide.pictures[0]).keys() == {0, 16, 32, 48}
    assert "The 64 devices are drawn in 4 lanes: those of a group run the same tasks in the same order" in wide.words
    columns = [svg for svg in wide.root.iter("svg") if svg.get("class") == "names"]
    texts = [text for svg in columns for text in svg.iter("text")]
    names = [text.find("title").text for text in texts if text.get("class") == "name"]
    assert names == 2 * ["devices 0-15", "devices 16-31", "devices 32-47", "devices 48-63"]


def test_collectives_are_the_foot_of_a_turn(wide: Step) -> None:
    costs, inside = wide.simulation.costs, {}
    for gradient in wide.root.iter("linearGradient"):
        _, kind, stage = gradient.get("id").split("-")
        first, second = (float(stop.get("offset")) for stop in gradient.iter("stop"))
        assert first == second
        inside[int(stage), kind] = 1 - first
    for key, part in inside.items():
        assert part == pytest.approx(costs.collective_seconds[key] / costs.seconds[key], abs=0.0051)
    turns = {(stage, kind) for stage in range(4) for kind in ("forward", "backward")}
    assert {key for key in turns if costs.collective_seconds[key]} <= inside.keys()
    assert "at the foot of a task" in wide.words
    turns = list(rectangles(lanes(wide.pictures[0])[16], "forward"))
    assert [turn.get("class") for turn in turns] == ["forward s0 foot-forward-1"] * len(turns)


@pytest.mark.slow
def test_a_large_step_is_no_large_file(large: Step) -> None:
    assert len(large.text.encode()) < 3e6
    turns = sum(
        task.kind in ("forward", "backward") for queue in large.simulation.program.queues.values() for task in queue
    )
    assert turns == 2 * 32 * 64
    found = sum((drawn(large, device) for device in large.simulation.timings), Counter())
    assert found["forward"] + found["backward"] == turns
    assert found.total() == sum(map(len, large.simulation.program.queues.values()))


@pytest.mark.parametrize("name", ["two", "wide", pytest.param("large", marks=pytest.mark.slow)])
def test_the_page_stands_alone_and_can_be_read(name: str, request: pytest.FixtureRequest) -> None:
    step: Step = request.getfixturevalue(name)
    for word in ("http", "<script", "@import", "src=", "href="):
        assert word not in step.text
    assert set(re.findall(r"url\((.)", step.text)) <= {"#"}
    assert all(picture.get("aria-label") for picture in (step.graph, *step.pictures))
    assert len(step.pictures) == 2
    assert [table.find("caption").text.split()[0] for table in step.root.iter("table")] == [
        "Stages",
        "Seconds",
        "Memory",
    ]
    ids = [element.get("id") for element in step.root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    # Every fill that a look asks for exists.
    looks = {part for r in step.root.iter("rect") for part in r.get("class", "").split() if part.startswith("foot-")}
    assert looks <= set(ids)


class Tags(HTMLParser):
    """HTML as a browser takes it: an element that XML closes at once stays open, if it isn't SVG's or void."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        assert tag == "meta" or "svg" in self.open


def test_html_and_xml_see_the_same_elements(two: Step) -> None:
    tags = Tags()
    tags.feed(two.text)
    assert tags.open == []


def test_the_same_step_gives_the_same_page(two: Step) -> None:
    again = Simulation(two.simulation.program, two.simulation.costs, two.simulation.timings)
    assert replace(two, simulation=again).text == two.text


def test_names_are_shown_as_they_are(two: Step) -> None:
    odd = 'a <b>&amp; "model"'
    stages = tuple(replace(stage, name=f"<{stage.name}>") for stage in two.plan.stages)
    step = replace(two, plan=replace(two.plan, model=odd, stages=stages, reasons=("1 < 2 & 3 > 2",)))
    assert parsed(step.text).find("body/h1").text == f"{odd} on {two.cluster.name}"
    assert "1 < 2 & 3 > 2" in step.words
    assert "<stage0>" in step.words
