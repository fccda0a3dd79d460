"""The end of a step: gradients added up over the copies of a stage, the update, what the copies updated gathered.

ZeRO (Rajbhandari et al., 2020) decides when: stage 0 adds all gradients up at the end, stage 1 only the part that each
copy updates; from stage 2 on that is done block by block in the backward pass. Stages 1 and 2 gather the weights after
the update, stage 3 in every turn.
"""

from __future__ import annotations

import numpy as np

from partita.cluster.model import Device, Link
from partita.cost.collective import all_gather_seconds, all_reduce_seconds, reduce_scatter_seconds
from partita.cost.stage import Values
from partita.cost.state import state_bytes
from partita.profile.rates import ADAM_BYTES


def reduce_seconds(size_bytes: float, zero: int, copies: int, link: Link) -> float:
    """Adding up gradients of that many bytes."""
    if zero == 0:
        return all_reduce_seconds(size_bytes, copies, link)
    return reduce_scatter_seconds(size_bytes, copies, link) if zero == 1 else 0.0


def gather_seconds(size_bytes: float, zero: int, copies: int, link: Link) -> float:
    """Gathering the weights, of that many bytes in all."""
    return all_gather_seconds(size_bytes, copies, link) if zero in (1, 2) else 0.0


def update_seconds(
    device: Device, precision: str, optimizer: str, trained: Values, tensors: Values, zero: Values, copies: Values
) -> Values:
    """The update reads and writes the optimizer's state and the weights, and reads the gradients.

    It is in proportion to the ``trained`` elements and the ``tensors`` that hold them: blocks' parts add up to a
    stage's, with ``update_start_seconds`` once. A process on the host spends an op's time on each tensor in the update,
    and with copies in putting it into a bucket and taking it out again.
    """
    state = state_bytes(precision, optimizer, 0, 1)
    shard = np.where(zero >= 1, trained / copies, trained)
    moved = shard * (2 * state.optimizer + 2 * state.parameters + state.gradients)
    rates = device.measured.rates if device.measured is not None else None
    if rates is not None and rates.adam and optimizer == "adam":
        update = rates.adam_line[1] * moved / ADAM_BYTES
    else:
        update = moved / (device.memory_bytes_per_second * device.memory_efficiency)
    if device.on_host:
        update += tensors * device.op_seconds * np.where(copies > 1, 3, 1)
    return update


def update_start_seconds(device: Device, optimizer: str) -> float:
    """What an update takes however little it updates; only a profile says."""
    rates = device.measured.rates if device.measured is not None else None
    return rates.adam_line[0] if rates is not None and rates.adam and optimizer == "adam" else 0.0
