"""Passes apart, for `partita plan MODEL … --plan-function passes_apart.py:passes_apart`: a device for each early pass.

Early passes have no gradient, so their devices only go forward. What is left of the devices shares the last pass, which
is trained: its stages are ordered by the graph of stages, kFkB.
"""

from partita.draft import Draft, op_assign, op_order, op_trans
from partita.plan import Axis


def passes_apart(draft: Draft) -> None:
    """``passes`` of the model (AlphaFold2: 3); ``k`` of kFkB."""
    passes = draft.argument("passes", 3)
    *early, (last,) = draft.passes(passes, 1)
    for (blocks,), device in zip(early, draft.devices, strict=False):
        op_assign(draft, blocks, [device])
    rest = draft.devices[passes - 1 :]
    for blocks, device in zip(draft.parts(last, len(rest)), rest, strict=True):
        op_assign(draft, blocks, [device])
    op_trans(
        draft, draft.blocks, "batch", Axis("micro", draft.argument("micro_batches", 2 * len(draft.devices)), "turns")
    )
    op_order(draft, "kfkb", k=draft.argument("k", 1))
