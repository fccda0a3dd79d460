"""Data parallelism: each device has all of the model and its share of the batch."""

from partita.draft import Draft, op_assign, op_order, op_trans
from partita.plan import Axis


def data_parallel(draft: Draft) -> None:
    """``micro_batches``: turns of a step (gradient accumulation)."""
    op_assign(draft, draft.blocks, draft.devices, data=len(draft.devices))
    op_trans(draft, draft.blocks, "batch", Axis("micro", draft.argument("micro_batches", 1), "turns"))
    op_order(draft, "1f1b")
