"""Interlaced pipeline (SuperScaler, section 5): embedding and head are cut over all devices, and their turns lie
between those of the pipeline that the same devices are."""

from partita.draft import Draft, op_assign, op_order, op_trans
from partita.errors import PlanError
from partita.plan import Axis


def interlaced(draft: Draft) -> None:
    """``pp`` stages between embedding and head (default: all devices); ``extra`` micro-batches in flight beyond those
    of 1F1B (default: as many as make the step shortest)."""
    if len(draft.blocks) < 3:
        raise PlanError(
            f'"{draft.graph.name}" has {len(draft.blocks)} blocks; an embedding, a head and one between are needed'
        )
    first, *layers, last = draft.blocks
    pp = draft.argument("pp", len(draft.devices), of=len(draft.devices))
    data, shares = len(draft.devices) // pp, draft.shares(pp)
    # Copy after copy, and in each the devices of all stages.
    everyone = [share[copy] for copy in range(data) for share in shares]
    op_assign(draft, [first], everyone, data=data, tensor=pp)
    for blocks, devices in zip(draft.parts(layers, pp), shares, strict=True):
        op_assign(draft, blocks, devices, data=data)
    op_assign(draft, [last], everyone, data=data, tensor=pp)
    op_trans(draft, [first, last], "classes", "tensor")
    op_trans(draft, draft.blocks, "batch", Axis("micro", draft.argument("micro_batches", 2 * pp), "turns"))
    op_order(draft, "interlaced", extra=draft.argument("extra", pp - 1, 0))
