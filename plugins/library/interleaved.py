"""Each device serves several stages, so that the pipeline fills sooner: interleaved 1F1B (Narayanan et al., 2021), and
breadth-first (Lamy-Poirier, 2023)."""

from partita.draft import Draft, op_assign, op_order, op_trans
from partita.plan import Axis


def interleaved(draft: Draft) -> None:
    """``pp`` groups of devices (default all) with ``chunks`` stages each, of which ``tp`` devices share each layer."""
    _in_chunks(draft, "interleaved")


def breadth_first(draft: Draft) -> None:
    """The same stages; a device takes all micro-batches through one of its stages, then through the next."""
    _in_chunks(draft, "breadth-first")


def _in_chunks(draft: Draft, order: str) -> None:
    tp, chunks = draft.argument("tp", 1, of=len(draft.devices)), draft.argument("chunks", 2)
    pp = draft.argument("pp", max(1, len(draft.devices) // tp))
    shares = draft.shares(pp, tp)
    for index, blocks in enumerate(draft.parts(draft.blocks, pp * chunks)):
        op_assign(draft, blocks, shares[index % pp], data=len(shares[0]) // tp, tensor=tp)
    if tp > 1:
        op_trans(draft, draft.blocks, "classes", "tensor")
    op_trans(draft, draft.blocks, "batch", Axis("micro", draft.argument("micro_batches", 2 * pp), "turns"))
    op_order(draft, order, lanes=pp)
