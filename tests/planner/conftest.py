"""Hand-made graphs whose costs can be read off: each block reads a buffer (time) and owns parameters (state)."""

from __future__ import annotations

import pytest

from partita.cluster import Cluster, Device, Link
from partita.graph import Block, Graph, Op, Tensor, check
from partita.problem import Problem


def chain(seconds, parameters=None, width=0, kept=0, shared=()) -> Graph:
    """Blocks that take ``seconds[i]`` forward on ``machine()``; ``width`` float32 elements cross every cut.

    ``kept`` elements are saved inside each block; ``shared`` are pairs (owner, user) of one tied parameter each.
    """
    parameters = [0] * len(seconds) if parameters is None else parameters
    tensors = [Tensor("x0", (1, width), role="input", gradient=False)]
    ops, blocks = [], []
    for index, time in enumerate(seconds):
        name, own = f"b{index}", []
        read = [f"x{index}", f"{name}.buffer"]
        tensors.append(Tensor(f"{name}.buffer", (round(time * 1e9),), "int8", role="buffer", gradient=False))
        if parameters[index]:
            own.append(f"{name}.weight")
            tensors.append(Tensor(f"{name}.weight", (parameters[index],), role="parameter"))
        for number, (owner, _) in enumerate(shared):
            if owner == index:
                own.append(f"tied{number}")
                tensors.append(Tensor(f"tied{number}", (1000,), role="parameter"))
        read += own + [f"tied{number}" for number, (_, user) in enumerate(shared) if user == index]
        tensors += [Tensor(f"{name}.inner", (1, kept)), Tensor(f"x{index + 1}", (1, width))]
        # Kinds without a signature (no cuts), of which the first keeps its output and the second nothing.
        ops.append(Op(f"{name}.first", "log_softmax", tuple(read), (f"{name}.inner",), name))
        ops.append(Op(f"{name}.second", "cumsum", (f"{name}.inner",), (f"x{index + 1}",), name))
        blocks.append(Block(name, tuple(own)))
    return check(Graph("chain", 1, None, tuple(tensors), tuple(ops), tuple(blocks), ("x0",), (f"x{len(seconds)}",)))


def machine(devices=4, memory=10**12, bandwidth=1e9, latency=0.0) -> Cluster:
    """Devices that move 1e9 bytes a second through memory, in one node; no launch time, no framework overhead."""
    device = Device("test", memory, {"float32": 1e30, "bfloat16": 1e30}, 1e9)
    link = Link(bandwidth, latency)
    return Cluster.of("test", (devices,), device, link, link)


def problem(graph, cluster=None, batch=8, **given) -> Problem:
    """fp32, for Partita's own runtime unless told otherwise."""
    return Problem(graph, cluster or machine(), batch, **({"precision": "fp32", "target": "partita"} | given))


@pytest.fixture
def made():
    """The three builders."""

    class Made:
        chain = staticmethod(chain)
        machine = staticmethod(machine)
        problem = staticmethod(problem)

    return Made
