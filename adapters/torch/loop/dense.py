"""The dense model out of the ranks' parts, as the model's own state_dict had it."""

from __future__ import annotations

from contextlib import nullcontext

from torch import Tensor, nn

from partita.adapters.torch.loop.facade import CHILD
from partita.adapters.torch.loop.loop import Loop
from partita.adapters.torch.loop.share import Move, move
from partita.adapters.torch.save import Gather, dense_parameters


def dense_state(loop: Loop, module: nn.Module, gather: Gather | None) -> dict[str, Tensor]:
    """Parameters and persistent buffers by their names in the model, on the CPU; parameters on rank 0 alone, but where
    each rank has all of them. Collective over all ranks.

    ``gather`` makes a parameter whole while it is read (ZeRO-3).
    """
    rank, program = loop.groups.rank, loop.program
    buffers = {
        name: value.detach().cpu()
        for name, value in nn.Module.state_dict(module).items()
        if not name.startswith(f"{CHILD}.")
    }
    alone = loop.alone and gather is None
    keeps = alone or (loop.place.data == 0 and loop.place.tensor == 0)
    mine = dense_parameters(loop.stage, gather or (lambda parameter: nullcontext()), keeps)
    found: dict[str, Tensor] = dict(mine) if alone or rank == 0 else {}
    if not alone:
        for piece in program.pieces:
            keeper = program.devices_of[piece.stage][0]
            for name in piece.parameters:
                if name in piece.copies or keeper == 0 or rank not in (keeper, 0):
                    continue
                dense = loop.dense[name]
                # One at a time: rank 0 holds what it has received on the CPU.
                held = {(name,): mine[name].to(loop.device)} if rank == keeper else {}
                one = Move((name,), keeper, 0, dense.shape, dense.dtype)
                arrived = move([one], held, rank, loop.groups.line.values, loop.device)
                if rank == 0:
                    found[name] = arrived[name,].cpu()
    if not found:
        return {}
    values = {**buffers, **found}
    return {key: values[loop.names.get(key, key)] for key in loop.keys if loop.names.get(key, key) in values}
