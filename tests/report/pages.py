"""Simulated steps and their pages, read back with a parser of XML: pictures as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from partita.cli.planned import cluster_of, model_of
from partita.cluster import Cluster
from partita.plan import Plan, load_plan
from partita.plugins.report.page import page
from partita.simulate import Simulation, simulate
from partita.simulate.stage_graph import Forms, StageGraph, forms, stage_graph


@dataclass(frozen=True)
class Step:
    """A plan, its simulation, and what the page of it says."""

    plan: Plan
    cluster: Cluster
    simulation: Simulation
    stages: StageGraph
    forms: Forms | None = None

    @cached_property
    def text(self) -> str:
        return page(self.simulation, self.plan, self.cluster, self.stages, self.forms)

    @cached_property
    def root(self) -> Element:
        return parsed(self.text)

    @cached_property
    def words(self) -> str:
        return " ".join(" ".join(self.root.find("body").itertext()).split())

    @cached_property
    def pictures(self) -> list[Element]:
        """The timeline and the memory, without the columns of names."""
        return [svg for svg in self.root.iter("svg") if svg.get("role") == "img" and svg is not self.graph]

    @cached_property
    def graph(self) -> Element:
        """The graph of stages."""
        (found,) = (svg for svg in self.root.iter("svg") if svg.get("class") == "graph")
        return found

    @cached_property
    def width(self) -> float:
        """Pixels of the step: where the line of its end is."""
        (line,) = (path for path in self.pictures[0].iter("path") if path.get("class") == "end-of-step")
        return float(re.fullmatch(r"M(\S+) .*", line.get("d"))[1])


def parsed(text: str) -> Element:
    """The page as XML: it is both."""
    doctype = "<!DOCTYPE html>\n"
    assert text.startswith(doctype)
    return ElementTree.fromstring(text[len(doctype) :])


def step(file: Path, cluster: str | None = None) -> Step:
    """The plan's step on its own cluster or another one."""
    plan = load_plan(file)
    machine = cluster_of(plan, str(file), cluster, None)
    graph = model_of(plan, str(file), None)
    simulation, stages = simulate(graph, plan, machine), stage_graph(graph, plan)
    return Step(plan, machine, simulation, stages, None if stages.is_chain else forms(graph, plan, machine, simulation))


def lanes(picture: Element) -> dict[int, Element]:
    """What is drawn for each device that has a lane of its own, by its number."""
    return {int(group.get("data-device")): group for group in picture.iter("g") if group.get("data-device")}


def rectangles(lane: Element, *kinds: str) -> Iterator[Element]:
    """The lane's rectangles of these kinds; of all but waiting without any."""
    for rectangle in lane.iter("rect"):
        kind = rectangle.get("class").split()[0]
        if kind in kinds or (not kinds and kind != "waiting"):
            yield rectangle


def heights(outline: str) -> dict[int, float]:
    """From which pixel on the upper edge of an area is how high: ``M0 90H3V50H9V90Z`` is 90 from 0, 50 from 3."""
    first, *steps = re.findall(r"(?:M0 |H\d+V)[\d.]+", outline)
    found = {0: float(first.split()[1])}
    for text in steps[:-1]:
        x, y = text[1:].split("V")
        found[int(x)] = float(y)
    return found
