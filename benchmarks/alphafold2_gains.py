"""3F1B on AlphaFold2 at SuperScaler's sizes, in simulation, beside copies, 1F1B and dynamic axial parallelism (DAP).

AlphaFold2's own stack with the paper's three inputs, four samples on each of four devices. Each row is the fastest
that fits of its kind: one sample a micro-batch; recomputation of all blocks, and ZeRO 1 or 2, where a mesh doesn't
fit without.

    copies       every device has the whole model
    1F1B         pp stages of consecutive blocks of all passes, cut so that the slowest is as fast as memory lets it be:
                 what its turns alone take at least, without any transfer
    DAP          groups of devices share a sample as the library's ``context-parallel`` has it, at its best: computing
                 divided evenly, and the collectives that its program has, one after another
    3F1B         the library's, pp × copies

Devices are the paper's (``new_plans.py``): V100 32 GB, NVLink in a node of 8, InfiniBand between nodes. ``of perfect``
is the computing of all samples without recomputation, divided over all devices, as a part of the step.

SuperScaler publishes what DAP takes on 1, 2 and 4 devices for this stack. That is a smaller part of a perfect
division than DAP's at its best, as kernels that are divided get small. ``published DAP`` gives 3F1B's gain over it:
the part that 3F1B reaches here over the part that DAP reaches there. The paper doesn't say whether its DAP
recomputes; the first gain is for one that doesn't, the second for one that does, whose time on one device then has
the recomputation that 3F1B has here. (Its peak of 4.4 GB suggests so: without, a sample keeps 87 GB.) A prototype of
3F1B found 1.4–1.7× on small models and 1.0–1.2× on large ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, log2, prod

import torch
from machine import machine
from new_plans import least_seconds, machines, new, old, recut

from partita.cli.model import load_model
from partita.cluster import Cluster
from partita.cost.alike import Alike, alike
from partita.cost.known import BlockCosts
from partita.cost.precision import item_bytes
from partita.draft import PlanFunction, drafted
from partita.errors import PlanError
from partita.graph import Graph
from partita.plan import Plan
from partita.plugins.capture_torch import capture_module
from partita.plugins.library.context_parallel import context_parallel
from partita.plugins.library.three_f_one_b import three_f_one_b
from partita.problem import Problem
from partita.recipes.alphafold2.depth import EXPORTED
from partita.recipes.alphafold2.model import AlphaFold2, example
from partita.recipes.alphafold2.sizes import SIZES
from partita.simulate.costs import costs
from partita.simulate.engine import execute
from partita.simulate.fabric import Fabric
from partita.simulate.result import Simulation
from partita.simulate.stages import Stages
from partita.spacetime.lower import lower, lower_to_time

EACH = 4
SMALL = "alphafold2-48-256-128"
# Seconds of a sample with DAP on 1, 2 and 4 devices (SuperScaler, section 6).
PUBLISHED = {SMALL: (3.522, 2.430, 1.498), f"{SMALL}-512x256": (7.697, 4.663, 2.620),
             f"{SMALL}-512x384": (16.632, 9.378, 5.100)}  # fmt: skip
ROWS = dict.fromkeys(PUBLISHED, 4)


@dataclass(frozen=True)
class Found:
    """A plan that fits: its numbers, the seconds of a step, the fullest device."""

    words: str
    seconds: float
    gib: float


@dataclass(frozen=True)
class Model:
    """A size with the devices that it is planned for; ``priced``: the costs of its blocks, on any devices."""

    name: str
    graph: Graph
    groups: Alike
    cluster: Cluster
    priced: BlockCosts

    @property
    def problem(self) -> Problem:
        return Problem(self.graph, self.cluster, EACH * self.cluster.devices, precision="fp16", target="partita")

    def stages(self, plan: Plan) -> Stages:
        return Stages(self.graph, plan, self.cluster, self.groups, "unfused", self.priced)


def sizes(devices: int, least: int = 1) -> list[int]:
    return [2**power for power in range(int(log2(least)), int(log2(devices)) + 1)]


def listed(model: Model, function: PlanFunction, meshes: list[dict[str, int]]) -> Iterator[tuple[float, str, Plan]]:
    """Of each mesh what a step takes at least, and its plan: recomputation and ZeRO where it doesn't fit without."""
    devices, batch = model.cluster.devices, model.problem.global_batch
    for mesh in meshes:
        copies = devices // mesh["pp"]
        for full, zero in product((0, 1), (0, 1, 2) if copies > 1 else (0,)):
            given = {**mesh, "micro_batches": batch // copies, "full": full, "zero": zero}
            try:
                plan = recut(model.stages(drafted(function, "", model.problem, given)))
            except PlanError:
                break
            if plan is not None and fullest(model, plan) <= model.cluster.device.memory_bytes:
                yield least_seconds(model.stages(plan)), _words(given), plan
                break


def fullest(model: Model, plan: Plan) -> float:
    """About the bytes of the fullest device: a trained stage holds a micro-batch for each stage from it to the last."""
    stages, held = model.stages(plan), dict.fromkeys(range(model.cluster.devices), 0.0)
    ends: dict[tuple[int, ...], int] = {stage.devices: index for index, stage in enumerate(plan.stages)}
    for index, stage in enumerate(plan.stages):
        memory = stages.memory(index)
        trained = index == ends[stage.devices] and stages.turns(stage).backward > 0
        flight = min(stage.micro_batches, len(plan.stages) - index) if trained else 1
        for device in stage.devices:
            held[device] += memory.total + (flight - 1) * memory.activations
    return max(held.values())


def fastest(model: Model, function: PlanFunction, meshes: list[dict[str, int]]) -> Found | None:
    """The fastest in simulation, the likeliest first, while any might be faster."""
    found = None
    for bound, words, plan in sorted(listed(model, function, meshes), key=lambda row: row[:2]):
        if found and bound >= found.seconds:
            break
        step, peak = in_simulation(model, plan)
        if peak <= model.cluster.device.memory_bytes and (found is None or step < found.seconds):
            found = Found(words, step, peak / 2**30)
    return found


def in_simulation(model: Model, plan: Plan) -> tuple[float, float]:
    """Seconds of a step, bytes of the fullest device."""
    priced = costs(model.graph, plan, model.cluster, model.groups, "unfused")
    program = lower_to_time(model.graph, plan)
    step = Simulation(program, priced, execute(program, priced.seconds, priced.size_bytes, Fabric(model.cluster)))
    return step.step_seconds, max(peak.total for peak in step.peaks.values())


def bound(model: Model, meshes: list[dict[str, int]]) -> Found | None:
    """The pipeline whose bound is least; it isn't simulated. Of one stage the bound is the step itself."""
    best = min(listed(model, old, meshes), key=lambda row: row[:2], default=None)
    return best and Found(best[1], best[0], fullest(model, best[2]) / 2**30)


def dap(model: Model) -> Found | None:
    """Computing of a sample divided by cp, and the collectives of the plan's program; its memory as the plan has it."""
    devices, batch, found = model.cluster.devices, model.problem.global_batch, None
    for cp in sizes(min(8, devices), 2):
        dp = devices // cp
        for full, zero in product((0, 1), (0, 1, 2) if dp > 1 else (0,)):
            given = {"cp": cp, "micro_batches": batch // dp, "full": full, "zero": zero}
            memory = model.stages(drafted(new(context_parallel), "", model.problem, given)).memory(0).total
            if memory > model.cluster.device.memory_bytes:
                continue
            traffic = Traffic(model, cp)
            step = batch // dp * (alone(model, full) / cp + traffic.forward + traffic.backward + full * traffic.last)
            if found is None or step < found.seconds:
                found = Found(_words(given), step, memory / 2**30)
            break
    return found


def alone(model: Model, full: int) -> float:
    """Seconds of one sample's turns on a device by itself."""
    single = replace(model, cluster=machines(1))
    plan = drafted(old, "", replace(single.problem, global_batch=1), {"micro_batches": 1, "full": full})
    turns = single.stages(plan).turns(plan.stages[0])
    return turns.forward + turns.backward


class Traffic:
    """Seconds of a sample's collectives in DAP, from the program of three blocks a pass; those between are alike."""

    def __init__(self, model: Model, cp: int):
        size = SIZES[model.name]
        short = replace(size, blocks=EXPORTED)
        graph = capture_module(
            lambda: AlphaFold2(short), example(model.name)(1), name=model.name, dtype=torch.float16
        ).graph  # fmt: skip
        problem = Problem(graph, machines(cp), 1, precision="fp16", target="partita")
        program = lower(graph, drafted(context_parallel, "", problem, {"cp": cp, "micro_batches": 1}))
        self.link, self.group = problem.cluster.kind.intra_node, cp
        # Of all passes; of the last one backward, and forward once more where it is computed again.
        self.forward = self.backward = self.last = 0.0
        for segment in program.pieces[0].segments:
            times = size.blocks - EXPORTED + 1 if segment.block.endswith("evoformer.1") else 1
            for op in segment.ops:
                if op.form == "local":
                    continue
                seconds = times * self._seconds(op.form, 2 * prod(op.shapes[0]))
                self.forward += seconds
                if graph.tensor[segment.outputs[0]].gradient:
                    self.backward += seconds
                    self.last += seconds

    def _seconds(self, form: str, size: int) -> float:
        """A gather makes a whole of this size, an exchange moves what a device has of it; a sum goes both ways."""
        sent = (self.group - 1) / self.group * size * (2 if form in ("sum", "enter") else 1)
        return ceil(log2(self.group)) * self.link.latency_seconds + sent / self.link.reached_bytes_per_second


def _words(given: Mapping[str, int]) -> str:
    return ", ".join(f"{key}={value}" for key, value in given.items() if value)


def rows(model: Model) -> Iterator[tuple[str, Found | None]]:
    devices = model.cluster.devices
    yield "copies", bound(model, [{"pp": 1}])
    yield "1F1B", bound(model, [{"pp": pp} for pp in sizes(devices, 2)])
    yield "DAP", dap(model)
    yield "3F1B", fastest(model, new(three_f_one_b), [{"pp": pp} for pp in sizes(devices, 2)])


def main() -> None:
    print(machine())
    print(__doc__)
    for name, devices in ROWS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        graph = load_model(name, None, "float16")
        groups = alike(graph)
        model = Model(name, graph, groups, machines(devices), BlockCosts(graph, groups, item_bytes(graph, "fp16")))
        perfect = EACH * alone(model, 0)
        print(f"{name}, {devices} devices, {EACH * devices} samples", flush=True)
        found = dict(rows(model))
        ours = found["3F1B"]
        for kind, plan in found.items():
            if plan is None:
                print(f"    {kind:8} nothing fits", flush=True)
                continue
            gain = f"3F1B {plan.seconds / ours.seconds:4.2f}×" if ours else ""
            print(
                f"    {kind:8} {plan.seconds:8.2f} s  {perfect / plan.seconds:4.0%} of perfect  {gain}  "
                f"{plan.gib:5.1f} GiB  {plan.words}", flush=True,
            )  # fmt: skip
        if ours and name in PUBLISHED:
            one, two, four = PUBLISHED[name]
            of_perfect = one / four / 4
            part = perfect / ours.seconds / of_perfect
            again = EACH * alone(model, int("full=1" in ours.words)) / ours.seconds / of_perfect
            print(
                f"    published DAP: {one:.3f}, {two:.3f}, {four:.3f} s a sample on 1, 2, 4 devices, "
                f"{of_perfect:.0%} of perfect; 3F1B {part:.2f}×, {again:.2f}× if that recomputes", flush=True,
            )  # fmt: skip
        print()


if __name__ == "__main__":
    main()
