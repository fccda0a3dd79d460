"""kFkB on a graph of stages (GraphPipe, Jeon et al., 2025, section 5): rounds of k forwards and k backwards.

A stage warms up with the forwards that the stages which read from it need, and one round more: what it holds follows
from the longest path behind it in the graph, min(c, k·(1 + that many stages)) of c micro-batches, and not from how many
stages come after it in the list. So the stages of branches that run side by side hold as little as the first stages of
short pipelines. On a chain with k = 1 this is 1F1B.

``depth`` lets the forwards of so many more rounds go ahead over each boundary, as in 1F1B: min(c, k·(1 + (1 + depth)·
that many stages)) are held. Where transfers take about as long as a forward, they hide behind these. Stages may each
have their own, for what they send: one whose values have far to go holds more, and the others what fits.

Stages may have unlike numbers of micro-batches: a turn waits for the turns whose samples it overlaps with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from partita.errors import PlanError, listed
from partita.schedules.one_f_one_b import check_depth, in_rounds
from partita.schedules.turn import Argument, Turn, check_counts


def kfkb(stages: int, micro_batches: int, k: int = 1, depth: Argument = 0) -> dict[int, list[Turn]]:
    """Each stage's order of turns in a chain of stages."""
    check_counts(stages, micro_batches)
    return kfkb_on([micro_batches] * stages, [(stage, stage + 1) for stage in range(stages - 1)], k, depth)


def kfkb_on(
    counts: Sequence[int], edges: Iterable[tuple[int, int]], k: int = 1, depth: Argument = 0
) -> dict[int, list[Turn]]:
    """The same in any graph: ``edges`` are pairs (maker, reader) of stages, the reader later in the list.

    PlanError for a k below 1, for a depth below 0, and for depths that aren't one for each stage.
    """
    if k < 1:
        raise PlanError(f"k={k}: the forwards, and the backwards, that a stage runs in one go; 1 is the least")
    depths = [depth] * len(counts) if isinstance(depth, int) else list(depth)
    if len(depths) != len(counts):
        raise PlanError(f"depth={listed(depths)}: of {len(depths)} stages, where there are {len(counts)}")
    for one in depths:
        check_depth(one)
    readers: dict[int, list[int]] = {}
    for maker, reader in edges:
        readers.setdefault(maker, []).append(reader)
    return in_rounds(counts, readers, [1 + one for one in depths], k)
