"""Values between stages whose turns take unlike samples: which go where, in which turns, and which can.

A turn of a stage overlaps with those turns of another that have some of its samples. What crosses is sent in parts,
each the samples that two turns have in common, and joined where it is read; its gradient goes back by the converse: the
rows that a turn reads to the turn that made them, each once. A turn waits for those that it overlaps with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from partita.errors import PlanError
from partita.graph import Graph
from partita.graph.flows import flow_tags
from partita.redistribution.layout import Interval
from partita.spacetime.communication import Meshes
from partita.spacetime.program import Share, Transfer
from partita.spacetime.views import Arrival, overlaps, run_arriving


class Crossing:
    """Who has which samples of whom, from every stage's share of the global batch. Without shares all are alike."""

    def __init__(self, meshes: Meshes, shares: Sequence[Share] = (), graphs: Sequence[Graph] = ()):
        self.meshes, self.shares, self.rows = meshes, shares, Rows(graphs)
        # By stage, other stage and run: of the devices of the run's copy, where each gets what it reads.
        self._arriving: dict[tuple[int, int, int], list[tuple[Arrival, ...]]] = {}

    def in_parts(self, stage: int, other: int) -> bool:
        """Whether what crosses between the two goes in parts."""
        return bool(self.shares) and self.shares[stage] != self.shares[other]

    def arriving(self, device: int, stage: int, turn: int, other: int) -> tuple[Arrival, ...]:
        """Where a device has the samples of its turn from, as devices of the stage ``other`` have them."""
        place = self.meshes.place(device, stage)
        return self._of_run(stage, other, self.shares[stage].number(place.data, turn))[place.tensor]

    def leaving(self, device: int, stage: int, turn: int, other: int) -> list[tuple[int, Interval]]:
        """The devices of ``other`` that get samples of a device's turn from it, in the order of the samples."""
        own, theirs = self.shares[stage], self.shares[other]
        run = own.number(self.meshes.place(device, stage).data, turn)
        return [
            (reader, interval)
            for number, interval in overlaps(run, own.samples, theirs.samples)
            for reader, arrivals in zip(
                self.meshes.copy(other, number % theirs.dp), self._of_run(other, stage, number), strict=True
            )
            if Arrival(device, interval) in arrivals
        ]

    def _of_run(self, stage: int, other: int, run: int) -> list[tuple[Arrival, ...]]:
        key = (stage, other, run)
        if key not in self._arriving:
            own, theirs = self.shares[stage], self.shares[other]
            devices = self.meshes.copy(stage, run % own.dp)
            self._arriving[key] = run_arriving(
                run, own.samples, devices, theirs.samples, lambda i: self.meshes.copy(other, i % theirs.dp)
            )
        return self._arriving[key]


class Rows:
    """What one sample has of a tensor that crosses. ``graphs`` are by stage, of any numbers of samples."""

    def __init__(self, graphs: Sequence[Graph]):
        self.graphs = graphs
        self._tags: dict[int, Mapping[tuple[str, int], int]] = {}

    def of(self, stage: int, tensor: str) -> tuple[int, ...] | None:
        """The shape of one sample's part; None where all share it or dim 0 isn't known to be that of samples."""
        graph = self.graphs[stage]
        if tensor not in graph.sampled:
            return None
        if id(graph) not in self._tags:
            self._tags[id(graph)] = flow_tags(graph, ("batch",))["batch"]
        shape = graph.tensor[tensor].shape
        if self._tags[id(graph)].get((tensor, 0)) != 1 or shape[0] % graph.samples:
            return None
        return (shape[0] // graph.samples, *shape[1:])

    def part(self, whole: Transfer, samples: Interval) -> Transfer:
        """The message that has these samples of what crosses: all of it where it has no rows of samples."""
        maker = whole.target if whole.backwards else whole.source
        one, count = self.of(maker, whole.tensor), samples[1] - samples[0]
        if one is None:
            return replace(whole, samples=samples)
        size = whole.bytes // self.graphs[maker].samples * count
        return replace(whole, shape=(one[0] * count, *one[1:]), bytes=size, samples=samples)


def require_divisible(edge: Transfer, rows: Rows, shares: Sequence[Share]) -> None:
    """PlanError, by name, for a value that crosses between turns of unlike size and whose rows aren't samples.

    A value without samples, or with samples in another dim, would have to be added up or interleaved: it crosses
    between stages whose copies take the same number of samples in a turn, where each has all of it.
    """
    ends = (edge.source, edge.target)
    if shares[edge.source].samples == shares[edge.target].samples:
        return
    one = {rows.of(stage, edge.tensor) for stage in ends}
    if None in one or len(one) > 1:
        shapes = " and ".join(str(list(rows.graphs[stage].tensor[edge.tensor].shape)) for stage in ends)
        counts = " and ".join(str(shares[stage].samples) for stage in ends)
        raise PlanError(
            f'"{edge.tensor}" crosses from stage {edge.source} to stage {edge.target}, whose copies take {counts} '
            f"samples a turn, but its first dim isn't known to be that of samples (it is {shapes}): it can't be "
            "divided. Stages whose copies take equal numbers work, and so does another cut between them"
        )
