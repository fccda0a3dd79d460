"""SuperScaler's new plans beside the best of the old grid, in simulation, on the paper's workloads.

Old: every dp × tp × pp with 1F1B. New: the library's plan on every mesh with its own numbers. Both with one or two
samples a micro-batch, with and without recomputation of all blocks, ZeRO 0, 1 or 2 over dp; of each the fastest that
fits, so that both are set up as well as they can be. One set of assumptions:

    devices      V100 32 GB of which 2 GB are reserved; large products reach 69 of 125 TFLOP/s (the paper's best)
    links        NVLink 75 GB/s in a node of 8, InfiniBand 12.5 GB/s from each device to another node
    state        Adam in mixed precision, 16 bytes a parameter
    attention    not fused, as on V100 then; for GPT-3 also fused, which keeps no scores

mBART is taken as a decoder alone (48 layers of width 6,144, 1,024 tokens, 500,000 words) on 32 devices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from machine import machine

from partita.cluster import Cluster, Link, parse_cluster
from partita.cost.alike import Alike, alike
from partita.cost.division import AttentionKernel
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
from partita.simulate.costs import Costs, costs
from partita.simulate.engine import execute
from partita.simulate.fabric import Fabric
from partita.simulate.result import Simulation
from partita.simulate.run import queues
from partita.simulate.stages import Stages

RESERVE = 2 * 10**9
REACHED = 69 / 125


SIZES = (1, 2, 4, 8, 16, 32)


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
    near, far = Link(75e9, found.intra_node.latency_seconds), Link(12.5e9, found.inter_node.latency_seconds)
    return replace(found, device=device, intra_node=near, inter_node=far)


def gpt(seq: int, layers: int, width: int, heads: int, words: int = 50257) -> Graph:
    """A decoder without dropout, one sample."""
    config = {"model_type": "gpt2", "vocab_size": words, "n_positions": seq, "n_embd": width, "n_layer": layers,
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
            "co-shard", co_shard, {"tp": (1, 2, 4), "pp": (1, 2, 4, 8), "shards": (4, 8)}, paper,
        )
        for attention, seq, paper in (("unfused", 8192, ""), ("unfused", 12288, ""), ("fused", 12288, ""))
    ),
    Workload(
        "Swin 27B", lambda: capture_config(swin("swin-56l"), samples=1, dtype="float16"), 32, 32, "unfused", "co-shard",
        co_shard, {"tp": (4, 8), "pp": (1, 2, 4, 8), "shards": (4, 8), "blocks": (4,)}, "up to 3.5×",
    ),
    Workload(
        "mBART 25B", lambda: gpt(1024, 48, 6144, 64, 500_000), 32, 64, "unfused", "interlaced", interlaced,
        {"pp": (8, 16, 32)}, "about 1.6× in a prototype",
    ),
    *(
        Workload(
            name, lambda name=name: alphafold(name), 4, 16, "unfused", "3F1B", three_f_one_b, {"pp": (4,)},
            "1.4–1.7× (a prototype)", {"tp": (1,), "pp": (1,)},
        )
        for name in ("alphafold2-48-256-128",)
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
    try:
        program = queues(graph, plan)
    except PlanError as error:
        if plan.order.generator != "3f1b":
            raise
        seconds, peak = by_formula(plan, priced)
        return seconds, peak, f"by the schedule's formula, for the plan isn't lowered: {error}"
    step = Simulation(program, priced, execute(program, priced.seconds, priced.size_bytes, Fabric(cluster)))
    uses = list(step.use.values())
    parts = (
        ("computing", sum(use.compute_seconds for use in uses)),
        ("collectives", sum(use.collective_seconds for use in uses)),
        ("waiting", sum(use.waiting_seconds for use in uses)),
    )  # fmt: skip
    told = " + ".join(f"{name} {seconds / len(uses):.2f}" for name, seconds in parts)
    return step.step_seconds, max(peak.total for peak in step.peaks.values()), told


def by_formula(plan: Plan, priced: Costs) -> tuple[float, float]:
    """3F1B's m·(P·F + B) + (p − 1)(F + B), with the slowest stage's F and B; the fullest device's bytes."""
    passes, m = plan.order.arguments["passes"], plan.order.micro_batches
    p = len(plan.stages) // passes
    last = range(len(plan.stages) - p, len(plan.stages))
    forward = max(priced.seconds[stage, "forward"] for stage in range(len(plan.stages)))
    backward = max(priced.seconds[stage, "backward"] for stage in last)
    end = max(priced.seconds[s, "reduce"] + priced.seconds[s, "update"] for s in range(len(plan.stages)))
    most = 0
    for lane in range(p):
        mine = [priced.memory[stage] for stage in range(lane, len(plan.stages), p)]
        state = sum(one.parameters + one.gradients + one.optimizer for one in mine) + mine[0].framework
        held = mine[-1].activations * min(m, p - lane) + max(one.activations for one in mine[:-1])
        most = max(most, state + held + mine[-1].temporary)
    return m * (passes * forward + backward) + (p - 1) * (forward + backward) + end, most


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


