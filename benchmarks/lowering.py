"""Tasks of a program, seconds of lowering and of its proofs by the number of micro-batches, plan by plan.

gpt3-6.7b on 32 devices, planned by functions of the library. Tasks should grow with the micro-batches and seconds with
the tasks: the pieces, which hold the ops, are made and proven once. Lowering ends with the proofs, whose seconds are
among its own. Seconds are those of this process on the processor, so that other work on the machine doesn't count.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from machine import machine

from partita.cluster import parse_cluster
from partita.draft import drafted
from partita.drafted import library
from partita.graph import Graph
from partita.plan import Plan
from partita.plugins.capture_huggingface import capture_config
from partita.problem import Problem
from partita.recipes.gpt3.sizes import config
from partita.spacetime.lower import lower_to_time
from partita.spacetime.prove import prove

MODEL, CLUSTER, DP = "gpt3-6.7b", "4x8xa100-80gb", 2
# Each with two data-parallel copies.
PLANS = {
    "1f1b": {"pp": 8, "tp": 2},
    "interleaved": {"pp": 8, "tp": 2, "chunks": 4},
    "zero-bubble": {"pp": 8, "tp": 2},
    "interlaced": {"pp": 16},
    "sequence-parallel": {"tp": 16},
}
MICRO_BATCHES = (8, 16, 32, 64, 128, 256)


def planned(graph: Graph, name: str, numbers: Mapping[str, int], micro_batches: int) -> Plan:
    """The plan of the library with one sample a micro-batch of each copy."""
    problem = Problem(graph, parse_cluster(CLUSTER), DP * micro_batches, target="partita")
    return drafted(library()[name], name, problem, {**numbers, "micro_batches": micro_batches})


def row(graph: Graph, name: str, numbers: Mapping[str, int], micro_batches: int) -> str:
    """One line of the table."""
    plan = planned(graph, name, numbers, micro_batches)
    took, proving = [], []
    for _ in range(3):
        start = time.process_time()
        program = lower_to_time(graph, plan)
        took.append(time.process_time() - start)
        start = time.process_time()
        prove(graph, program)
        proving.append(time.process_time() - start)
    tasks = sum(map(len, program.queues.values()))
    each = min(took) / tasks * 1e6
    return f"{name:17}  {micro_batches:13,}  {tasks:8,}  {min(took):8.3f}  {each:9.1f}  {min(proving):12.3f}"


def main() -> None:
    print(f"{machine()}\n\n{MODEL} on {CLUSTER}, dp={DP}")
    for name, numbers in PLANS.items():
        print(f"{name}: {', '.join(f'{key}={size}' for key, size in numbers.items())}")
    head = ("micro-batches", "tasks", "seconds", "µs a task", "of it proofs")
    widths = (13, 8, 8, 9, 12)
    print(f"\n{'plan':17}  " + "  ".join(f"{word:>{width}}" for word, width in zip(head, widths, strict=True)))
    graph = capture_config(config(MODEL), samples=1, seq=2048, dtype="bfloat16", name=MODEL)
    for name, numbers in PLANS.items():
        for micro_batches in MICRO_BATCHES:
            print(row(graph, name, numbers, micro_batches), flush=True)


if __name__ == "__main__":
    main()
