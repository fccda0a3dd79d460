"""Context parallelism: each device has a part of the tokens throughout; keys and values are gathered for attention."""

from partita.draft import Draft, op_assign, op_order, op_trans
from partita.plan import Axis


def context_parallel(draft: Draft) -> None:
    """``cp`` devices share a sequence (default all), the others are data-parallel copies."""
    devices = len(draft.devices)
    cp = draft.argument("cp", devices, of=devices)
    op_assign(draft, draft.blocks, draft.devices, data=devices // cp, context=cp)
    op_trans(draft, draft.blocks, "sequence", "context")
    op_trans(draft, draft.blocks, "batch", Axis("micro", draft.argument("micro_batches", 1), "turns"))
    op_order(draft, "1f1b")
