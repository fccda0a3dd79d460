"""From a plan and the module that it was made for to a verdict: capture in float64, lower, size, prove."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import nn

from partita.adapters.torch.prepare import Lowered, lower_model
from partita.adapters.verify.batch import Example, wide
from partita.adapters.verify.exact import Exact
from partita.adapters.verify.prove import STEPS, Verdict, verify_program
from partita.cli.model import unknown
from partita.errors import InputError
from partita.hooks import plugins, recipes
from partita.plan import Plan

# Of each parameter on each side: itself, its gradient and Adam's two moments, and the gradients that are compared.
BYTES_OF_PARAMETER = 8 * (4 + STEPS)
GIB = 2**30


def verify_plan(plan: Plan, factory: Callable[[], nn.Module], example: Example, where: str) -> Verdict:
    """Run a plan's program in float64 beside one device.

    ``factory`` builds the module and ``example(samples)`` gives its arguments; ``where`` is the plan in messages.
    PlanError and ModelError as of ``verify_program`` and of lowering; InputError for what this machine's memory can't
    hold.
    """
    with Exact():
        lowered = lower_model(replace(plan, precision="fp64"), factory, wide(example))
    require_memory(lowered, plan, where, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return verify_program(lowered, factory, example)


def module_of(name: str, seq: int | None) -> tuple[Callable[[], nn.Module], Example]:
    """What builds the model of that name, and its example. PartitaError for a name that is no module's."""
    found: tuple[Callable[[], nn.Module], Example] | None = plugins().hook.partita_module(model=name, seq=seq)
    if found is None and Path(name).is_file():
        raise InputError(
            f"{name}: a saved graph has no weights and no code that could be run; verify the recipe, configuration or "
            "function that it was captured from"
        )
    if found is None and name in recipes():
        raise InputError(f"{name}: this recipe gives no torch module that could be run (it has no hook partita_module)")
    if found is None:
        raise unknown(name)
    return found


def needed_bytes(lowered: Lowered, plan: Plan) -> int:
    """The least memory that both sides need, one after the other: all devices' state, and what a step saves."""
    graph, program = lowered.captured.graph, lowered.program
    held = 0
    for places in program.places.values():
        # A parameter that several stages of a device read is there once.
        parts = {name: shard for at in places for name, shard in program.pieces[at.stage].parameters.items()}
        held += sum(graph.tensor[name].elements // (shard.pieces if shard else 1) for name, shard in parts.items())
    state = (held + graph.parameter_count) * BYTES_OF_PARAMETER
    values = sum(tensor.bytes for tensor in graph.tensors if tensor.role == "value")
    return state + values * plan.global_batch // graph.samples


def require_memory(lowered: Lowered, plan: Plan, where: str, memory_bytes: int) -> None:
    """InputError where the comparison needs more than the machine has, with both numbers."""
    needed = needed_bytes(lowered, plan)
    if needed > memory_bytes:
        graph = lowered.captured.graph
        raise InputError(
            f'{where}: "{graph.name}" has {graph.parameter_count:,} parameters; {len(plan.devices)} virtual devices '
            f"and one device with a global batch of {plan.global_batch} need {needed / GIB:.1f} GiB in float64, this "
            f"machine has {memory_bytes / GIB:.1f}. A smaller model of the same family, or a smaller global batch, can "
            "be verified"
        )
