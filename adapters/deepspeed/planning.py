"""The plan for a job: what the key and the user's own settings hold stays, the rest is the planner's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, product

from partita.adapters.deepspeed.request import Request
from partita.cluster import Cluster, parse_cluster
from partita.errors import Infeasible, InputError, PartitaError, PlanError, divisors, listed
from partita.graph import Graph
from partita.hooks import planned
from partita.key import KEY, Key
from partita.plan import Plan, load_plan
from partita.problem import Problem
from partita.reach import beyond

# GPUs by what their driver calls them, and the least memory that tells one size from another.
DEVICES = (("H200", 0, "h200"), ("H100", 0, "h100-80gb"), ("A100", 60, "a100-80gb"), ("A100", 0, "a100-40gb"),
           ("V100", 24, "v100-32gb"), ("V100", 0, "v100-16gb"))  # fmt: skip

Held = Mapping[str, int | str]
# A device's name and bytes; None: a process on the CPU.
Gpu = tuple[str, int] | None


def this_cluster(key: Key, gpus: Sequence[Gpu], local: int) -> Cluster:
    """The cluster that the key names, or that the job runs on: ``gpus`` are its ranks' devices, ``local`` a node's.

    InputError where its devices aren't as many as the ranks, but in a dry run, and where those of a node differ.
    """
    ranks = len(gpus)
    named = key.cluster
    if named is None or ("x" not in named.split("-")[0] and not named.endswith(".json")):
        presets = [named or _preset(gpu) for gpu in gpus]
        nodes = ranks // local if gpus[0] and ranks % local == 0 else 1
        named = _text(presets, nodes)
        cluster = parse_cluster(named) if gpus[0] else parse_cluster(presets[0], ranks)
    else:
        cluster = parse_cluster(named)
    if cluster.devices != ranks and not key.dry_run:
        raise InputError(
            f'"{KEY}.cluster": {named} has {cluster.devices} devices and the job {ranks} processes; start '
            f'{cluster.devices}, or look at the plan with "dry_run": true'
        )
    return cluster


def _text(presets: Sequence[str], nodes: int) -> str:
    """The cluster as a user writes it, nodes in order."""
    each = len(presets) // nodes
    parts = []
    for node in range(nodes):
        found = set(presets[node * each : (node + 1) * each])
        if len(found) > 1:
            raise InputError(
                f"node {node} has devices of {listed(sorted(found))}; a node's devices must be of one kind, or one "
                f'preset be named for all: "{KEY}": {{"cluster": "{min(found)}"}}'
            )
        parts.append(*found)
    return "+".join(f"{len(list(run))}x{each}x{preset}" for preset, run in groupby(parts))


def _preset(gpu: Gpu) -> str:
    if gpu is None:
        return "cpu"
    name, memory_bytes = gpu
    for word, least_gib, preset in DEVICES:
        if word in name and memory_bytes >= least_gib * 2**30:
            return preset
    raise InputError(f'nothing is known of "{name}"; name a cluster: "{KEY}": {{"cluster": "8xa100-80gb"}}, or a file')


def chosen(graph: Graph, cluster: Cluster, key: Key, request: Request) -> tuple[Plan, list[str]]:
    """The plan, and sentences on what the user's own settings cost.

    Infeasible where nothing fits under what is held; PlanError where a decision can't be carried out.
    """
    if key.plan is not None:
        return _given(key.plan, cluster, request), []
    held = dict(key.fix)
    if request.zero is not None:
        if held.get("zero", request.zero) != request.zero:
            raise InputError(
                f'"zero_optimization.stage" is {request.zero} and "{KEY}.fix" holds zero={held["zero"]}; remove one'
            )
        held["zero"] = request.zero
    if request.recompute:
        if held.get("recompute", "full") != "full":
            raise InputError(
                f'the model\'s activation checkpointing is on and "{KEY}.fix" holds recompute={held["recompute"]}; '
                "turn one of the two off"
            )
        held["recompute"] = "full"
    plan = _best(graph, cluster, key, request, held)
    return plan, _costs(graph, cluster, key, request, plan)


def _given(path: str, cluster: Cluster, request: Request) -> Plan:
    plan = load_plan(path)
    wanted = request.call_samples(cluster.devices)
    for what, found, needed in (
        ("target", plan.target, "deepspeed"),
        ("precision", plan.precision, request.precision),
        ("global batch", plan.global_batch, wanted),
        ("number of devices", len(plan.devices), cluster.devices),
    ):
        if found != needed:
            more = f" ({request.micro} a rank and call, {cluster.devices} ranks)" if what == "global batch" else ""
            raise InputError(f'"{KEY}.plan": {path}: the plan\'s {what} is {found}, the job needs {needed}{more}')
    zero = plan.stages[0].strategies[0].zero
    if request.zero not in (None, zero):
        raise InputError(
            f'"zero_optimization.stage" is {request.zero}, the plan {path} has ZeRO stage {zero}; remove the key'
        )
    if (why := unfit(plan)) is not None:
        raise PlanError(f'"{KEY}.plan": {path}: {why}')
    return plan


def unfit(plan: Plan) -> str | None:
    """Why a loop can't run a plan, or None: what DeepSpeed divides between uses is whole for one pass of a call."""
    if reasons := beyond(plan):
        return f"{'; '.join(reasons)}; DeepSpeed's engine can't run that, the target partita can, outside DeepSpeed"
    if plan.order.generator == "turns":
        return "it lists its turns one by one, and the calls of a loop have micro-batches of their own number"
    stage = plan.stages[0]
    zero = max(strategy.zero for one in plan.stages for strategy in one.strategies)
    if zero > 1 and (stage.tp > 1 or stage.micro_batches > 1):
        return (
            f"ZeRO stage {zero} with tp={stage.tp} and {stage.micro_batches} micro-batches a call; in a loop of "
            "engine(…), ZeRO 2 and 3 go with tp=1 and one micro-batch a call"
        )
    if plan.idle_devices:
        return f"it leaves devices {list(plan.idle_devices)} idle, and every rank of a loop has to take part"
    return None


