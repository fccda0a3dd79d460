"""The plan: stages, strategies, order, prediction and reasons, as JSON that is the same byte for byte each time.

``seconds`` of the search is a measurement: it stands in the envelope that the command line prints, never in the file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from math import lcm, prod
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter

from partita.errors import InputError
from partita.files import read_json, typed, write_text
from partita.schedules.turn import Argument, Turn

STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Axis:
    """An axis of a stage: along *space* the pieces of a cut dim lie on different devices, along *turns* they run one
    after another on the same device."""

    name: str
    size: int
    kind: Literal["space", "turns"]


@dataclass(frozen=True)
class Cut:
    """Dims of a block cut along axes of its stage, major first: ``batch`` or a class of dims (``graph.cuts``)."""

    __pydantic_config__ = STRICT

    dim: str
    axes: tuple[str, ...]


# What a block's backward pass computes again: nothing, attention's inside, or all of the block.
Recompute = Literal["none", "selective", "full"]

# The samples of a step: one micro-batch after another, and each over the copies.
BATCH_CUT = Cut("batch", ("micro", "data"))


@dataclass(frozen=True)
class Strategy:
    """How one block runs: which dims are cut, the ZeRO stage of its state, what the backward pass computes again.

    ``offload``: what the block keeps for its backward pass waits in the host's memory.
    """

    __pydantic_config__ = STRICT

    cuts: tuple[Cut, ...]
    zero: Literal[0, 1, 2, 3]
    recompute: Recompute
    offload: bool = False

    @property
    def rest(self) -> dict[str, tuple[str, ...]]:
        """The axes over which the block's state is divided between uses: what a ZeRO stage means."""
        return {
            state: ("data",) if self.zero >= stage else ()
            for stage, state in ((3, "parameter"), (2, "gradient"), (1, "optimizer"))
        }

    def cut_axes(self, dim: str) -> tuple[str, ...]:
        """The axes that the dim is cut along."""
        return next((cut.axes for cut in self.cuts if cut.dim == dim), ())

    def cut_along(self, axis: str) -> frozenset[str]:
        """The dims that are cut along the axis."""
        return frozenset(cut.dim for cut in self.cuts if axis in cut.axes)


@dataclass(frozen=True)
class Stage:
    """Blocks in order and the devices that hold them, row-major over the space axes; without others
    ``devices[d * tp + t]``.

    ``samples`` is what one turn takes over all dp replicas: samples × micro_batches = global batch. ``other_axes`` are
    those beyond data, tensor and micro: of space between data and tensor (context, expert), of turns inside a block
    (co-shard).
    """

    __pydantic_config__ = STRICT

    name: str
    blocks: tuple[str, ...]
    devices: tuple[int, ...]
    dp: int
    tp: int
    samples: int
    micro_batches: int
    strategies: tuple[Strategy, ...]
    other_axes: tuple[Axis, ...] = ()

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The stage's mesh, as its devices are listed (``data`` major), and its turns."""
        return (
            Axis("data", self.dp, "space"),
            *self.inner,
            Axis("micro", self.micro_batches, "turns"),
            *(axis for axis in self.other_axes if axis.kind == "turns"),
        )

    @property
    def inner(self) -> tuple[Axis, ...]:
        """The space axes inside one data-parallel copy, major first; ``tensor`` is the last."""
        return (*(axis for axis in self.other_axes if axis.kind == "space"), Axis("tensor", self.tp, "space"))

    @property
    def width(self) -> int:
        """How many devices hold one data-parallel copy."""
        return prod(axis.size for axis in self.inner)


