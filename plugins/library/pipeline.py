"""Pipelines of consecutive stages: GPipe (Huang et al., 2019), 1F1B (Narayanan et al., 2021), ZB-H1 (Qi et al., 2023);
each with data and tensor parallelism inside the stages."""

from partita.draft import Draft, op_assign, op_order, op_trans
from partita.plan import Axis


def staged(draft: Draft, pp: int | None = None) -> None:
    """``pp`` stages (default: what tp leaves) of equal numbers of devices, of which ``tp`` share each layer."""
    tp = draft.argument("tp", 1, of=len(draft.devices))
    pp = draft.argument("pp", pp or max(1, len(draft.devices) // tp))
    for blocks, devices in zip(draft.parts(draft.blocks, pp), draft.shares(pp, tp), strict=True):
        op_assign(draft, blocks, devices, data=len(devices) // tp, tensor=tp)
    if tp > 1:
        op_trans(draft, draft.blocks, "classes", "tensor")
    op_trans(draft, draft.blocks, "batch", Axis("micro", draft.argument("micro_batches", 2 * pp), "turns"))


def gpipe(draft: Draft) -> None:
    """All forwards, then all backwards."""
    staged(draft)
    op_order(draft, "gpipe")


def one_f_one_b(draft: Draft) -> None:
    """One forward and one backward in turn; ``depth`` more micro-batches go ahead over each boundary (default 0)."""
    staged(draft)
    op_order(draft, "1f1b", depth=draft.argument("depth", 0, least=0))


def zero_bubble(draft: Draft) -> None:
    """Weight gradients are computed where a device would wait."""
    staged(draft)
    op_order(draft, "zb-h1")
