"""What a plan function says must be of this model, these devices and whole numbers: said at once, where it is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, get_args

from partita.errors import PlanError, listed, nearest
from partita.schedules.turn import Phase, Turn

if TYPE_CHECKING:
    from partita.draft import Draft


def require_size(axis: str, size: object) -> None:
    """PlanError for a size of an axis that can't be."""
    if not isinstance(size, int) or size < 1:
        raise PlanError(f'axis "{axis}" has the size {size!r}; a whole number, at least 1, works')


def known_blocks(draft: Draft, blocks: Iterable[str]) -> tuple[str, ...]:
    """The blocks, all of which the model has."""
    if isinstance(blocks, str):
        raise PlanError(f'"{blocks}" stands where a list of blocks is needed; ["{blocks}"] works')
    found = tuple(blocks)
    for block in found:
        if block not in draft.graph.block_ops:
            raise PlanError(f'model "{draft.graph.name}" has no block "{block}".{nearest(str(block), draft.blocks)}')
    return found


def require_free(draft: Draft, blocks: tuple[str, ...], devices: Sequence[int]) -> None:
    """PlanError unless these can be the next stage's."""
    where = f"stage {len(draft.stages)}"
    if not blocks:
        raise PlanError(f"{where} has no blocks; at least one is needed")
    taken = {block: stage.name for stage in draft.stages for block in stage.blocks}
    if again := [block for block in blocks if block in taken]:
        raise PlanError(f'{where}: block "{again[0]}" is in "{taken[again[0]]}" already')
    if twice := [block for block in blocks if blocks.count(block) > 1]:
        raise PlanError(f'{where}: block "{twice[0]}" is listed twice')
    for place, device in enumerate(devices):
        if device not in draft.devices:
            count = len(draft.devices)
            raise PlanError(f"{where}: there is no device {device!r}; {count} are given, 0 to {count - 1}")
        if device in devices[:place]:
            raise PlanError(f"{where}: device {device} is listed twice")


def require_parts(draft: Draft, passes: int, parts: int) -> None:
    """PlanError unless a pass of a recycled model has a block for each part whose parameters all passes share."""
    shared = draft.graph.shared_parameters.values()
    blocks = {count: len({found[0] for found in shared if len(found) == count}) for count in map(len, shared)}
    own = blocks[passes]
    if 1 <= parts <= own:
        return
    most = max(blocks, key=lambda count: (blocks[count], count))
    works = "only 1 part works" if own == 1 else f"1 to {own} parts work"
    more = f"; over {most} passes it shares {blocks[most]}" if blocks[most] > own else ""
    raise PlanError(
        f'"{draft.graph.name}" can\'t be divided into {parts} parts a pass: over {passes} passes it shares the '
        f"parameters of {own} block{'s' if own > 1 else ''}, so {works}{more}"
    )


def require_turn(draft: Draft, device: int, turn: object) -> None:
    """PlanError for what is no turn of a stage that the device serves."""
    where = f"turns of device {device!r}"
    if not isinstance(turn, Turn):
        raise PlanError(f'{where}: {turn!r} is no turn; Turn(0, "forward", 0) is one')
    if turn.phase not in get_args(Phase):
        raise PlanError(f'{where}: there is no phase "{turn.phase}".{nearest(str(turn.phase), get_args(Phase))}')
    served = [index for index, stage in enumerate(draft.stages) if device in stage.devices]
    if turn.stage not in served:
        raise PlanError(f"{where}: {turn} is of stage {turn.stage}; the device serves {listed(served or ['none'])}")
    micro = draft.stages[turn.stage].micro_batches
    if turn.micro not in range(micro):
        raise PlanError(f"{where}: {turn} is of micro-batch {turn.micro}; there are {micro}, from 0")
