"""Stages that differ, for `partita plan MODEL … --plan-function wide_end.py:wide_end`.

The first half of the blocks is copied over its devices and takes small micro-batches. The second half, with the large
head, is cut over its devices and takes larger ones, so that its products stay large.
"""

from partita.draft import Draft, op_assign, op_order, op_trans
from partita.plan import Axis


def wide_end(draft: Draft) -> None:
    """``first`` and ``last`` are the micro-batches of the two halves."""
    front, back = draft.shares(2)
    start, end = draft.parts(draft.blocks, 2)
    op_assign(draft, start, front, data=len(front))
    op_assign(draft, end, back, tensor=len(back))
    for dim in ("heads", "hidden"):
        op_trans(draft, end, dim, "tensor")
    op_trans(draft, start, "batch", Axis("micro", draft.argument("first", 4), "turns"))
    op_trans(draft, end, "batch", Axis("micro", draft.argument("last", 2), "turns"))
    op_order(draft, "1f1b")
