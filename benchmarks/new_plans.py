"""SuperScaler's new plans beside the best of the old grid, in simulation, on the paper's workloads.

Old: every dp × tp × pp with 1F1B. New: the library's plan on every mesh with its own numbers. Both with one or two
samples a micro-batch, with and without recomputation of all blocks, ZeRO 0, 1 or 2 over dp; of each the fastest that
fits. Stages of 1F1B are cut so that the slowest is as fast as memory lets it be; the old grid also into stages of equal
work, as systems did that had no model of memory. One set of assumptions:

    devices      V100 32 GB of which 2 GB are reserved; large products reach 69 of 125 TFLOP/s (the paper's best)
    links        NVLink 75 GB/s in a node of 8, InfiniBand 12.5 GB/s from each device to another node
    state        Adam in mixed precision, 16 bytes a parameter, and no buffers (the table of memory assumes more)
    attention    not fused, as on V100 then; for GPT-3 also fused, which keeps no scores

mBART is taken as a decoder alone (48 layers of width 6,144, 1,024 tokens, 500,000 words) on 32 devices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from math import inf
from typing import Any

import numpy as np
from machine import machine

from partita.cluster import Cluster, Kind, Link, parse_cluster
from partita.cost.alike import Alike, alike
from partita.cost.division import AttentionKernel
from partita.cost.known import BlockCosts
from partita.cost.precision import item_bytes
from partita.draft import Draft, PlanFunction, divide_state, drafted, op_order, recompute
from partita.errors import PlanError
from partita.graph import Graph
from partita.plan import Plan
from partita.plugins.capture_huggingface import capture_config
from partita.plugins.library.co_shard import co_shard
from partita.plugins.library.interlaced import interlaced
from partita.plugins.library.pipeline import staged
from partita.plugins.library.three_f_one_b import three_f_one_b
from partita.problem import Problem
from partita.recipes.swin.sizes import config as swin
from partita.simulate.costs import costs
from partita.simulate.engine import execute
from partita.simulate.fabric import Fabric
from partita.simulate.result import Simulation
from partita.simulate.stages import Stages
from partita.spacetime.lower import lower_to_time

RESERVE = 2 * 10**9
REACHED = 69 / 125


SIZES = (1, 2, 4, 8, 16, 32)
# How a plan's stages are cut; None where none fit.
Cutting = Callable[[Stages], Plan | None]


@dataclass(frozen=True)
class Workload:
    """A model on devices with a batch. ``new`` is the plan of the library, ``numbers`` what is tried with it."""

    name: str
    graph: Callable[[], Graph]
    devices: int
    batch: int
    attention: AttentionKernel
    plan: str
    new: PlanFunction
    numbers: Mapping[str, tuple[int, ...]]
    paper: str
    why: str
    grid: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: {"tp": SIZES, "pp": SIZES})


@dataclass(frozen=True)
class Found:
    """A plan that fits: what it is called, its step, the fullest device, and what the mean device does in the step."""

    words: str
    seconds: float
    gib: float
    told: str


def machines(devices: int) -> Cluster:
    """Nodes of up to 8 of the paper's devices."""
    found = parse_cluster(f"{max(1, devices // 8)}x{min(8, devices)}xv100-32gb")
    best = max(fraction for _, fraction in found.device.matmul_efficiency)
    curve = tuple((start, fraction * REACHED / best) for start, fraction in found.device.matmul_efficiency)
    device = replace(found.device, matmul_efficiency=curve, attention_efficiency=REACHED / 2, framework_bytes=RESERVE)
    near, far = Link(75e9, found.kind.intra_node.latency_seconds), Link(12.5e9, found.kind.inter_node.latency_seconds)
    return found.with_kinds(lambda _: Kind(device, near, far))


def gpt(seq: int, layers: int, width: int, heads: int, words: int = 50257) -> Graph:
    """A decoder without dropout, one sample."""
    config = {"model_type": "gpt2", "activation_function": "gelu_pytorch_tanh",
              "vocab_size": words, "n_positions": seq, "n_embd": width, "n_layer": layers,
              "n_head": heads, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}  # fmt: skip
    return capture_config(config, seq=seq, samples=1, dtype="float16")


