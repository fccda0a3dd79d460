"""Sequence parallelism (Korthikanti et al., 2022): between the layers that tensor parallelism cuts, each device has a
part of the tokens."""

from partita.draft import Draft, op_trans
from partita.plugins.library.megatron import megatron


def sequence_parallel(draft: Draft) -> None:
    """``tp`` and ``micro_batches`` as in tensor parallelism."""
    megatron(draft)
    op_trans(draft, draft.blocks, "sequence", "tensor")
