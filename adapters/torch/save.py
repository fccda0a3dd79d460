"""Save the whole model as one device would: dense safetensors under the model's own names.

Tensor-parallel pieces are joined and padding is stripped, weights that Megatron's layers keep transposed are turned
back, a shared parameter is written once, by its owner. Each stage writes its own file, so that no process ever holds
more than its stage; an index names the file of each parameter, the way HuggingFace writes large models.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

from partita.adapters.torch.groups import Groups
from partita.adapters.torch.runtime import Runtime
from partita.adapters.torch.stage import StageModule
from partita.adapters.torch.weights import join
from partita.errors import InputError
from partita.files import write_text

Gather = Callable[[nn.Parameter], AbstractContextManager[object]]


def save_dense(runtime: Runtime, folder: str | Path, gather: Gather = lambda parameter: nullcontext()) -> None:
    """Write ``model.safetensors``, or one file a stage and ``model.safetensors.index.json``. Collective over all ranks.

    ``gather`` makes a parameter whole while it is read (ZeRO-3). Each file appears whole or not at all.
    """
    try:
        # On every rank: where it can't be made, none waits for another.
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: can't be made: {error.strerror}") from None
    program, place = runtime.program, runtime.place
    stages = len(program.pieces)
    files = ["model.safetensors"]
    if stages > 1:
        files = [f"model-{stage + 1:05d}-of-{stages:05d}.safetensors" for stage in range(stages)]
    writes = place.data == 0 and place.tensor == 0
    tensors = dense_parameters(runtime.stage, runtime.groups, gather, writes)
    if writes:
        _write(tensors, Path(folder), files[place.stage])
        if stages > 1 and place.stage == 0:
            names = {name: files[p.stage] for p in program.pieces for name in p.parameters if name not in p.copies}
            text = json.dumps({"metadata": {}, "weight_map": dict(sorted(names.items()))}, indent=1) + "\n"
            write_text(Path(folder) / "model.safetensors.index.json", text)
    # Nobody goes on before all of it is there.
    dist.barrier(group=runtime.groups.values)


def dense_parameters(stage: StageModule, groups: Groups, gather: Gather, keep: bool) -> dict[str, Tensor]:
    """The stage's own parameters, dense, on the CPU of the rank that keeps them. Collective over the stage's ranks."""
    found = {}
    for name, parameter in stage.parameters_by_name.items():
        if name in stage.piece.copies:
            continue
        with gather(parameter), torch.no_grad():
            value = (parameter.t() if name in stage.flipped else parameter).detach().contiguous().clone()
        shard = stage.piece.parameters[name]
        if shard is not None:
            pieces = [torch.empty_like(value) for _ in range(shard.pieces)]
            dist.all_gather(pieces, value, group=groups.tensor)
            value = join(pieces, shard)
        if keep:
            found[name] = value.cpu().contiguous()
    return found


def _write(tensors: dict[str, Tensor], folder: Path, file: str) -> None:
    temporary = folder / f".{file}"
    try:
        save_file(tensors, temporary, metadata={"format": "pt"})
        os.replace(temporary, folder / file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"{folder / file}: can't be written: {error.strerror or error}") from None