def alphafold(name: str) -> Graph:
    """A size of the Evoformer stack, unrolled."""
    from partita.cli.model import load_model

    return load_model(name, None, "float16")


WORKLOADS = (
    *(
        Workload(
            f"GPT-3 6.7B, {seq:,} tokens, {attention}", lambda seq=seq: gpt(seq, 32, 4096, 32), 8, 32, attention,
            "co-shard", co_shard, {"tp": (1, 2, 4), "pp": (1, 2, 4, 8), "shards": (4, 8)}, "",
            "the grid's tensor parallelism stays inside a node, where its collectives take a few percent",
        )
        for attention, seq in (("unfused", 8192), ("unfused", 12288), ("fused", 12288))
    ),
    Workload(
        "Swin 27B", lambda: capture_config(swin("swin-56l"), samples=1, dtype="float16"), 32, 32, "unfused", "co-shard",
        co_shard, {"tp": (4, 8), "pp": (2, 4, 8), "shards": (4,), "blocks": (4,)}, "up to 3.5×",
        "stages of equal work fit only where layers are cut over two nodes, as the paper's do; with shards, or stages "
        "cut by memory, one node is enough",
    ),
    Workload(
        "mBART 25B", lambda: gpt(1024, 48, 6144, 64, 500_000), 32, 64, "unfused", "interlaced", interlaced,
        {"pp": (8, 16, 32)}, "about 1.6× (a prototype)",
        "the grid's tensor parallelism divides the words too; interlaced stages have layers undivided, so that their "
        "pipelines are longer",
    ),
    Workload(
        "AlphaFold2 48/256/128, 128 × 256", lambda: alphafold("alphafold2-48-256-128"), 4, 16, "unfused", "3F1B",
        three_f_one_b, {"pp": (4,)}, "1.4–1.7× (a prototype), and 3.52 s a sample on one device",
        "a sample fits on a device, so that copies alone have no pipeline to fill; the paper compares with dynamic "
        "axial parallelism, which the grid doesn't have", {"tp": (1,), "pp": (1,)},
    ),
)  # fmt: skip


def old(draft: Draft) -> None:
    """1F1B on any mesh; ``full`` recomputes every block, ``zero`` divides the optimizer over dp."""
    draft.argument("pp", 1)
    staged(draft)
    if draft.argument("full", 0, 0):
        recompute(draft, draft.blocks)
    divide_state(draft, draft.blocks, draft.argument("zero", 0, 0))
    op_order(draft, "1f1b")


def new(plan: PlanFunction) -> PlanFunction:
    """A plan of the library with ZeRO as an option, and with recomputation of all blocks or of none.

    Shards compute their inside again by themselves, so that a block with them needs no recomputation of its own.
    """

    def function(draft: Draft) -> None:
        plan(draft)
        again = "full" if draft.argument("full", 0, 0) else "none"
        for index, stage in enumerate(draft.stages):
            strategies = tuple(replace(strategy, recompute=again) for strategy in stage.strategies)
            draft.stages[index] = replace(stage, strategies=strategies)
        divide_state(draft, draft.blocks, draft.argument("zero", 0, 0))

    return function


def simulated(
    graph: Graph, groups: Alike, plan: Plan, cluster: Cluster, workload: Workload
) -> tuple[float, float, str]:
    """Seconds of a step, bytes of the fullest device, and what the mean device does."""
    priced = costs(graph, plan, cluster, groups, workload.attention)
    program = lower_to_time(graph, plan)
    step = Simulation(program, priced, execute(program, priced.seconds, priced.size_bytes, Fabric(cluster)))
    uses = list(step.use.values())
    parts = (
        ("computing", sum(use.compute_seconds for use in uses)),
        ("collectives", sum(use.collective_seconds for use in uses)),
        ("waiting", sum(use.waiting_seconds for use in uses)),
    )  # fmt: skip
    told = " + ".join(f"{name} {seconds / len(uses):.2f}" for name, seconds in parts)
    return step.step_seconds, max(peak.total for peak in step.peaks.values()), told


