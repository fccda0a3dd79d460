"""Proof that a program computes what its model does and comes to an end, before anything runs.

In this order: places of devices, pieces (blocks, ops, views, sums over devices), parameters (owners, shards), queues
(micro-batches, transfers, gradients, updates), order (freedom from deadlock). Pieces are proven once; the rest is
linear in tasks.

What only values can show is left to running the program beside one device: a dropout mask that differs on replicas or
when it is computed again, a wrong scale of a loss or gradient inside an op or a runtime, an op whose literal arguments
are wrong, data that differs between the devices of one copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from partita.errors import PlanError
from partita.graph import Graph
from partita.spacetime.alike import loss_of, of_stages, require_alike
from partita.spacetime.program import Program
from partita.spacetime.prove_code import prove_code
from partita.spacetime.prove_order import prove_order
from partita.spacetime.prove_parameters import prove_parameters, prove_places
from partita.spacetime.prove_queues import prove_queues


def prove(graph: Graph | Sequence[Graph], program: Program) -> Program:
    """The program itself if it is valid; else a PlanError that names ops, tensors, devices and intervals.

    ``graph`` is the model with the samples of one turn of one data-parallel copy, or of each stage its own. Follows
    SuperScaler (sections 3.2 to 3.4): every element that is read is made once or summed over all its parts, and data
    and order have no cycle.
    """
    graphs = of_stages(graph, len(program.pieces))
    loss = loss_of(graphs, program.pieces)
    for found, share in zip(graphs, program.shares, strict=True):
        if program.loss != loss or share.samples != found.samples:
            raise PlanError(
                f"the program weights its loss as {program.loss} of {share.samples} samples a turn; "
                f'graph "{found.name}" has {loss} of {found.samples}'
            )
    return prove_any(graphs, program)


def prove_any(graph: Graph | Sequence[Graph], program: Program) -> Program:
    """The same of a program that is only timed: a graph may have any number of samples, and so have its pieces."""
    graphs = of_stages(graph, len(program.pieces))
    require_alike(graphs)
    prove_places(program)
    prove_code(graphs, program.pieces, [program.inner[stage] for stage in range(len(program.pieces))])
    prove_parameters(graphs[0], program)
    prove_queues(graphs, program)
    prove_order(program)
    return program
