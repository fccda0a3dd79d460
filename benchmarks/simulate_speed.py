"""Seconds of simulating a step by the tasks of its program: gpt3-6.7b on 32 devices, then gpt3-175b on up to 1,024.

Lowering is timed apart, and so are costs (the planner's, asked again) and the memory of all devices. Seconds are those
of this process on the processor, so that other work on the machine doesn't count. They should grow with the tasks:
beside them stands what one task takes in the queues. The last column is the most memory that the process has had.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping

from machine import machine

from partita.cli.options import problem
from partita.hooks import plugins
from partita.simulate.costs import costs
from partita.simulate.engine import execute
from partita.simulate.fabric import Fabric
from partita.simulate.result import Simulation
from partita.simulate.run import queues

SMALL, SMALL_CLUSTER, SMALL_MESH = "gpt3-6.7b", "4x8xa100-80gb", {"pp": 8, "tp": 2, "dp": 2}
LARGE, LARGE_MESH = "gpt3-175b", {"pp": 16, "tp": 8}
HEAD = ("model", "devices", "micro", "tasks", "lowering", "costs", "queues", "memory", "µs a task", "peak GiB")


def row(model: str, cluster: str, mesh: Mapping[str, int], micro_batches: int) -> None:
    """One line of the table."""
    held = {**mesh, "micro_batch": 1, "micro_batches": micro_batches}
    fix = [f"{name}={value}" for name, value in held.items()]
    stated = problem(model, cluster, None, mesh["dp"] * micro_batches, None, "bf16", "adam", None, "deepspeed", fix)
    plan = plugins().hook.partita_planner(problem=stated)
    times = [time.process_time()]
    program = queues(stated.graph, plan)
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
        f"{model:10}  {stated.cluster.devices:7,}  {micro_batches:5,}  {tasks:9,}  "
        + "  ".join(f"{seconds:8.3f}" for seconds in took)
        + f"  {took[2] / tasks * 1e6:9.1f}  {memory:8.2f}",
        flush=True,
    )


def main() -> None:
    print(f"{machine()}\n")
    widths = (10, 7, 5, 9, 8, 8, 8, 8, 9, 8)
    print("  ".join(f"{word:>{width}}" for word, width in zip(HEAD, widths, strict=True)))
    for micro_batches in (8, 16, 32, 64, 128, 256):
        row(SMALL, SMALL_CLUSTER, SMALL_MESH, micro_batches)
    for nodes in (16, 32, 64, 128):
        row(LARGE, f"{nodes}x8xa100-80gb", LARGE_MESH | {"dp": nodes // 16}, 96)


if __name__ == "__main__":
    main()
