"""Stages that do what they do in a set time, on real ranks; and the same step in simulation.

A turn computes its tiny layer and sleeps for the rest of its time, so that what a step takes besides is what the
runtime adds: its tasks, its messages, and that processes wake up late. Sleeping needs no core: as many ranks as there
are stages run beside each other on any machine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from partita.adapters.torch.engine import TorchEngine, optimizers
from partita.adapters.torch.prepare import prepare
from partita.adapters.torch.stage import Code
from partita.adapters.torch.weights import StateDict
from partita.cluster import parse_cluster
from partita.simulate.engine import execute
from partita.simulate.fabric import Fabric
from tests.runtime.dag_models import DAGS, SAMPLES, Batch, lowered
from tests.runtime.models import micro_batches


@dataclass(frozen=True)
class Sleep:
    """A row of ``DAGS``, and the seconds of each stage's forward and backward turns."""

    dag: str
    forward: Sequence[float]
    backward: Sequence[float]

    @property
    def seconds(self) -> dict[tuple[int, str], float]:
        """By stage and kind of task, as the simulator takes them. The end of a step is nothing."""
        kinds = {"forward": self.forward, "backward": self.backward}
        found = {(stage, kind): value for kind, values in kinds.items() for stage, value in enumerate(values)}
        return found | {(stage, kind): 0.0 for stage in range(len(self.forward)) for kind in ("reduce", "update")}


CASES = {
    "chain": Sleep("chain", (0.03, 0.03, 0.03, 0.03), (0.06, 0.06, 0.06, 0.06)),
    "unlike chain": Sleep("chain", (0.03, 0.02, 0.05, 0.03), (0.06, 0.04, 0.08, 0.03)),
    "diamond": Sleep("diamond by its graph", (0.03, 0.05, 0.02, 0.03), (0.06, 0.10, 0.04, 0.06)),
    "diamond, unlike micro-batches": Sleep(
        "diamond, unlike micro-batches", (0.03, 0.10, 0.015, 0.06), (0.06, 0.20, 0.03, 0.12)
    ),
    "three towers": Sleep("three towers", (0.06, 0.03, 0.04, 0.03), (0.08, 0.06, 0.07, 0.06)),
}


def simulated(case: Sleep) -> float:
    """Seconds of a step, with the messages of the model over the links of processes on this machine."""
    program = lowered(case.dag).program
    fabric = Fabric(parse_cluster("cpu", len(program.queues)))
    timings = execute(program, case.seconds, lambda transfer: transfer.bytes, fabric)
    return max(max(timing.ends) for timing in timings.values())


class SleepingEngine(TorchEngine):
    """Plain torch's engine, whose turns take as long as they are said to."""

    seconds: Mapping[tuple[int, str], float]

    def forward(self, batch: Batch, inputs: Batch, key: tuple[int, ...], code: Code) -> dict[str, Tensor]:
        end = time.perf_counter() + self.seconds[code.piece.stage, "forward"]
        outputs = super().forward(batch, inputs, key, code)
        _sleep_until(end)
        return outputs

    def backward(
        self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None], leaves: Sequence[Tensor] = ()
    ) -> None:
        (stage,) = self.stages
        end = time.perf_counter() + self.seconds[stage, "backward"]
        super().backward(outputs, gradients, leaves)
        _sleep_until(end)


def _sleep_until(end: float) -> None:
    time.sleep(max(0.0, end - time.perf_counter()))


def measured(case: Sleep, steps: int) -> list[float]:
    """What a rank does: a step to warm up, and the seconds of so many more."""
    dag, found = DAGS[case.dag], lowered(case.dag)
    torch.manual_seed(0)
    weights = StateDict(dag.build().double().state_dict(), found.captured.graph.aliases)
    prepared = prepare(found, weights=weights)
    stages, groups = prepared.stages, prepared.groups
    engine = SleepingEngine(stages, groups, optimizers(stages, lambda p: torch.optim.SGD(p.values(), lr=0.1)))
    seconds = []
    for step in range(steps + 1):
        engine.seconds = case.seconds if step else dict.fromkeys(case.seconds, 0.0)
        drawn = dag.batch(SAMPLES, torch.Generator().manual_seed(step), False)
        batch = {name: value.double() for name, value in drawn.items()}
        copy, share = found.program.places[groups.rank][0].data, found.program.share(groups.rank)
        torch.distributed.barrier()
        begin = time.perf_counter()
        prepared.runtime.step(micro_batches(batch, share, copy), engine)
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]
