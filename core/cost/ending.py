"""The update at the end of a step. What is added up and gathered around it is in ``stage.Ending``."""

from __future__ import annotations

import numpy as np

from partita.cluster.model import Device
from partita.cost.stage import Values
from partita.cost.state import state_bytes
from partita.profile.rates import ADAM_BYTES


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
