"""From CHECKPOINT, --to and --from as a user writes them to an output folder: read, compare with the model, write."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from partita.adapters.checkpoint.catalogue import Catalogue
from partita.adapters.checkpoint.output import Output
from partita.adapters.checkpoint.padding import without_padding
from partita.adapters.checkpoint.reshard import Done, identity_of, unfinished, write_outputs
from partita.adapters.checkpoint.sources import read_checkpoint
from partita.adapters.checkpoint.target import Target, buffers_apart, require_model, target
from partita.adapters.checkpoint.write_dcp import dcp_outputs
from partita.adapters.checkpoint.write_deepspeed import deepspeed_outputs
from partita.adapters.checkpoint.write_megatron import megatron_outputs
from partita.adapters.checkpoint.write_safetensors import dense_outputs
from partita.cli.model import load_model
from partita.cli.planned import model_of
from partita.errors import InputError, listed
from partita.graph import Graph
from partita.plan import Plan, load_plan, plan_document

# What --to may say that is no plan: what is written, in words.
FORMS = {"safetensors": "the dense model", "megatron": "the GPT model of Megatron"}


@dataclass(frozen=True)
class Result:
    """What was found and what was written. ``form``: in words; ``target``: its plan, if it has one.

    ``left_out``: what the checkpoint has and the output hasn't. ``before_bytes``: the memory of this process before it
    read the checkpoint; ``peak_bytes``: the most it has had.
    """

    catalogue: Catalogue
    form: str
    target: Target | None
    out: Path
    done: Done
    left_out: tuple[str, ...]
    before_bytes: int
    peak_bytes: int


def convert(
    checkpoint: Path, to: str, out: Path, saved_by: str | None, model: str | None,
    progress: Callable[[str], object] = lambda words: None,
) -> Result:  # fmt: skip
    """Write the checkpoint for a plan, or as a dense model. PartitaError for whatever can't be read or written."""
    _require_apart(checkpoint, out)
    wanted = None if to in FORMS else _plan(to)
    before = None if saved_by is None else load_plan(saved_by)
    graph = _graph([(wanted, to), (before, saved_by)], model)
    goal = None if wanted is None else target(wanted, graph)
    by = None if before is None else target(before, graph)
    _forget_peak()
    before_bytes = memory_bytes("VmRSS")
    catalogue = read_checkpoint(checkpoint, by, graph, weights=to == "safetensors")
    if graph is not None:
        catalogue = buffers_apart(without_padding(catalogue, graph), graph)
        require_model(catalogue, graph)
    outputs = form_outputs(catalogue, to, graph) if goal is None else plan_outputs(catalogue, goal)
    identity = identity_of(catalogue, to if goal is None else plan_document(goal.plan))
    done = write_outputs(outputs, out, identity, progress)
    form = FORMS[to] if goal is None else f"for {goal.plan.target}: {goal.words}"
    left = () if goal is not None else left_out(catalogue, to)
    return Result(catalogue, form, goal, out, done, left, before_bytes, memory_bytes("VmHWM"))


def _require_apart(checkpoint: Path, out: Path) -> None:
    """InputError where writing the output would change the checkpoint that is read."""
    source, made, making = (Path(os.path.realpath(path)) for path in (checkpoint, out, unfinished(out)))
    if source in (made, *made.parents):
        raise InputError(f"{out}: lies in the checkpoint that is read ({checkpoint}); give an -o outside of it")
    if making in (source, *source.parents):
        raise InputError(f"{out}: is made in {making}, where the checkpoint that is read lies; give another -o")


def _plan(to: str) -> Plan:
    if not os.path.exists(to):
        raise InputError(f'--to "{to}": no such file; {listed([*FORMS, "the file of a plan"])} work')
    return load_plan(to)


def _forget_peak() -> None:
    """Let the kernel count the most memory from here on: importing and planning may have had more."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def memory_bytes(word: str) -> int:
    """By the kernel's account of this process: the memory that it has (``VmRSS``), and the most it has had (``VmHWM``).

    Elsewhere than on Linux both are the most, which there a process may have from the one that started it.
    """
    account = Path("/proc/self/status")
    if not account.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return next(int(line.split()[1]) for line in account.read_text().splitlines() if line.startswith(f"{word}:")) * 1024


def _graph(plans: Sequence[tuple[Plan | None, str | None]], model: str | None) -> Graph | None:
    """The model's graph: of MODEL, or of what the first plan names; None where there is neither."""
    for plan, path in plans:
        if plan is not None:
            return model_of(plan, str(path), model)
    return None if model is None else load_model(model, None, "float32")


def form_outputs(catalogue: Catalogue, to: str, graph: Graph | None) -> Sequence[Output]:
    """The files of one of ``FORMS``."""
    if to != "megatron":
        return dense_outputs(catalogue)
    if graph is None:
        raise InputError("--to megatron: Megatron's tensors are made of the model's; --model MODEL says what it is")
    return megatron_outputs(catalogue, graph)


def left_out(catalogue: Catalogue, to: str) -> tuple[str, ...]:
    """What one of ``FORMS`` has no place for, by name: states of the optimizer, buffers, whatever else there is. What
    is written for a plan has a place for everything."""
    numbers = dict.fromkeys(state for _, state in catalogue.scalars)
    states = () if to == "megatron" else (*catalogue.states, *numbers)
    buffers = tuple(catalogue.buffers) if to == "megatron" else ()
    # The iteration of Megatron.
    placed = {"steps"} if to == "megatron" else set()
    others = (key for key, value in catalogue.rest.items() if key not in placed and not _nothing(value))
    return (*states, *buffers, *others)


def _nothing(value: object) -> bool:
    return value is None or (isinstance(value, (int, float, dict)) and not value)


def plan_outputs(catalogue: Catalogue, goal: Target) -> Sequence[Output]:
    """The files that the framework of a plan loads."""
    return deepspeed_outputs(catalogue, goal) if goal.plan.target == "deepspeed" else dcp_outputs(catalogue, goal)
