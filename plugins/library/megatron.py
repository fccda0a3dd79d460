"""Megatron's tensor parallelism (Shoeybi et al., 2019): layers cut by columns, then rows; the vocabulary too."""

from partita.draft import Draft, op_assign, op_order, op_trans
from partita.plan import Axis


def megatron(draft: Draft) -> None:
    """``tp`` devices share every layer (default all), the others are data-parallel copies."""
    devices = len(draft.devices)
    tp = draft.argument("tp", devices, of=devices)
    op_assign(draft, draft.blocks, draft.devices, data=devices // tp, tensor=tp)
    op_trans(draft, draft.blocks, "classes", "tensor")
    op_trans(draft, draft.blocks, "batch", Axis("micro", draft.argument("micro_batches", 1), "turns"))
    op_order(draft, "1f1b")
