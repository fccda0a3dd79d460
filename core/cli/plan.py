"""``partita plan``: states a problem, finds its plan, prints or saves it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from partita.cli import options

if TYPE_CHECKING:
    from partita.plan import Plan
    from partita.problem import Problem

EXAMPLES = """\b
Examples:
  partita plan gpt3-6.7b --cluster 4x8xa100-80gb --global-batch 512
  partita plan ./config.json --cluster 8xh200 --global-batch 64 --seq 4096 -o plan.json
  partita plan my_models:build --cluster cpu --devices 4 --global-batch 16 --precision fp32
  partita plan gpt3-13b --cluster 8xa100-80gb --global-batch 256 --fix tp=4 --fix recompute=full
  partita plan gpt3-2.7b --cluster 8xa100-80gb --global-batch 64 --plan-function interleaved --fix chunks=4
  partita plan gpt3-350m --cluster 1x1xh200 --global-batch 8 --profile h200.json
  partita plan swin-56l --cluster 8x8xa100-80gb --global-batch 512 --target partita --time-limit 10
  partita plan vgg16.graph.txt --format pipedream --devices 8 --bytes-per-second 1e9
"""


def plan(
    model: options.Model,
    cluster: options.Cluster = None,
    global_batch: options.GlobalBatch = None,
    devices: options.PlanDevices = None,
    seq: options.Seq = None,
    precision: options.OfModelPrecision = None,
    optimizer: options.OfModelOptimizer = None,
    memory_gib: options.MemoryGib = None,
    target: options.OfPlanTarget = None,
    fix: options.Fix = None,
    profile: options.Profile = None,
    plan_function: options.PlanFunction = None,
    engine: options.Engine = None,
    time_limit: options.TimeLimit = None,
    file_format: options.FileFormat = None,
    micro_batches: options.MicroBatches = None,
    bytes_per_second: options.BytesPerSecond = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the plan here.")] = None,
    as_json: options.Json = False,
) -> None:
    """Choose how a model is cut, placed and ordered on a cluster, and say why.

    The plan is the fastest one under the stated formula that fits the memory and that the target can run. Where nothing
    fits, the message says the least memory that would, and the exit status is 1.
    """
    from partita.cli import answer
    from partita.errors import InputError
    from partita.plan import plan_document, save_plan

    if file_format is not None:
        from partita.cli.plan_workload import plan_workload
        from partita.workload.asked import Asked

        asked = Asked(devices, memory_gib, micro_batches, bytes_per_second, tuple(fix or ()))
        others = {
            "--cluster": cluster, "--global-batch": global_batch, "--seq": seq, "--precision": precision,
            "--optimizer": optimizer, "--target": target, "--profile": profile, "--plan-function": plan_function,
            "--engine": engine,
        }  # fmt: skip
        plan_workload(file_format, model, asked, others, time_limit, output, as_json)
        return
    if micro_batches is not None or bytes_per_second is not None:
        raise InputError("--micro-batches and --bytes-per-second go with --format; a model takes --fix micro_batches=8")
    if cluster is None or global_batch is None:
        missing = "--cluster" if cluster is None else "--global-batch"
        raise InputError(f"Missing option '{missing}'. See partita plan --help")
    given = (model, cluster, devices, global_batch, seq, precision or "bf16", optimizer or "adam", memory_gib)
    if plan_function is not None:
        if engine is not None or time_limit is not None:
            raise InputError("--plan-function searches nothing; leave out --engine and --time-limit")
        found, seconds = by_function(
            options.problem(*given, target or "partita", (), profile), model, plan_function, fix or ()
        )
    else:
        found, seconds = search(options.problem(*given, target or "deepspeed", fix or (), profile), engine, time_limit)
    if output is not None:
        save_plan(found, output)
    if as_json:
        document = plan_document(found)
        document["search"]["seconds"] = seconds
        answer.write_json(document)
    else:
        from partita.cli.show import plan_text

        answer.write(plan_text(found, seconds) + (f"\nwritten: {output}" if output is not None else ""))


def by_function(problem: Problem, model: str, name: str, fix: Sequence[str]) -> tuple[Plan, float]:
    """The plan of a plan function, with what its simulation predicts, and the seconds that it took."""
    from partita.cli.model import load_model
    from partita.cost.precision import compute_dtype
    from partita.draft import drafted
    from partita.drafted import numbers, plan_function
    from partita.errors import Infeasible
    from partita.planner.words import gib
    from partita.simulate.predict import predicted

    start = time.perf_counter()
    plan = drafted(plan_function(name), name, problem, numbers(fix))
    graph = problem.graph
    if graph.samples % plan.sample_parts:
        graph = load_model(model, graph.seq, compute_dtype(problem.precision), plan.sample_parts)
    plan = predicted(graph, plan, problem.cluster)
    limits = {device: problem.memory_limit_of((device,)) for device in plan.predicted.peak_bytes}
    device, most = max(plan.predicted.peak_bytes.items(), key=lambda peak: peak[1] - limits[peak[0]])
    if most > limits[device]:
        unlike = len(problem.cluster.different_devices()) > 1
        what = f" ({problem.cluster.device_at(device).name})" if unlike else ""
        reason = f"{name} needs {gib(most)} on device {device}{what}, and {gib(limits[device])} is there"
        raise Infeasible(f"{reason}; other numbers (--fix), or {gib(most)} a device, would do", [reason])
    return plan, time.perf_counter() - start


def search(problem: Problem, engine: str | None = None, limit: float | None = None) -> tuple[Plan, float]:
    """The plan of the engine, or of the first one that has one, and the seconds that it took."""
    from partita.hooks import planned
    from partita.planner.joint.compiled import is_kept
    from partita.planner.joint.sums import sums

    if not is_kept(sums):
        print("partita: the search is compiled at its first use; that takes some 15 seconds, once", file=sys.stderr)
    start = time.perf_counter()
    found = planned(problem, engine, math.inf if limit is None else limit)
    return found, time.perf_counter() - start
