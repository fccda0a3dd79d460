"""Two towers of one and of two blocks on one input, and a head that reads both: as a graph and as a plan of stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from partita.cluster import parse_cluster
from partita.draft import Draft, drafted, op_assign, op_order, op_trans
from partita.graph import Block, Graph, Op, Tensor, check, save_graph
from partita.plan import Axis, Plan, save_plan
from partita.problem import Problem
from partita.simulate.predict import predicted

TOKENS, WIDTH = 256, 1024
# What each block reads; the mask depends on no parameter, so that no stage sends it.
READS = {"left": ("x",), "right0": ("x",), "right1": ("right0", "mask"), "head": ("left", "right1", "mask")}
STAGES = (("right0",), ("left",), ("right1",), ("head",))


def towers() -> Graph:
    """Each block adds up what it reads and multiplies it by its weight; its value has its name."""
    value, weight = (1, TOKENS, WIDTH), (WIDTH, WIDTH)
    tensors = [
        Tensor("x", value, "bfloat16", role="input", gradient=False), Tensor("mask", value, "bfloat16", gradient=False)
    ]  # fmt: skip
    ops, blocks = [Op("mask", "relu", ("x",), ("mask",), "left")], []
    for name, reads in READS.items():
        tensors += [Tensor(f"{name}.weight", weight, "bfloat16", role="parameter"), Tensor(name, value, "bfloat16")]
        read = reads[0]
        for other in reads[1:]:
            tensors.append(Tensor(made := f"{read}+{other}", value, "bfloat16"))
            ops.append(Op(made, "add", (read, other), (made,), name))
            read = made
        ops.append(Op(name, "linear", (read, f"{name}.weight"), (name,), name))
        blocks.append(Block(name, (f"{name}.weight",)))
    return check(Graph("towers", 1, None, tuple(tensors), tuple(ops), tuple(blocks), ("x",), ("head",)))


def plan(
    graph: Graph, schedule: str = "kfkb", stages: Sequence[Sequence[str]] = STAGES, micro_batches: int = 8, **more: int
) -> Plan:
    """A stage on each device, with the prediction of its simulation; of 16 samples, held to 40 GiB a device."""

    def mine(draft: Draft) -> None:
        for device, blocks in enumerate(stages):
            op_assign(draft, list(blocks), [device])
        op_trans(draft, draft.blocks, "batch", Axis("micro", micro_batches, "turns"))
        op_order(draft, schedule, **more)

    cluster = parse_cluster("1x4xa100-80gb")
    problem = Problem(graph, cluster, 16, target="partita", memory_bytes=40 * 2**30)
    return predicted(graph, drafted(mine, "mine", problem, {}), cluster)


def saved(folder: Path, schedule: str = "kfkb", stages: Sequence[Sequence[str]] = STAGES) -> Path:
    """The plan's file, beside that of its model."""
    model = folder / "towers.json"
    graph = replace(towers(), name=str(model))
    save_graph(graph, model)
    save_plan(plan(graph, schedule, stages), file := folder / f"{schedule}.json")
    return file
