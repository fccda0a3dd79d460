"""The prices of all variants of a family at once: ``cost.stage`` on arrays, [V, 1] of shapes by [V, kinds] of blocks.

What doesn't depend on the micro-batches (state, the end of a step) is found once a family.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from math import prod
from typing import TypeAlias

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
from partita.planner.joint.manner import DIVIDED, PLAIN, Manner
from partita.planner.joint.places import Lies, Places
from partita.planner.joint.space import Family, Form, Option, selective_blocks
from partita.planner.joint.table import Prices


@dataclass(frozen=True)
class Side:
    """Blocks with one option: the cut of each variant's blocks; ``index``: [V], numbers of the variants that differ in
    it or in their device; ``divided``: [V], into how many parts the samples of a turn are. [V, kinds]: whether it is
    ``possible``, constants by name, and what doesn't depend on the samples. ``state``: bytes of parameters, gradients
    and optimizer."""

    cuts: tuple[BlockCut, ...]
    index: np.ndarray
    divided: np.ndarray
    possible: np.ndarray
    constants: Mapping[str, np.ndarray]
    gathered: np.ndarray
    scattered: np.ndarray
    state: tuple[np.ndarray, ...]
    sync: np.ndarray


# What of an option says how blocks run: the rest only says what of it comes again.
Key: TypeAlias = tuple[Form, Manner | None, bool]

# Of ``Kinds.constants``, along each axis inside a copy.
ALONG = (
    "down_rounds", "down_bytes", "up_rounds", "up_bytes", "down_shared", "down_shared_bytes", "up_shared",
    "up_shared_bytes", "trained",
)  # fmt: skip


class Ways:
    """The variants of one family; families that differ in ``tied`` alone share them.

    Memory is held against the limit of the problem's largest device: what a smaller one lacks is as if it were taken
    there before anything else (``base_bytes``).
    """

    def __init__(self, kinds: Kinds, crossing: Crossing, family: Family, places: Places, devices: int):
        self.kinds, self.crossing, self.family, self.devices = kinds, crossing, family, devices
        self.problem, self.cluster, self.places = kinds.problem, kinds.cluster, places
        self.per: StateBytes = state_bytes(self.problem.precision, self.problem.optimizer, 0, 1)
        self.shapes = [variant.shape for variant in places.variants]
        self.dp, self.tp, self.zero = (
            _column([getattr(s, name) for s in self.shapes]) for name in ("dp", "tp", "zero")
        )
        self.mixed = np.array([shape.mixed for shape in self.shapes])
        self.on = [kinds.device(devices) for devices in places.devices]
        self.inner = tuple(dict.fromkeys(name for shape in self.shapes for name, _ in shape.axes[1:]))
        self._groups: dict[frozenset[str], Group] = {}
        self.data = self.group(frozenset(("data",)))
        self._alike: dict[Key, Side] = {}
        self._measures: dict[tuple[Key, int], np.ndarray] = {}
        self._sides: dict[Option, Side] = {}
        largest, limits = self.problem.largest_memory_limit, map(self.problem.memory_limit_of, places.devices)
        taken = [self.framework_bytes(v) + largest - limit for v, limit in enumerate(limits)]
        self.base_bytes = np.array(taken, dtype=float)
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
        odd = odd | (blocks & ~self._plainly_shared)
        if self.family.stages is None or len({shape.dp for shape in self.shapes if shape.tp == tied[0]}) > 1:
            # From ZeRO 2 on all stages that share must have as many copies: here they may differ.
            devices = _column([shape.devices for shape in self.shapes])
            alone = devices == self.family.unit * self.family.units
            odd = odd | (owners(self.problem.graph)[None, :, None] & ((self.zero >= 2) & ~alone)[:, :, None])
        where = tuple(v for v, shape in enumerate(self.shapes) if shape.tp == tied[0])
        lent_bytes, lent_sync = self._lent(where, tied[0] if tied[1] == "tensor" else 1)
        return replace(
            found, forward=np.where(odd, np.inf, found.forward), backward=np.where(odd, np.inf, found.backward),
            lent_bytes=lent_bytes, lent_sync=lent_sync,
        )  # fmt: skip

    @cached_property
    def _plainly_shared(self) -> np.ndarray:
        """[V, n, M]: whether a block's shared parameters lie in the pieces that plain blocks have."""
        of, options = self.kinds.of, self.family.options
        found = np.ones((len(self.shapes), len(of), len(options)), dtype=bool)
        for m, option in enumerate(options):
            side = self.side(option)
            for v, (shape, cut) in enumerate(zip(self.shapes, side.cuts, strict=True)):
                if cut.manner is not PLAIN and cut.manner is not DIVIDED:
                    found[v, :, m] = self.kinds.shared_alike(cut, BlockCut(shape.tp))[of]
        return found

    def group(self, axes: frozenset[str]) -> Group:
        """The devices of each variant that differ along some axes alone, those that it has."""
        if axes not in self._groups:
            sizes = _column([prod(size for name, size in shape.axes if name in axes) for shape in self.shapes])
            lying = [variant.along(axes) for variant in self.places.variants]
            self._groups[axes] = _group(self.cluster, sizes, lying, self.places)
        return self._groups[axes]

    def _all(self, micro_batches: int) -> Prices:
        samples = self.problem.global_batch // micro_batches
        shape = (len(self.shapes), len(self.kinds.of), len(self.family.options))
        found = {name: np.empty(shape) for name in ("forward", "backward", "held", "temporary", "fixed", "sync")}
        for m, option in enumerate(self.family.options):
            for name, values in self._block(option, micro_batches).items():
                found[name][:, :, m] = values
            side = self.side(option)
            possible = (side.possible & (samples % side.divided == 0)[:, None])[:, self.kinds.of]
            found["forward"][~possible, m] = found["backward"][~possible, m] = np.inf
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
            base_bytes=self.base_bytes, base_sync=self.base_sync, lent_bytes=lent_bytes, lent_sync=lent_sync,
        )  # fmt: skip

    def framework_bytes(self, variant: int) -> int:
        """What is taken on a variant's devices before any tensor exists."""
        return self.kinds.devices[self.on[variant]].framework_bytes

    def turns(self, option: Option, micro_batches: int) -> Turn:
        """[V, kinds]: the turns of every kind of block with an option."""
        side, samples = self.side(option), self.problem.global_batch // micro_batches
        ratio = samples / self.dp / self.problem.graph.samples / side.constants["parts"]
        forward, backward, repeated, _ = self._measured(option, samples)
        slow = self.slowdown(micro_batches)
        added = side.constants["accumulated"] if micro_batches > 1 else 0.0
        down = up = 0.0
        for axis in self.inner:
            group, of = self.group(frozenset((axis,))), side.constants
            down = down + group.seconds(of[f"down_rounds of {axis}"], of[f"down_bytes of {axis}"] * ratio)
            up = up + group.seconds(of[f"up_rounds of {axis}"], of[f"up_bytes of {axis}"] * ratio)
            if of[f"down_shared of {axis}"].any() or of[f"up_shared of {axis}"].any():
                # Whatever the samples.
                down = down + group.seconds(of[f"down_shared of {axis}"], of[f"down_shared_bytes of {axis}"])
                up = up + group.seconds(of[f"up_shared of {axis}"], of[f"up_shared_bytes of {axis}"])
        computed = Computed(forward * slow, (backward + added) * slow, repeated * slow)
        trains, full = side.constants["trains"], option.recompute == "full"
        return turn(computed, down, up, side.gathered, side.scattered, trains, full)

    def _block(self, option: Option, micro_batches: int) -> dict[str, np.ndarray]:
        """[V, n] each: every block with an option."""
        of, full = self.kinds.of, option.recompute == "full"
        side, samples = self.side(option), self.problem.global_batch // micro_batches
        ratio = samples / self.dp / self.problem.graph.samples / side.constants["parts"]
        made, trains, kept = (
            self.turns(option, micro_batches),
            side.constants["trains"],
            self._measured(option, samples)[3],
        )
        temporary = temporary_bytes(
            side.constants["temporary"] * ratio, kept, side.constants["running"] * ratio, side.constants["trained"],
            side.constants["frozen"], self.per.parameters, self.zero, trains, back=full,
        )  # fmt: skip
        entering = self.crossing.entering.of((ratio / side.constants["pieces"])[:, of])
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
        """Blocks with an option; what a backward pass computes again but attention's inside changes nothing here."""
        if option not in self._sides:
            key = _key(option)
            if key not in self._alike:
                self._alike[key] = self._side(option, key[2])
            found, goes = self._alike[key], np.array([option.goes(shape) for shape in self.shapes])
            self._sides[option] = replace(found, possible=found.possible & goes[:, None])
        return self._sides[option]

    def _side(self, option: Option, selective: bool) -> Side:
        cuts = tuple(BlockCut(shape.tp, selective, option.run(shape)) for shape in self.shapes)
        index, rows = _numbered(tuple(zip(cuts, self.on, strict=True)))
        each = [self.kinds.constants(*row) for row in rows]
        nothing = np.zeros(len(self.kinds.first))
        names = [*each[0], *(f"{name} of {axis}" for axis in self.inner for name in ALONG)]
        constants = {name: np.stack([found.get(name, nothing) for found in each])[index] for name in names}
        trained, frozen, item = constants["trained"], constants["frozen"], self.per.parameters
        gathered, scattered = weight_seconds(trained, frozen, item, self.zero, self.data)
        asked, tensors = (self.problem.precision, self.problem.optimizer), constants["tensors"]
        by_device = [
            update_seconds(device, *asked, trained, tensors, self.zero, self.dp) for device in self.kinds.devices
        ]
        updated = np.stack(by_device)[self.on, np.arange(len(self.on))]
        ends = sum(
            np.where(here, np.sum(self.ending(axes).seconds(elements * item, self.zero), axis=0), 0.0)
            for axes, here, elements in self._summed(cuts, constants)
        )
        return Side(
            cuts, index, self.dp[:, 0].astype(int) * [cut.manner.parts(cut.tp) for cut in cuts],
            constants["offered"].astype(bool), constants, gathered, scattered,
            state=state_bytes_of(trained, frozen, self.per, self.zero, self.dp),
            sync=ends + updated * self.cluster.slowdown(self.devices),
        )  # fmt: skip

    def _summed(
        self, cuts: Sequence[BlockCut], constants: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[frozenset[str], np.ndarray, np.ndarray]]:
        """The axes inside a copy along which gradients are added up, of which variants [V, 1], and how many elements of
        each block [V, kinds]. Parameters in pieces along one of the axes that divide samples or tokens are not added up
        along that one."""
        flows = [cut.manner.flows(cut.tp) for cut in cuts]
        for wide in dict.fromkeys(flows):
            here = np.array([found == wide for found in flows])[:, None]
            rest = constants["trained"]
            for axis in sorted(wide):
                own = constants[f"trained of {axis}"]
                if (own * here).any():
                    rest = rest - own
                    yield wide - {axis}, here, own
            yield wide, here, rest

    def ending(self, axes: frozenset[str]) -> Ending:
        """The groups of a step's end, for gradients that are added up along axes inside a copy too."""
        return Ending(self.data, self.group(axes | {"data"}), self.group(axes))

    def paid(self) -> Iterator[tuple[frozenset[str], np.ndarray]]:
        """The axes inside a copy along which gradients are added up, and which variants [V, 1] pay latency for that."""
        for option, applies in ((Option(), np.ones_like(self.mixed)), (Option(form="batch"), self.mixed)):
            side = self.side(option)
            for axes, here, elements in self._summed(side.cuts, side.constants):
                yield axes, here & applies[:, None] & (elements > 0).any(axis=1, keepdims=True)

    @cached_property
    def base_sync(self) -> np.ndarray:
        """[V]: what the end of a step takes however little there is to add up and to update; of both forms if mixed."""
        total = np.zeros_like(self.dp)
        for axes, paid in self.paid():
            latency = np.sum(self.ending(axes).seconds(0.0, self.zero, rounds=1), axis=0)
            total = total + np.where(paid, latency, 0.0)
        starts = [update_start_seconds(device, self.problem.optimizer) for device in self.kinds.devices]
        start = np.array(starts)[self.on]
        return total[:, 0] + start * self.cluster.slowdown(self.devices)

    def _measured(self, option: Option, samples: int) -> np.ndarray:
        """[4, V, kinds]: see ``Kinds.measures``; zero where the devices don't divide a turn's samples."""
        key = _key(option), samples
        if key not in self._measures:
            self._measures[key] = self._measure(self.side(option), samples)
        return self._measures[key]

    def _measure(self, side: Side, samples: int) -> np.ndarray:
        copies, divided = self.dp[:, 0].astype(int).tolist(), side.divided.tolist()
        wanted = tuple(
            None if samples % parts else (at, samples // dp)
            for dp, parts, at in zip(copies, divided, side.index.tolist(), strict=True)
        )
        index, rows = _numbered(wanted)
        none = np.zeros((4, len(self.kinds.first)))
        first = {at: v for v, at in reversed(list(enumerate(side.index.tolist())))}
        each = [
            none if row is None else self.kinds.measures(side.cuts[first[row[0]]], row[1], self.on[first[row[0]]])
            for row in rows
        ]
        return np.stack(each, axis=1)[:, index]

    @cached_property
    def _flows(self) -> tuple[list[frozenset[str]], np.ndarray]:
        """The sets of axes inside a copy that divide samples or tokens, and [V, M], which a block has."""
        options = self.family.options
        found = [option.run(shape).flows(shape.tp) for shape in self.shapes for option in options]
        index, sets = _numbered(found)
        return sets, index.reshape(len(self.shapes), len(options))

    def _ends(self, samples: int) -> dict[str, np.ndarray]:
        """[V, n, M] each: where a stage's first or last block has pieces of a copy's samples or tokens, what stages
        hand each other is put together: values after the last block, their gradients before the first."""
        crossing, (sets, which) = self.crossing, self._flows
        nothing = np.zeros((len(self.shapes), len(self.kinds.of), len(self.family.options)))
        ratio = samples / self.dp / self.problem.graph.samples
        enter = leave = nothing
        for number, axes in enumerate(sets):
            if axes:
                group, here = self.group(axes), (which == number)[:, None, :]
                back = group.seconds(crossing.backward_values[:-1], crossing.backward[:-1].of(ratio))
                on = group.seconds(crossing.forward_values[1:], crossing.forward[1:].of(ratio))
                enter, leave = enter + back[:, :, None] * here, leave + on[:, :, None] * here
        return {
            "enter_forward": nothing, "enter_backward": enter, "leave_forward": leave, "leave_backward": nothing,
        }  # fmt: skip

    def _changes(self, samples: int) -> dict[str, np.ndarray]:
        """[V, n, M, M] each: values are put together before a block that needs them whole, their gradients after one
        that had them whole; into pieces each device takes its own."""
        crossing, (sets, which), count = self.crossing, self._flows, len(self.family.options)
        nothing = np.zeros((len(self.shapes), len(self.kinds.of), count, count))
        ratio = samples / self.dp / self.problem.graph.samples
        found = {"change_forward": nothing, "change_backward": nothing}
        for (a, before), (b, after) in permutations(enumerate(sets), 2):
            here = (which == a)[:, :, None] & (which == b)[:, None, :]
            if not here.any():
                continue
            for name, pieces, needed, values, size in (
                ("change_forward", before, after, crossing.forward_values, crossing.forward),
                ("change_backward", after, before, crossing.backward_values, crossing.backward),
            ):
                if axes := pieces - needed:
                    seconds = self.group(axes).seconds(
                        values[:-1], size[:-1].of(ratio) / self.group(pieces & needed).size
                    )
                    found[name] = found[name] + seconds[:, :, None, None] * here[:, None]
        return found

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


def _key(option: Option) -> Key:
    return option.form, option.manner, option.recompute == "selective"


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