def numbers(of: Mapping[str, tuple[int, ...]], workload: Workload) -> Iterator[dict[str, int]]:
    """All choices, with the micro-batches of one and two samples that follow from the mesh."""
    for chosen in product(*of.values()):
        given = dict(zip(of, chosen, strict=True))
        tp, pp = given.get("tp", 1), given["pp"]
        if workload.devices % (tp * pp) or workload.batch % (workload.devices // (tp * pp)):
            continue
        dp = workload.devices // (tp * pp)
        for micro, full, zero in product((1, 2), (0, 1), (0, 1, 2) if dp > 1 else (0,)):
            if workload.batch % (dp * micro) == 0:
                yield {**given, "micro_batches": workload.batch // dp // micro, "full": full, "zero": zero}


def best(
    workload: Workload, graph: Graph, groups: Alike, function: PlanFunction, of: Any, choose: Cutting
) -> tuple[Found | None, int]:  # fmt: skip
    """The fastest plan that fits, and how many were simulated: the likeliest first, while any might be faster."""
    cluster = machines(workload.devices)
    problem = Problem(graph, cluster, workload.batch, precision="fp16", target="partita")
    priced, listed = BlockCosts(graph, groups, item_bytes(graph, problem.precision)), []
    for given in numbers(of, workload):
        try:
            plan = drafted(function, "", problem, given)
            plan = choose(Stages(graph, plan, cluster, groups, workload.attention, priced))
        except PlanError:
            continue
        if plan is not None:
            stages = Stages(graph, plan, cluster, groups, workload.attention, priced)
            listed.append((least_seconds(stages), len(listed), given, plan))
    found, tried = None, 0
    for seconds, _, given, plan in sorted(listed):
        if found and seconds >= found.seconds:
            break
        try:
            step, peak, told = simulated(graph, groups, plan, cluster, workload)
        except PlanError:
            continue
        tried += 1
        if peak <= cluster.device.memory_bytes and (found is None or step < found.seconds):
            words = ", ".join(f"{key}={value}" for key, value in given.items() if value)
            found = Found(words, step, peak / 2**30, told)
    return found, tried


def as_drafted(stages: Stages) -> Plan | None:
    """The plan with the library's stages, of equal work; None where one of them doesn't fit."""
    plan, limit = stages.plan, stages.cluster.device.memory_bytes
    for index in range(len(plan.stages)):
        one = stages.memory(index)
        flight = min(plan.order.micro_batches, len(plan.stages) - index) if plan.order.generator == "1f1b" else 1
        if one.total + (flight - 1) * one.activations > limit:
            return None
    return plan


def recut(stages: Stages) -> Plan | None:
    """The plan with the stages whose slowest is fastest among those that fit; None where none fit.

    Only 1F1B's are cut anew: what is on several devices, or several times on one, stays as the library has it.
    """
    plan, limit = stages.plan, stages.cluster.device.memory_bytes
    if plan.order.generator != "1f1b":
        return plan
    # A block may move to a stage that had no use for its axes of turns.
    axes = tuple(dict.fromkeys(axis for stage in plan.stages for axis in stage.other_axes))
    plan = replace(plan, stages=tuple(replace(stage, other_axes=axes) for stage in plan.stages))
    first, last = plan.stages[0], plan.stages[-1]
    pairs = [(b, s) for stage in plan.stages for b, s in zip(stage.blocks, stage.strategies, strict=True)]
    # Each block as a stage by itself; the last on the last stage's devices, for it may have copies of parameters.
    single = [
        replace(last if at == len(pairs) - 1 else first, blocks=(b,), strategies=(s,))
        for at, (b, s) in enumerate(pairs)
    ]
    alone = Stages(
        stages.graph, replace(plan, stages=tuple(single)), stages.cluster, stages.groups, stages.attention,
        stages.priced,
    )  # fmt: skip
    memory = [alone.memory(index) for index in range(len(single))]
    state = np.array([one.parameters + one.gradients + one.optimizer for one in memory])
    turns = [alone.turns(stage) for stage in single]
    # A block without gradient keeps nothing: its activations are there while it runs.
    kept = np.array([turn.backward > 0 for turn in turns])
    activations, temporary = (np.array([getattr(one, name) for one in memory]) for name in ("activations", "temporary"))
    held, temporary = np.where(kept, activations, 0), np.where(kept, temporary, activations)
    seconds = np.array([turn.forward + turn.backward for turn in turns])
    count = len(plan.stages)

    def slowest(stage: int, i: int, j: int) -> float:
        flight = min(plan.order.micro_batches, count - stage)
        need = state[i:j].sum() + held[i:j].sum() * flight + temporary[i:j].max() + memory[0].framework
        return float(seconds[i:j].sum()) if need <= limit else inf

    spans = least(len(pairs), count, slowest)
    if spans is None:
        return None
    cut = [
        replace(stage, blocks=tuple(b for b, _ in pairs[i:j]), strategies=tuple(s for _, s in pairs[i:j]))
        for stage, (i, j) in zip(plan.stages, spans, strict=True)
    ]
    return replace(plan, stages=tuple(cut))


def least(blocks: int, stages: int, cost: Callable[[int, int, int], float]) -> list[tuple[int, int]] | None:
    """The stages (first block, end) whose largest cost is least; None where it is infinite."""
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, (0,))}
    for s in range(stages):
        found: dict[int, tuple[float, tuple[int, ...]]] = {}
        for i, (largest, bounds) in best.items():
            for j in range(i + 1, blocks - (stages - s - 1) + 1) if s < stages - 1 else (blocks,):
                value = max(largest, cost(s, i, j))
                if value < found.get(j, (inf, ()))[0]:
                    found[j] = (value, (*bounds, j))
        best = found
    return list(pairwise(best[blocks][1])) if blocks in best else None


