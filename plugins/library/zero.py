"""ZeRO (Rajbhandari et al., 2020): data parallelism that keeps each part of the state on one of the devices."""

from partita.draft import Draft, divide_state
from partita.plugins.library.data_parallel import data_parallel


def zero_1(draft: Draft) -> None:
    """The optimizer's state is divided. ``micro_batches`` as in data parallelism."""
    data_parallel(draft)
    divide_state(draft, draft.blocks, 1)


def zero_2(draft: Draft) -> None:
    """And the gradients."""
    data_parallel(draft)
    divide_state(draft, draft.blocks, 2)


def zero_3(draft: Draft) -> None:
    """And the parameters, which are whole only while a block runs."""
    data_parallel(draft)
    divide_state(draft, draft.blocks, 3)
