"""Time and memory of blocks under a strategy: FLOPs, saved tensors, collectives, state. All of it formulas."""

from partita.cost.block import BlockCost
from partita.cost.collective import (
    all_gather_seconds,
    all_reduce_seconds,
    point_to_point_seconds,
    reduce_scatter_seconds,
)
from partita.cost.flops import block_flops, op_flops
from partita.cost.state import StateBytes, state_bytes

__all__ = [
    "BlockCost", "StateBytes", "all_gather_seconds", "all_reduce_seconds", "block_flops", "op_flops",
    "point_to_point_seconds", "reduce_scatter_seconds", "state_bytes",
]  # fmt: skip
