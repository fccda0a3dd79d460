"""The options that state a problem, shared by all verbs that plan, and how their words become a Problem."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from partita.cluster import Cluster as Machine
    from partita.graph import Graph
    from partita.problem import Problem

GIB = 2**30


def whole_number(text: str) -> int:
    """A whole number. What range makes sense is said by those who use it: the cluster, the capture, the problem."""
    if not re.fullmatch(r"[-+]?[0-9]{1,30}", text.strip()):
        raise typer.BadParameter(f'"{clipped(text)}" is no whole number')
    return int(text)


def gibibytes(text: str) -> int:
    """GiB to bytes: a positive, finite number, at most a million."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (0 < number <= 1e6 and number * GIB >= 1):
        raise typer.BadParameter(f'"{clipped(text)}" is no number of GiB; from one byte up to a million GiB work')
    return int(number * GIB)


def seconds(text: str) -> float:
    """A positive, finite number of seconds."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise typer.BadParameter(f'"{clipped(text)}" is no number of seconds; a positive one works')
    return number


def bandwidth(text: str) -> float:
    """A finite number of bytes a second, 1 or more."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 1 <= number < math.inf:
        raise typer.BadParameter(f'"{clipped(text)}" is no number of bytes a second; 1 or more works, such as 25e9')
    return number


def clipped(text: str) -> str:
    """Text for a message, cut where it is absurdly long."""
    return text if len(text) <= 40 else f"{text[:20]}…({len(text)} characters)"


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        help="A recipe (gpt3-6.7b), a HuggingFace config.json or its folder, package.module:function, "
        "or a saved graph (.json).",
    ),
]
Devices = Annotated[
    int | None,
    typer.Option(parser=whole_number, metavar="N", help="How many processes, for --cluster cpu."),
]
Seq = Annotated[
    int | None,
    typer.Option(parser=whole_number, metavar="TOKENS", help="Tokens in a sample. Default: as the model says."),
]
Precision = Annotated[str, typer.Option(metavar="NAME", help="bf16, fp16, fp32 or fp64.")]
Optimizer = Annotated[str, typer.Option(metavar="NAME", help="adam or sgd.")]
MemoryGib = Annotated[
    int | None,
    typer.Option(parser=gibibytes, metavar="GIB", help="Memory of each device in GiB. Default: as the preset says."),
]
Target = Annotated[str, typer.Option(metavar="NAME", help="Who will run the plan: deepspeed, megatron or partita.")]
Fix = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Hold a decision: tp, pp, dp, zero, micro_batch, micro_batches, recompute or schedule; of one stage "
        "(stage:2.zero=1); the stages of an old plan (plan.json:stages). Repeat for more.",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="A measured profile of the cluster's device (partita profile writes one), or a folder of Galvatron's: "
        "its times and bytes go before the preset's figures.",
    ),
]
OfPlanModel = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="MODEL",
        help="Of a plan's file: as in partita plan. Default: the plan's, where it is a recipe or a file.",
    ),
]  # fmt: skip
OfPlanProfile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="As in partita plan. Default of a plan on its own cluster: the one it was made with."
    ),
]
PlanFunction = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Don't search: a plan of the library (interleaved, co-shard …), or your own function, file.py:name. "
        "Its numbers are given by --fix.",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Who searches: joint (default), or miqp, which solves the same tables as integer programmes: minutes "
        "where joint takes a second, for small problems.",
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        parser=seconds, metavar="SECONDS", help="Stop searching then with the best so far, and say how far from proven."
    ),
]
OfPlanTarget = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        show_default=False,
        help="Who will run the plan: deepspeed (default), megatron or partita (default of a --plan-function).",
    ),
]
# Of `plan`, whose MODEL may be a profile with a format of its own, which has neither cluster nor global batch.
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="CLUSTER",
        show_default=False,
        help="Nodes x devices x preset, such as 4x8xa100-80gb; cpu with --devices; or a file (.json). Models need it.",
    ),
]
GlobalBatch = Annotated[
    int | None,
    typer.Option(
        parser=whole_number,
        metavar="SAMPLES",
        show_default=False,
        help="Samples in one training step. Models need it.",
    ),
]
PlanDevices = Annotated[
    int | None,
    typer.Option(parser=whole_number, metavar="N", help="Of --cluster cpu: processes. Of a --format: devices."),
]
FileFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help="MODEL is another planner's profile: pipedream, piper or dnn-partitioning. Planned under its own cost.",
    ),
]
MicroBatches = Annotated[
    int | None,
    typer.Option(parser=whole_number, metavar="N", help="Of a --format: micro-batches in a batch."),
]
BytesPerSecond = Annotated[
    float | None,
    typer.Option(parser=bandwidth, metavar="NUMBER", help="Of a --format: between devices."),
]
# Of verbs that take a plan's file or a MODEL: a file has answered these.
OfModelCluster = Annotated[str | None, typer.Option(metavar="CLUSTER", help="Of a MODEL: see partita plan.")]
OfModelGlobalBatch = Annotated[
    int | None, typer.Option(parser=whole_number, metavar="SAMPLES", help="Of a MODEL: samples in one step.")
]
OfModelPrecision = Annotated[str | None, typer.Option(metavar="NAME", help="bf16 (default), fp16, fp32 or fp64.")]
OfModelOptimizer = Annotated[str | None, typer.Option(metavar="NAME", help="adam (default) or sgd.")]
OfModelTarget = Annotated[str | None, typer.Option(metavar="NAME", help="deepspeed (default), megatron or partita.")]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on stdout.")]


def problem(
    model: str, cluster: str, devices: int | None, global_batch: int, seq: int | None, precision: str, optimizer: str,
    memory_bytes: int | None, target: str, fix: Sequence[str], profile: str | None = None,
) -> Problem:  # fmt: skip
    """The problem that the options state. Small words are checked before the model is captured, which takes longest."""
    from partita.cli.model import load_model
    from partita.cluster import parse_cluster
    from partita.cost.precision import compute_dtype
    from partita.planner import parse_fix
    from partita.problem import Problem

    dtype = compute_dtype(precision)
    machine = parse_cluster(cluster, devices)
    decisions = parse_fix(fix)
    graph = load_model(model, seq, dtype)
    return Problem(
        graph=graph, cluster=measured_cluster(machine, profile, precision, graph), global_batch=global_batch,
        precision=precision, optimizer=optimizer, target=target, memory_bytes=memory_bytes, fix=decisions,
        model=model,
    )  # fmt: skip


def problem_of_model(
    model: str, cluster: str | None, devices: int | None, global_batch: int | None, seq: int | None,
    precision: str | None, optimizer: str | None, memory_bytes: int | None, target: str | None,
    fix: Sequence[str] | None, profile: str | None = None,
) -> Problem:  # fmt: skip
    """The problem of a MODEL where options could be left out. InputError without the two that nothing can stand for."""
    if cluster is None or global_batch is None:
        from partita.errors import InputError

        missing = [name for name, value in (("--cluster", cluster), ("--global-batch", global_batch)) if not value]
        raise InputError(f"{model} is a model and no plan: {' and '.join(missing)} must say what it is planned for")
    return problem(
        model, cluster, devices, global_batch, seq, precision or "bf16", optimizer or "adam", memory_bytes,
        target or "deepspeed", fix or (), profile,
    )  # fmt: skip


def measured_cluster(cluster: Machine, profile: str | None, precision: str, graph: Graph) -> Machine:
    """The cluster with what the profile measured, where there is one."""
    if profile is None:
        return cluster
    from partita.profile.profiled import profiled

    return profiled(cluster, profile, precision, graph)
