"""Expert parallelism (Lepikhin et al., 2021): devices have their own samples and their own experts, and exchange
tokens between the two."""

from partita.draft import Draft, op_assign, op_order, op_trans
from partita.plan import Axis


def expert_parallel(draft: Draft) -> None:
    """``ep`` devices share the experts (default all), the others are data-parallel copies."""
    devices = len(draft.devices)
    ep = draft.argument("ep", devices, of=devices)
    op_assign(draft, draft.blocks, draft.devices, data=devices // ep, expert=ep)
    op_trans(draft, draft.blocks, "batch", "expert")
    op_trans(draft, draft.blocks, "experts", "expert")
    op_trans(draft, draft.blocks, "batch", Axis("micro", draft.argument("micro_batches", 1), "turns"))
    op_order(draft, "1f1b")
