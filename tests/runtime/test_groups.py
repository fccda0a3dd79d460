"""A group is numbered as its devices are listed, whatever order torch has them in."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from partita.adapters.torch.wires import ProcessGroup
from tests.ranks.pool import Pool

LISTED = (2, 0, 1)


def talk() -> tuple[int, list[int], list[int], int, list[str]]:
    rank = dist.get_rank()
    group = ProcessGroup(dist.new_group(list(LISTED))).listed(LISTED)
    mine = torch.tensor([10 * rank])
    return (
        group.rank,
        [int(part) for part in group.gather(mine)],
        [int(part) for part in group.exchange([mine + place for place in range(3)])],
        int(group.scatter_sum([mine + place for place in range(3)])),
        group.objects(f"rank {rank}"),
    )


@pytest.mark.slow
def test_collectives_keep_the_order_of_the_list(pool: Pool) -> None:
    for rank, (number, gathered, exchanged, total, names) in enumerate(pool.run(talk, 3)):
        assert number == LISTED.index(rank)
        assert gathered == [20, 0, 10]
        # Everyone sends part `number` to the one who is listed there.
        assert exchanged == [20 + number, 0 + number, 10 + number]
        assert total == 30 + 3 * number
        assert names == ["rank 2", "rank 0", "rank 1"]
