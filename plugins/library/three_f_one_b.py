"""3F1B (SuperScaler, section 5): a recycled model runs forward several times, the last time alone with gradients; each
device has the same layers of every pass."""

from partita.draft import Draft, op_assign, op_order, op_trans
from partita.plan import Axis


def three_f_one_b(draft: Draft) -> None:
    """``pp`` groups of devices (default all), ``passes`` of the model through them (AlphaFold2: 3)."""
    passes = draft.argument("passes", 3)
    pp = draft.argument("pp", len(draft.devices))
    shares = draft.shares(pp)
    for runs in draft.passes(passes, pp):
        for blocks, devices in zip(runs, shares, strict=True):
            op_assign(draft, blocks, devices, data=len(devices))
    op_trans(draft, draft.blocks, "batch", Axis("micro", draft.argument("micro_batches", 2 * pp), "turns"))
    op_order(draft, "3f1b", passes=passes)