def _said(value: Argument) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True)
class Order:
    """A named generator of schedules with its arguments; or, named ``turns``, every device's turns themselves.

    ``micro_batches`` are those of each stage; where stages have unlike numbers, the most of any.
    """

    __pydantic_config__ = STRICT

    generator: str
    stages: int
    micro_batches: int
    arguments: dict[str, Argument] = field(default_factory=dict)
    turns: dict[int, tuple[Turn, ...]] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The schedule with its arguments, but for those that are 0."""
        said = [f"{name}={_said(value)}" for name, value in self.arguments.items() if value]
        return " ".join([self.generator, *said])


@dataclass(frozen=True)
class SharedParameter:
    """A parameter that several blocks use. ``owner`` is the stage that updates it, ``stages`` all that hold it.

    ``gradient_bytes``: what each of the other stages sends the owner once a step, and gets back as weights.
    """

    __pydantic_config__ = STRICT

    parameter: str
    owner: int
    stages: tuple[int, ...]
    gradient_bytes: int


@dataclass(frozen=True)
class MemoryBytes:
    """Bytes on each device of a stage at the peak. ``activations``: of all micro-batches in flight."""

    __pydantic_config__ = STRICT

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    temporary: int
    framework: int

    @property
    def total(self) -> int:
        return sum(self.items().values())

    def items(self) -> dict[str, int]:
        """The items by name."""
        return dict(vars(self))


@dataclass(frozen=True)
class StageCost:
    """One stage: seconds of one micro-batch, of the transfer after it, of the end of the step; memory."""

    __pydantic_config__ = STRICT

    name: str
    forward_seconds: float
    backward_seconds: float
    transfer_forward_seconds: float
    transfer_backward_seconds: float
    sync_seconds: float
    in_flight: int
    memory: MemoryBytes


@dataclass(frozen=True)
class Breakdown:
    """Where a step's seconds go on the busiest stage (they add up to the step), and every stage's own numbers.

    ``waiting_seconds``: the pipeline fills, drains and waits for transfers. ``sync_seconds``: gradients over dp,
    tied weights and the update.
    """

    __pydantic_config__ = STRICT

    formula: str
    compute_seconds: float
    recompute_seconds: float
    collective_seconds: float
    waiting_seconds: float
    sync_seconds: float
    stages: tuple[StageCost, ...]


def rounded(value: float) -> float:
    """Nine significant digits: what machines agree on whatever the order of their sums."""
    return float(f"{value:.9g}")


@dataclass(frozen=True)
class Prediction:
    """What the cost model expects of one training step. ``peak_bytes`` by device id."""

    __pydantic_config__ = STRICT

    step_seconds: float
    samples_per_second: float
    peak_bytes: dict[int, int]
    bubble_fraction: float
    breakdown: Breakdown


# Of a plan that nobody has predicted yet.
UNPREDICTED = Prediction(0.0, 0.0, {}, 0.0, Breakdown("", 0.0, 0.0, 0.0, 0.0, 0.0, ()))
# The formula of a prediction that no formula made: a simulation of the plan's queues.
SIMULATED = "simulated"


@dataclass(frozen=True)
class Search:
    """How the plan was found: ``optimal`` under the stated formula, or the best until interrupted.

    Under that formula no plan takes less than ``bound_seconds``. ``considered``: families of shapes × numbers of
    micro-batches × schedules, of which bounds alone ruled out ``pruned``.
    """

    __pydantic_config__ = STRICT

    engine: str
    optimal: bool
    bound_seconds: float
    considered: int
    pruned: int = 0


@dataclass(frozen=True)
class Profile:
    """What a plan was priced with beside its cluster's figures: the file or folder of a measured profile, and the
    SHA-256 of what is in it."""

    __pydantic_config__ = STRICT

    path: str
    sha256: str


@dataclass(frozen=True)
class Plan:
    """The artefact. ``problem`` is the digest of the question that it answers; without a ``profile`` the cluster's own
    figures priced it."""

    __pydantic_config__ = STRICT

    model: str
    problem: str
    cluster: str
    target: str
    precision: str
    optimizer: str
    seq: int | None
    global_batch: int
    schedule: str
    order: Order
    stages: tuple[Stage, ...]
    shared_parameters: tuple[SharedParameter, ...]
    predicted: Prediction
    reasons: tuple[str, ...]
    search: Search
    idle_devices: tuple[int, ...] = field(default=())
    profile: Profile | None = None
    version: Literal[1] = 1

    @property
    def sample_parts(self) -> int:
        """Into how many parts axes inside a copy cut its samples (expert parallelism): a graph must have a multiple."""
        return lcm(
            *(
                prod(axis.size for axis in stage.inner if axis.name in cut.axes)
                for stage in self.stages
                for strategy in stage.strategies
                for cut in strategy.cuts
                if cut.dim == "batch"
            )
        )

    @property
    def devices(self) -> tuple[int, ...]:
        """All devices, each once, in the order of ranks: stage after stage."""
        return tuple(dict.fromkeys(device for stage in self.stages for device in stage.devices))


@cache
def _adapter() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values."""
    document: dict[str, Any] = _adapter().dump_python(plan, mode="json")
    return {"version": document.pop("version"), **document}


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan; the file appears whole or not at all."""
    write_text(path, json.dumps(plan_document(plan), indent=1, ensure_ascii=False) + "\n")


def load_plan(path: str | Path) -> Plan:
    """Read a plan that ``save_plan`` wrote; InputError names the file, the field and what is wrong with it."""
    value = read_json(path)
    if isinstance(value, dict) and {"format", "graph", "stages"} <= value.keys():
        raise InputError(
            f'{path}: a plan of the nodes of "{value["graph"]}", a {value["format"]} profile, which says nothing of '
            "tensors; plans of models can be explained, simulated and run"
        )
    return check_plan(typed(path, value, _adapter()), str(path))


def check_plan(plan: Plan, where: str) -> Plan:
    """The plan itself, if its counts close; otherwise InputError with the numbers."""
    for stage in plan.stages:
        if len(stage.devices) != stage.dp * stage.width:
            sizes = " times ".join(f"{axis.name}={axis.size}" for axis in stage.inner)
            raise InputError(
                f'{where}: stage "{stage.name}" has {len(stage.devices)} devices, but dp={stage.dp} times {sizes}'
            )
        if len(set(stage.devices)) < len(stage.devices):
            twice = next(device for device in stage.devices if stage.devices.count(device) > 1)
            raise InputError(f'{where}: device {twice} stands in stage "{stage.name}" twice')
        if stage.samples * stage.micro_batches != plan.global_batch:
            raise InputError(
                f'{where}: stage "{stage.name}" takes {stage.samples} samples in {stage.micro_batches} micro-batches, '
                f"which is not the global batch {plan.global_batch}"
            )
        if len(stage.strategies) != len(stage.blocks) or not stage.blocks:
            raise InputError(
                f'{where}: stage "{stage.name}" has {len(stage.blocks)} blocks and {len(stage.strategies)} strategies'
            )
        axes = [axis.name for axis in stage.axes]
        if twice_named := [name for name in axes if axes.count(name) > 1]:
            raise InputError(f'{where}: stage "{stage.name}" has two axes "{twice_named[0]}"')
        for block, strategy in zip(stage.blocks, stage.strategies, strict=True):
            odd = [axis for cut in strategy.cuts for axis in cut.axes if axis not in axes]
            if strategy.offload and strategy.recompute != "none":
                raise InputError(
                    f'{where}: block "{block}" is computed again and offloaded; what is computed again isn\'t kept, so '
                    "leave out one"
                )
            wrong = [(c.dim, a) for c in strategy.cuts for a in c.axes if a in ("data", "micro") and c.dim != "batch"]
            if wrong:
                raise InputError(
                    f'{where}: block "{block}" has its "{wrong[0][0]}" cut along "{wrong[0][1]}", which divides the '
                    "batch alone; another axis works"
                )
            if odd:
                raise InputError(f'{where}: block "{block}" is cut along "{odd[0]}"; a stage has {", ".join(axes)}')
    return plan
