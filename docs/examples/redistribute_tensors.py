"""A matrix that four processes have by rows, by columns, and its gradient on the way back.

torchrun --nproc-per-node 4 redistribute_tensors.py
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import partita

mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("x",))
rank = dist.get_rank()
whole = torch.arange(40.0).reshape(5, 8)

# Rows 2, 2, 1 and 0 of 5: as torch.chunk cuts them.
rows = whole[2 * rank : 2 * rank + 2].clone().requires_grad_()
columns = partita.redistribute(rows, "x,-", "-,x", mesh)
assert torch.equal(columns, whole[:, 2 * rank : 2 * rank + 2])

columns.square().sum().backward()
assert torch.equal(rows.grad, 2 * rows)
print(f"rank {rank}: {tuple(rows.shape)} -> {tuple(columns.shape)}")
dist.destroy_process_group()