def best(workload: Workload, graph: Graph, groups: Alike, function: PlanFunction, of: Any) -> tuple[Found | None, int]:
    """The fastest plan that fits, and how many were simulated: the likeliest first, while any might be faster."""
    cluster = machines(workload.devices)
    problem = Problem(graph, cluster, workload.batch, precision="fp16", target="partita")
    made: dict[Any, Any] = {}
    listed = []
    for given in numbers(of, workload):
        try:
            plan = drafted(function, "", problem, given)
            seconds, size = bounds(Stages(graph, plan, cluster, groups, workload.attention, made))
        except PlanError:
            continue
        if size <= cluster.device.memory_bytes:
            listed.append((seconds, len(listed), given, plan))
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


def bounds(stages: Stages) -> tuple[float, float]:
    """About the least seconds: the busiest device's turns and the pipeline's way; the least bytes of a device at a time."""
    plan, count = stages.plan, stages.plan.order.micro_batches
    turns = [stages.turns(stage) for stage in plan.stages]
    memory = [stages.memory(index) for index in range(len(plan.stages))]
    through = sum(turn.forward + turn.backward for turn in turns)
    seconds = size = 0.0
    for devices in {stage.devices for stage in plan.stages}:
        own = [i for i, stage in enumerate(plan.stages) if set(devices) <= set(stage.devices)]
        busy = sum(turns[i].forward + turns[i].backward for i in own)
        ending = sum(sum(stages.ending(plan.stages[i])) for i in own)
        seconds = max(
            seconds, (count - 1) * busy + max(busy, through if plan.order.generator == "1f1b" else 0) + ending
        )
        held = [
            memory[i].activations * (min(count, len(plan.stages) - i) if plan.order.generator == "1f1b" else 1)
            for i in own
        ]
        state = sum(memory[i].parameters + memory[i].gradients + memory[i].optimizer for i in own)
        size = max(
            size, state + memory[0].framework + max(h + memory[i].temporary for h, i in zip(held, own, strict=True))
        )
    return seconds, size


def main() -> None:
    print(machine())
    print(__doc__)
    chosen = [w for w in WORKLOADS if not sys.argv[1:] or any(word in w.name for word in sys.argv[1:])]
    for workload in chosen:
        graph = workload.graph()
        groups = alike(graph)
        print(f"{workload.name}, {workload.devices} devices, batch {workload.batch}")
        rows = [("old grid", old, workload.grid), (workload.plan, new(workload.new), workload.numbers)]
        results = []
        for name, function, of in rows:
            found, tried = best(workload, graph, groups, function, of)
            results.append(found)
            if found is None:
                print(f"    {name:10} nothing fits ({tried} simulated)", flush=True)
                continue
            print(
                f"    {name:10} {found.seconds:8.2f} s ({found.told}); {found.gib:.1f} GiB; {found.words} "
                f"({tried} simulated)", flush=True,
            )  # fmt: skip
        first, second = results
        gain = f"{first.seconds / second.seconds:.2f}× the old grid's speed" if first and second else "no comparison"
        print(f"    {gain}" + (f"; the paper: {workload.paper}" if workload.paper else ""), flush=True)


if __name__ == "__main__":
    main()