def least_seconds(stages: Stages) -> float:
    """About the least that a step can take: the busiest device's turns, and of 1F1B one way through the pipeline."""
    plan, count = stages.plan, stages.plan.order.micro_batches
    turns = [stages.turns(stage) for stage in plan.stages]
    seconds = 0.0
    for devices in {stage.devices for stage in plan.stages}:
        own = [i for i, stage in enumerate(plan.stages) if set(devices) <= set(stage.devices)]
        busy = sum(turns[i].forward + turns[i].backward for i in own)
        seconds = max(seconds, count * busy + sum(sum(stages.ending(plan.stages[i])) for i in own))
    if plan.order.generator == "1f1b":
        slowest = max(turn.forward + turn.backward for turn in turns)
        seconds = max(seconds, (count - 1) * slowest + sum(turn.forward + turn.backward for turn in turns))
    return seconds


def main() -> None:
    print(machine())
    print(__doc__)
    chosen = [w for w in WORKLOADS if not sys.argv[1:] or any(word in w.name for word in sys.argv[1:])]
    for workload in chosen:
        graph = workload.graph()
        groups = alike(graph)
        print(f"{workload.name}, {workload.devices} devices, batch {workload.batch}")
        rows: list[tuple[str, PlanFunction, Any, Cutting]] = [
            ("old, equal work", old, workload.grid, as_drafted), ("old", old, workload.grid, recut),
            (workload.plan, new(workload.new), workload.numbers, recut),
        ]  # fmt: skip
        results = []
        for name, function, of, choose in rows:
            found, tried = best(workload, graph, groups, function, of, choose)
            results.append(found)
            if found is None:
                print(f"    {name:15} nothing fits ({tried} simulated)", flush=True)
                continue
            print(
                f"    {name:15} {found.seconds:8.2f} s ({found.told}); {found.gib:.1f} GiB; {found.words} "
                f"({tried} simulated)", flush=True,
            )  # fmt: skip
        *before, after = results
        gains = [f"{found.seconds / after.seconds:.2f}×" if found and after else "-" for found in before]
        paper = f"; the paper: {workload.paper}" if workload.paper else ""
        print(
            f"    {gains[1]} the old grid's speed, {gains[0]} with stages of equal work{paper}: {workload.why}",
            flush=True,
        )


if __name__ == "__main__":
    main()
