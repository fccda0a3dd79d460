"""The model-parallel unit that DeepSpeed's engine asks: who holds the same parameters, who makes up one model."""

from __future__ import annotations

import torch.distributed as dist

from partita.adapters.torch.groups import Groups
from partita.adapters.torch.wires import ProcessGroup
from partita.spacetime.program import Program


class Mpu:
    """DeepSpeed's ``mpu`` for a program.

    The *model-parallel* rank numbers a copy's devices (stage, then tensor-parallel rank): DeepSpeed names checkpoint
    files by it. Norms ask for the *tensor-parallel* rank, to count whole parameters once.
    """

    def __init__(self, program: Program, groups: Groups):
        self._program, self._place = program, program.only_place(groups.rank)
        # DeepSpeed can't take None for a group of one.
        alone, stage = _groups_of_one(), self._place.stage
        found = (groups.model, groups.data.get(stage), groups.axes[stage].get("tensor"))
        self._model, self._data, self._tensor = (
            group.process_group if isinstance(group, ProcessGroup) else alone for group in found
        )

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        return self._model

    def get_model_parallel_world_size(self) -> int:
        return dist.get_world_size(self._model)

    def get_model_parallel_rank(self) -> int:
        return self._place.stage * self._program.widths[self._place.stage] + self._place.tensor

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        return self._data

    def get_data_parallel_world_size(self) -> int:
        return dist.get_world_size(self._data)

    def get_data_parallel_rank(self) -> int:
        return self._place.data

    def get_tensor_model_parallel_group(self) -> dist.ProcessGroup:
        return self._tensor

    def get_tensor_model_parallel_world_size(self) -> int:
        return self._program.widths[self._place.stage]

    def get_tensor_model_parallel_rank(self) -> int:
        return self._place.tensor


def _groups_of_one() -> dist.ProcessGroup:
    mine = None
    for rank in range(dist.get_world_size()):
        group = dist.new_group([rank])
        if rank == dist.get_rank():
            mine = group
    assert mine is not None
    return mine
