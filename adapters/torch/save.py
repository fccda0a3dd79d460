"""Save the whole model as one device would: dense safetensors under the model's own names.

Tensor-parallel pieces are joined and padding is stripped, weights that Megatron's layers keep transposed are turned
back, a shared parameter is written once, by its owner. Each stage writes its own file, so that no process ever holds
more than its stage; an index names the file of each parameter, the way HuggingFace writes large models.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

from partita.adapters.torch.begin import agree
from partita.adapters.torch.groups import Groups
from partita.adapters.torch.runtime import Runtime
from partita.adapters.torch.stage import StageModule
from partita.adapters.torch.weights import join
from partita.adapters.torch.whole import write_whole
from partita.errors import InputError, PartitaError
from partita.files import write_text

Gather = Callable[[nn.Parameter], AbstractContextManager[object]]


def save_dense(runtime: Runtime, folder: str | Path, gather: Gather = lambda parameter: nullcontext()) -> None:
    """Write ``model.safetensors``, or one file a stage and ``model.safetensors.index.json``. Collective over all ranks.

    ``gather`` makes a parameter whole while it is read (ZeRO-3). Each file appears whole or not at all; where one
    can't be written, InputError says which, on every rank.
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
    failure: PartitaError | None = None
    try:
        if writes:
            write_whole(
                Path(folder) / files[place.stage], lambda path: save_file(tensors, path, metadata={"format": "pt"})
            )
        if writes and stages > 1 and place.stage == 0:
            names = {name: files[p.stage] for p in program.pieces for name in p.parameters if name not in p.copies}
            text = json.dumps({"metadata": {}, "weight_map": dict(sorted(names.items()))}, indent=1) + "\n"
            write_text(Path(folder) / "model.safetensors.index.json", text)
    except PartitaError as error:
        failure = error
    # Nobody goes on before all of it is there, or where some of it will never be.
    agree(runtime.groups.values, failure, torch.zeros((), dtype=torch.float64, device=runtime.device))


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
