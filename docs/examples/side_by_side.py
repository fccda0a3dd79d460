"""Branches side by side, for `partita plan MODEL … --plan-function side_by_side.py:side_by_side`.

The blocks of a branch come one after another, so runs of as many FLOPs are branches, or parts of them, where the
branches are alike. Stages of several branches don't wait for each other.
"""

from partita.draft import Draft, op_assign, op_order, op_trans
from partita.plan import Axis


def side_by_side(draft: Draft) -> None:
    """``stages`` (default: a device each), each with its copies, and so many ``micro_batches``."""
    count = draft.argument("stages", len(draft.devices))
    for blocks, devices in zip(draft.parts(draft.blocks, count), draft.shares(count), strict=True):
        op_assign(draft, blocks, devices, data=len(devices))
    op_trans(draft, draft.blocks, "batch", Axis("micro", draft.argument("micro_batches", 4), "turns"))
    op_order(draft, "kfkb")
