"""What crosses between turns of unlike samples: every sample that a turn takes arrives once, from a turn that has it.

Nothing here is taken from how the parts were found. The two sides are held against each other by the streams: what one
device receives is what the other sends under the same name, which has the tensor, the stages and the samples in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from partita.spacetime.crossing import Rows
from partita.spacetime.program import Program, Task, Transfer
from partita.spacetime.prove_traffic import odd_transfer, said
from partita.spacetime.views import require_samples

Fail = Callable[[str], None]


def prove_message(
    program: Program, rows: Rows, device: int, task: Task, known: frozenset[Transfer], fail: Fail
) -> None:
    """A send or receive of some samples: they are samples of the device's turn, and as large as they must be."""
    part, stage, micro = task.transfer, task.stage, task.micro
    assert part is not None
    assert part.samples is not None
    assert micro is not None
    start, stop = part.samples
    mine = program.interval(device, stage, micro)
    if not mine[0] <= start < stop <= mine[1]:
        fail(f"has samples [{start}, {stop}), but the device takes [{mine[0]}, {mine[1]}) in this turn")
    whole = _whole(part, known)
    if whole is None:
        raise odd_transfer(part, known, f"device {device}, {task.kind} of samples [{start}, {stop})")
    other = whole.target if task.kind == "send" else whole.source
    if part != (wanted := rows.part(whole, part.samples)):
        fail(
            f"is {list(part.shape)} {part.dtype}, {part.bytes} bytes; [{start}, {stop}) of the {said(whole)} are "
            f"{list(wanted.shape)} {wanted.dtype}, {wanted.bytes} bytes"
        )
    if task.peer not in program.devices_of[other]:
        fail(f"goes to or comes from device {task.peer}, which isn't of stage {other}")


def prove_join(program: Program, device: int, task: Task, parts: Mapping[str, Transfer], fail: Fail) -> None:
    """A join: its parts are of what it makes, in order, and make up the turn's samples, each once.

    ``parts`` are the messages that the device has received, by name.
    """
    edge, micro = task.transfer, task.micro
    assert edge is not None
    assert micro is not None
    found: list[tuple[int, int]] = []
    for name in task.reads:
        part = parts.get(name)
        if part is None or part.samples is None or (part.tensor, part.what, part.source) != _is(edge):
            fail(f'joins "{name}", which is no part of the {said(edge)} that was received')
            return
        found.append(part.samples)
    require_samples(edge.tensor, device, program.interval(device, task.stage, micro), found)
    if found != sorted(found):
        fail(f"joins the samples {_listed(found)}: they must be in order")
    if task.writes != (edge.key(micro),):
        fail(f'is said to make {list(task.writes)}, and makes "{edge.key(micro)}"')


def _is(edge: Transfer) -> tuple[str, str, int]:
    return edge.tensor, edge.what, edge.source


def _whole(part: Transfer, known: frozenset[Transfer]) -> Transfer | None:
    ends = (*_is(part), part.target)
    return next((edge for edge in known if edge.parts and (*_is(edge), edge.target) == ends), None)


def _listed(found: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"[{start}, {stop})" for start, stop in found)
