"""Seconds of simulating a step by the tasks of its program: gpt3-6.7b on 32 devices, by plans of the library and by the
number of micro-batches, then gpt3-175b on up to 1,024.

Lowering is timed apart, and so are costs (the planner's, asked again) and the memory of all devices. Seconds are those
of this process on the processor, so that other work on the machine doesn't count. They should grow with the tasks:
beside them stands what one task takes in the queues. The last column is the most memory that the process has had.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping

from lowering import PLANS
from machine import machine

from partita.cluster import parse_cluster
from partita.draft import drafted
from partita.drafted import library
from partita.plugins.capture_huggingface import capture_config
from partita.problem import Problem
from partita.recipes.gpt3.sizes import config
from partita.simulate.costs import costs
from partita.simulate.engine import execute
from partita.simulate.fabric import Fabric
from partita.simulate.result import Simulation
from partita.spacetime.lower import lower_to_time

SMALL, SMALL_CLUSTER, SMALL_COPIES = "gpt3-6.7b", "4x8xa100-80gb", 2
LARGE, LARGE_MESH, LARGE_NODES = "gpt3-175b", {"pp": 16, "tp": 8}, 16
HEAD = ("model", "plan", "devices", "micro", "tasks", "lowering", "costs", "queues", "memory", "µs a task", "peak GiB")
WIDTHS = (9, 17, 7, 5, 9, 8, 8, 8, 8, 9, 8)


def row(model: str, cluster: str, copies: int, name: str, numbers: Mapping[str, int], micro_batches: int) -> None:
    """One line of the table; a micro-batch of each copy is one sample."""
    graph = capture_config(config(model), samples=1, seq=2048, dtype="bfloat16", name=model)
    stated = Problem(graph, parse_cluster(cluster), copies * micro_batches, target="partita")
    plan = drafted(library()[name], name, stated, {**numbers, "micro_batches": micro_batches})
    times = [time.process_time()]
    program = lower_to_time(stated.graph, plan)
    times.append(time.process_time())
    priced = costs(stated.graph, plan, stated.cluster)
    times.append(time.process_time())
    timings = execute(program, priced.seconds, priced.size_bytes, Fabric(stated.cluster))
    times.append(time.process_time())
    simulation = Simulation(program, priced, timings)
    assert len(simulation.peaks) == len(simulation.use) == stated.cluster.devices
    times.append(time.process_time())
    tasks = sum(map(len, program.queues.values()))
    took = [after - before for before, after in zip(times[:-1], times[1:], strict=True)]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{model:>9}  {name:>17}  {stated.cluster.devices:7,}  {micro_batches:5,}  {tasks:9,}  "
        + "  ".join(f"{seconds:8.3f}" for seconds in took)
        + f"  {took[2] / tasks * 1e6:9.1f}  {memory:8.2f}",
        flush=True,
    )


def main() -> None:
    print(f"{machine()}\n")
    print("  ".join(f"{word:>{width}}" for word, width in zip(HEAD, WIDTHS, strict=True)))
    for name, numbers in PLANS.items():
        for micro_batches in (16, 64, 256):
            row(SMALL, SMALL_CLUSTER, SMALL_COPIES, name, numbers, micro_batches)
    for nodes in (16, 32, 64, 128):
        row(LARGE, f"{nodes}x8xa100-80gb", nodes // LARGE_NODES, "1f1b", LARGE_MESH, 96)


if __name__ == "__main__":
    main()
