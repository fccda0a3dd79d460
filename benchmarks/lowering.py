"""Tasks of a program, seconds of lowering and of its proofs by the number of micro-batches: gpt3-6.7b on 32 devices.

The plan is the planner's with pp, tp and dp held; its graph is the configuration's. Tasks should grow with the
micro-batches and seconds with the tasks: the pieces, which hold the ops, are made and proven once.
Lowering ends with the proofs: their seconds are among its own.
"""

from __future__ import annotations

import time

from machine import machine

from partita.cli.options import problem
from partita.hooks import plugins
from partita.plugins.capture_huggingface import capture_config
from partita.recipes.gpt3.sizes import config
from partita.spacetime.lower import lower
from partita.spacetime.prove import prove

MODEL, CLUSTER, MESH = "gpt3-6.7b", "4x8xa100-80gb", {"pp": 8, "tp": 2, "dp": 2}


def main() -> None:
    print(f"{machine()}\n\n{MODEL} on {CLUSTER}, " + ", ".join(f"{name}={size}" for name, size in MESH.items()))
    print(f"{'micro-batches':>13}  {'tasks':>8}  {'seconds':>8}  {'µs a task':>9}  {'of it proofs':>12}")
    graph = capture_config(config(MODEL), samples=1, seq=2048, dtype="bfloat16", name=MODEL)
    for micro_batches in (8, 16, 32, 64, 128, 256):
        held = MESH | {"micro_batch": 1, "micro_batches": micro_batches}
        batch = MESH["dp"] * micro_batches
        fix = [f"{name}={value}" for name, value in held.items()]
        stated = problem(MODEL, CLUSTER, None, batch, None, "bf16", "adam", None, "deepspeed", fix)
        plan = plugins().hook.partita_planner(problem=stated)
        took, proving = [], []
        for _ in range(3):
            start = time.perf_counter()
            program = lower(graph, plan)
            took.append(time.perf_counter() - start)
            start = time.perf_counter()
            prove(graph, program)
            proving.append(time.perf_counter() - start)
        tasks = sum(map(len, program.queues.values()))
        each = min(took) / tasks * 1e6
        print(f"{micro_batches:13,}  {tasks:8,}  {min(took):8.3f}  {each:9.1f}  {min(proving):12.3f}", flush=True)


if __name__ == "__main__":
    main()