def _best(graph: Graph, cluster: Cluster, key: Key, request: Request, held: Held) -> Plan:
    """The fastest plan that a loop can run, under what is held."""
    found: list[Plan] = []
    failure: PartitaError | None = None
    for more in _variants(key, held, cluster.devices):
        try:
            found.append(_runnable(graph, cluster, key, request, {**held, **more}))
        except (Infeasible, PlanError) as error:
            failure = failure or error
    if not found:
        assert failure is not None
        raise failure
    return min(found, key=lambda plan: plan.predicted.step_seconds)


def _variants(key: Key, held: Held, devices: int) -> list[dict[str, int]]:
    """What the switches leave: "off" is one stage or piece, "on" each larger number that divides the devices."""
    counts: dict[str, list[int]] = {}
    for name, switch in (("pp", key.pipeline), ("tp", key.tensor_parallel)):
        if switch == "off":
            counts[name] = [1]
        elif switch == "on":
            counts[name] = divisors(devices)[1:] or [2]
    return [dict(zip(counts, numbers, strict=True)) for numbers in product(*counts.values())]


def _runnable(graph: Graph, cluster: Cluster, key: Key, request: Request, held: Held) -> Plan:
    """The planner's answer; where a loop can't run that, the best of those that it can."""
    plan = _plan(graph, cluster, key, request, held)
    why = unfit(plan)
    if why is None:
        return plan
    alone = {"pp": 1, "tp": 1, "dp": cluster.devices, "micro_batches": 1}
    found = []
    for more in (alone, {"zero": 1}, {"zero": 0}):
        if all(held.get(name, value) == value for name, value in more.items()):
            try:
                other = _plan(graph, cluster, key, request, {**held, **more})
            except (Infeasible, PlanError):
                continue
            if unfit(other) is None:
                found.append(other)
    if not found:
        raise PlanError(why)
    return min(found, key=lambda plan: plan.predicted.step_seconds)


def _plan(graph: Graph, cluster: Cluster, key: Key, request: Request, held: Held) -> Plan:
    problem = Problem(
        graph=graph, cluster=cluster, global_batch=request.call_samples(cluster.devices), precision=request.precision,
        optimizer=request.optimizer, target="deepspeed", memory_bytes=key.memory_bytes, fix=held,
    )  # fmt: skip
    plan = planned(problem)
    return plan


def _costs(graph: Graph, cluster: Cluster, key: Key, request: Request, plan: Plan) -> list[str]:
    """What each of the user's own settings costs, where it costs anything."""
    own: Sequence[tuple[str, str]] = [
        *([("zero", f'"zero_optimization.stage": {request.zero}')] if request.zero is not None else []),
        *([("recompute", "recomputing all activations")] if request.recompute else []),
    ]
    sentences = []
    for name, words in own:
        if name in key.fix:
            continue
        held = dict(key.fix)
        if request.zero is not None and name != "zero":
            held["zero"] = request.zero
        if request.recompute and name != "recompute":
            held["recompute"] = "full"
        try:
            free = _best(graph, cluster, key, request, held)
        except (Infeasible, PlanError):
            continue
        gain = plan.predicted.step_seconds / free.predicted.step_seconds
        if gain > 1.005:
            sentences.append(
                f"{words} is kept and costs {100 * (gain - 1):.0f}%: without it a call is predicted to take "
                f"{free.predicted.step_seconds:.3g} s, not {plan.predicted.step_seconds:.3g} s ({words_of(free)})"
            )
    return sentences


def words_of(plan: Plan) -> str:
    """A plan in a few words."""
    stage = plan.stages[0]
    zero, recompute = stage.strategies[0].zero, stage.strategies[0].recompute
    again = {"none": [], "selective": ["attention recomputed"], "full": ["activations recomputed"]}[recompute]
    parts = [f"pp={len(plan.stages)}", f"tp={stage.tp}", f"dp={stage.dp}", f"ZeRO {zero}"]
    parts.append(f"{stage.micro_batches} micro-batches of {stage.samples // stage.dp}")
    return ", ".join([*parts, *again])
