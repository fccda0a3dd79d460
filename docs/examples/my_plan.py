"""A plan of one's own, for `partita plan MODEL … --plan-function my_plan.py:light_start`.

In 1F1B the first of two stages holds twice as many micro-batches as the second. Here it alone computes its values again
in the backward pass, and gets fewer layers for that.
"""

from partita.draft import Draft, op_assign, op_order, op_trans, recompute
from partita.plan import Axis


def light_start(draft: Draft) -> None:
    """Two groups of devices; the first has the first block and ``first`` others (default: a third of the rest)."""
    blocks = draft.blocks
    first = draft.argument("first", max(1, len(blocks) // 3))
    start, rest = blocks[: first + 1], blocks[first + 1 :]
    front, back = draft.shares(2)
    op_assign(draft, start, front, data=len(front))
    op_assign(draft, rest, back, data=len(back))
    recompute(draft, start)
    op_trans(draft, draft.blocks, "batch", Axis("micro", draft.argument("micro_batches", 4), "turns"))
    op_order(draft, "1f1b")
