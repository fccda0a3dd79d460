"""The prices of all variants of a family at once: ``cost.stage`` on arrays, [V, 1] of shapes by [V, kinds] of blocks.

What doesn't depend on the micro-batches (state, the end of a step) is found once a family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from partita.cluster.model import Cluster
from partita.cost.crossing import Crossing
from partita.cost.ending import update_seconds, update_start_seconds
from partita.cost.stage import (
    Computed,
    Ending,
    Group,
    Turn,
    held_bytes,
    state_bytes_of,
    temporary_bytes,
    turn,
    weight_seconds,
)
from partita.cost.state import StateBytes, state_bytes
from partita.planner.joint.kinds import BlockCut, Kinds
from partita.planner.joint.lent import lent_elements, owners, tied_blocks
from partita.planner.joint.places import Lies, Places
from partita.planner.joint.space import Family, Form, Option, selective_blocks
from partita.planner.joint.table import Prices


@dataclass(frozen=True)
class Side:
    """Blocks in one form: the cut of each variant's blocks, the devices of a copy that share its samples, constants by
    name [V, kinds]; [V, kinds] of what doesn't depend on the samples. ``state``: bytes of parameters, gradients and
    optimizer."""

    cuts: tuple[BlockCut, ...]
    parts: np.ndarray
    constants: Mapping[str, np.ndarray]
    gathered: np.ndarray
    scattered: np.ndarray
    state: tuple[np.ndarray, ...]
    sync: np.ndarray


class Ways:
    """The variants of one family; families that differ in ``tied`` alone share them."""

    def __init__(self, kinds: Kinds, crossing: Crossing, family: Family, places: Places, devices: int):
        self.kinds, self.crossing, self.family, self.devices = kinds, crossing, family, devices
        self.problem, self.cluster, self.places = kinds.problem, kinds.cluster, places
        self.per: StateBytes = state_bytes(self.problem.precision, self.problem.optimizer, 0, 1)
        self.shapes = [variant.shape for variant in places.variants]
        self.dp, self.tp, self.zero = (
            _column([getattr(s, name) for s in self.shapes]) for name in ("dp", "tp", "zero")
        )
        self.mixed = np.array([shape.mixed for shape in self.shapes])
        variants = places.variants
        self.on = [kinds.device(devices) for devices in places.devices]
        self.tensor = _group(self.cluster, self.tp, [variant.tensor for variant in variants], places)
        self.data = _group(self.cluster, self.dp, [variant.data for variant in variants], places)
        self.all = _group(self.cluster, self.dp * self.tp, [variant.all for variant in variants], places)
        self._sides: dict[tuple[Form, bool], Side] = {}
        self._prices: dict[int, Prices] = {}
        self._lent_of: dict[tuple[tuple[int, ...], int], tuple[np.ndarray, np.ndarray]] = {}

    def prices(self, micro_batches: int, tied: tuple[int, Form] | None) -> Prices:
        """The prices of a number of micro-batches. ``tied``: as of the family."""
        if micro_batches not in self._prices:
            self._prices[micro_batches] = self._all(micro_batches)
        found = self._prices[micro_batches]
        if tied is None:
            return found
        blocks = tied_blocks(self.problem.graph)[None, :, None]
        forms = np.array([option.form == tied[1] for option in self.family.options])
        odd = blocks & ((self.tp != tied[0])[:, :, None] | ~forms)
        if self.family.stages is None:
            # From ZeRO 2 on all stages that share must have as many copies: here they may differ.
            alone = self.dp * self.tp == self.family.unit * self.family.units
            odd = odd | (owners(self.problem.graph)[None, :, None] & ((self.zero >= 2) & ~alone)[:, :, None])
        where = tuple(v for v, shape in enumerate(self.shapes) if shape.tp == tied[0])
        lent_bytes, lent_sync = self._lent(where, tied[0] if tied[1] == "tensor" else 1)
        return replace(
            found, forward=np.where(odd, np.inf, found.forward), backward=np.where(odd, np.inf, found.backward),
            lent_bytes=lent_bytes, lent_sync=lent_sync,
        )  # fmt: skip

    def _all(self, micro_batches: int) -> Prices:
        samples = self.problem.global_batch // micro_batches
        divides = np.array([samples % shape.dp == 0 for shape in self.shapes])
        shape = (len(self.shapes), len(self.kinds.of), len(self.family.options))
        found = {name: np.empty(shape) for name in ("forward", "backward", "held", "temporary", "fixed", "sync")}
        for m, option in enumerate(self.family.options):
            for name, values in self._block(option, micro_batches).items():
                found[name][:, :, m] = values
            possible = divides & self.mixed if option.form == "batch" else divides
            possible = possible & np.array([shape.recompute in (None, option.recompute) for shape in self.shapes])
            if option.form == "batch":
                # Its devices divide a copy's samples.
                possible = possible & np.array([samples % s.devices == 0 for s in self.shapes])
            found["forward"][~possible, :, m] = found["backward"][~possible, :, m] = np.inf
            if option.recompute == "selective":
                none = ~selective_blocks(self.problem.graph)
                found["forward"][:, none, m] = found["backward"][:, none, m] = np.inf
        tps = {shape.tp for shape in self.shapes}
        # Of several the family says which: see ``prices``.
        lent_bytes, lent_sync = self._lent(tuple(range(len(self.shapes))) if len(tps) == 1 else (), min(tps))
        return Prices(
            forward=found["forward"], backward=found["backward"], fixed_bytes=found["fixed"],
            held_bytes=found["held"], temporary_bytes=found["temporary"], sync=found["sync"],
            **self._ends(samples), **self._changes(samples),
            base_bytes=np.array([float(self.kinds.devices[number].framework_bytes) for number in self.on]),
            base_sync=self.base_sync, lent_bytes=lent_bytes, lent_sync=lent_sync,
        )  # fmt: skip

    def turns(self, option: Option, micro_batches: int) -> Turn:
        """[V, kinds]: the turns of every kind of block with an option."""
        side, samples = self.side(option), self.problem.global_batch // micro_batches
        ratio = samples / self.dp / self.problem.graph.samples / side.parts
        forward, backward, repeated, _ = self._measured(side, samples)
        slow = self.slowdown(micro_batches)
        added = side.constants["accumulated"] if micro_batches > 1 else 0.0
        down = self.tensor.seconds(side.constants["down_rounds"], side.constants["down_bytes"] * ratio)
        up = self.tensor.seconds(side.constants["up_rounds"], side.constants["up_bytes"] * ratio)
        if option.form == "batch":
            down_count, down_bytes, up_count, up_bytes = self.kinds.shared
            down = down + self.tensor.seconds(2 * down_count, 2 * down_bytes)
            up = up + self.tensor.seconds(2 * up_count, 2 * up_bytes)
        computed = Computed(forward * slow, (backward + added) * slow, repeated * slow)
        trains, full = side.constants["trains"], option.recompute == "full"
        return turn(computed, down, up, side.gathered, side.scattered, trains, full)

    def _block(self, option: Option, micro_batches: int) -> dict[str, np.ndarray]:
        """[V, n] each: every block with an option."""
        of, full = self.kinds.of, option.recompute == "full"
        side, samples = self.side(option), self.problem.global_batch // micro_batches
        ratio = samples / self.dp / self.problem.graph.samples / side.parts
        made, trains, kept = (
            self.turns(option, micro_batches),
            side.constants["trains"],
            self._measured(side, samples)[3],
        )
        temporary = temporary_bytes(
            side.constants["temporary"] * ratio, kept, side.constants["running"] * ratio, side.constants["trained"],
            side.constants["frozen"], self.per.parameters, self.zero, trains, back=full,
        )  # fmt: skip
        entering = self.crossing.forward_bytes[:-1] * ratio
        return {
            "forward": made.forward[:, of], "backward": made.backward[:, of], "temporary": temporary[:, of],
            "held": held_bytes(kept[:, of], entering, trains[:, of], full), "sync": side.sync[:, of],
            "fixed": np.sum(side.state, axis=0)[:, of],
        }  # fmt: skip

    def slowdown(self, micro_batches: int) -> float:
        """How much longer computing takes where devices share cores; those that wait in the pipeline need none.

        Of all devices c / (c + S − 1) compute at a time; S is known where it matters.
        """
        stages = 1 if self.family.stages is None else self.family.stages
        return self.cluster.slowdown(self.devices * micro_batches / (micro_batches + stages - 1))

    def side(self, option: Option) -> Side:
        """Blocks in the form of an option."""
        selective = option.recompute == "selective"
        key = (option.form, selective)
        if key not in self._sides:
            self._sides[key] = self._side(option.form, selective)
        return self._sides[key]

    def _side(self, form: Form, selective: bool) -> Side:
        cuts = tuple(BlockCut(shape.tp if form == "tensor" else 1, selective) for shape in self.shapes)
        index, rows = _numbered(tuple(zip(cuts, self.on, strict=True)))
        each = [self.kinds.constants(*row) for row in rows]
        constants = {name: np.stack([found[name] for found in each])[index] for name in each[0]}
        trained, frozen, item = constants["trained"], constants["frozen"], self.per.parameters
        gathered, scattered = weight_seconds(trained, frozen, item, self.zero, self.data)
        asked, tensors = (self.problem.precision, self.problem.optimizer), constants["tensors"]
        by_device = [
            update_seconds(device, *asked, trained, tensors, self.zero, self.dp) for device in self.kinds.devices
        ]
        updated = np.stack(by_device)[self.on, np.arange(len(self.on))]
        ends = self.ending(form).seconds(trained * item, self.zero)
        return Side(
            cuts, np.ones_like(self.tp) if form == "tensor" else self.tp, constants, gathered, scattered,
            state=state_bytes_of(trained, frozen, self.per, self.zero, self.dp),
            sync=sum(ends) + updated * self.cluster.slowdown(self.devices),
        )  # fmt: skip

    def ending(self, form: Form) -> Ending:
        """The groups of a step's end: where the samples are divided along tensor, gradients are added up along it."""
        if form == "batch":
            return Ending(self.data, self.all, self.tensor)
        return Ending(self.data, self.data, Group(np.ones_like(self.dp), 0.0, 1.0))

    @cached_property
    def base_sync(self) -> np.ndarray:
        """[V]: what the end of a step takes however little there is to add up and to update; of both forms if mixed."""
        plain, divided = (
            np.sum(self.ending(form).seconds(0.0, self.zero, rounds=1), axis=0)[:, 0] for form in ("tensor", "batch")
        )
        starts = [update_start_seconds(device, self.problem.optimizer) for device in self.kinds.devices]
        start = np.array(starts)[self.on]
        return plain + np.where(self.mixed, divided, 0.0) + start * self.cluster.slowdown(self.devices)

    def _measured(self, side: Side, samples: int) -> np.ndarray:
        """[4, V, kinds]: see ``Kinds.measures``; zero where the devices don't divide a turn's samples."""
        divided = (self.dp * side.parts)[:, 0].astype(int).tolist()
        wanted = tuple(
            None if samples % parts else (cut, samples // parts, number)
            for cut, parts, number in zip(side.cuts, divided, self.on, strict=True)
        )
        index, rows = _numbered(wanted)
        none = np.zeros((4, len(self.kinds.first)))
        return np.stack([none if row is None else self.kinds.measures(*row) for row in rows], axis=1)[:, index]

    def _ends(self, samples: int) -> dict[str, np.ndarray]:
        """[V, n, M] each: where a stage's first or last block has pieces of a copy's samples, what stages hand each
        other is put together: values after the last block, their gradients before the first."""
        crossing, n = self.crossing, len(self.kinds.of)
        nothing = np.zeros((len(self.shapes), n, len(self.family.options)))
        batch = np.array([option.form == "batch" for option in self.family.options])
        if not batch.any():
            return dict.fromkeys(("enter_forward", "enter_backward", "leave_forward", "leave_backward"), nothing)
        ratio = samples / self.dp / self.problem.graph.samples
        enter = self.tensor.seconds(crossing.backward_values[:-1], crossing.backward_bytes[:-1] * ratio)
        leave = self.tensor.seconds(crossing.forward_values[1:], crossing.forward_bytes[1:] * ratio)
        return {
            "enter_forward": nothing, "enter_backward": enter[:, :, None] * batch,
            "leave_forward": leave[:, :, None] * batch, "leave_backward": nothing,
        }  # fmt: skip

    def _changes(self, samples: int) -> dict[str, np.ndarray]:
        """[V, n, M, M] each: values are put together before a block that needs them whole, their gradients after one
        that had them whole; into pieces each device takes its own."""
        options = self.family.options
        batch = np.array([option.form == "batch" for option in options])
        if not batch.any():
            nothing = np.zeros((len(self.shapes), len(self.kinds.of), len(options), len(options)))
            return {"change_forward": nothing, "change_backward": nothing}
        ratio = samples / self.dp / self.problem.graph.samples
        crossing = self.crossing
        whole = self.tensor.seconds(crossing.forward_values[:-1], crossing.forward_bytes[:-1] * ratio)
        gradient = self.tensor.seconds(crossing.backward_values[:-1], crossing.backward_bytes[:-1] * ratio)
        return {
            "change_forward": whole[:, :, None, None] * (batch[:, None] & ~batch[None, :]),
            "change_backward": gradient[:, :, None, None] * (~batch[:, None] & batch[None, :]),
        }

    def _lent(self, where: tuple[int, ...], parts: int) -> tuple[np.ndarray, np.ndarray]:
        """[V, n, n] each: bytes and seconds of what blocks use of parameters that an earlier stage owns, cut over
        ``parts`` devices; of the variants ``where``, the others have no such blocks."""
        if (where, parts) not in self._lent_of:
            graph, n = self.problem.graph, len(self.kinds.of)
            # Zeros that nobody writes cost nothing, and these are many.
            held, seconds = np.zeros((len(self.shapes), n, n)), np.zeros((len(self.shapes), n, n))
            if graph.shared_parameters:
                link = self.cluster.link(bool(self.places.crosses.any()))
                elements = lent_elements(graph, self.kinds.groups, parts)
                sent = elements * self.per.parameters
                each = 2 * ((sent > 0) * link.latency_seconds + sent / link.reached_bytes_per_second)
                held[list(where)] = elements.sum(axis=0) * (self.per.parameters + self.per.gradients)
                seconds[list(where)] = each.sum(axis=0)
            self._lent_of[where, parts] = held, seconds
        return self._lent_of[where, parts]


def _column(values: Sequence[float]) -> np.ndarray:
    return np.array(values, dtype=float)[:, None]


def _group(cluster: Cluster, size: np.ndarray, lying: Sequence[Lies], places: Places) -> Group:
    found = [
        cluster.link(lies.crosses, devices, lies.beside) for lies, devices in zip(lying, places.devices, strict=True)
    ]
    return Group(
        size, _column([link.latency_seconds for link in found]), _column([l.reached_bytes_per_second for l in found])
    )


def _numbered(values: Sequence) -> tuple[np.ndarray, list]:
    """The index of each value among those that differ, and these."""
    numbers: dict = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values]), list(numbers)
