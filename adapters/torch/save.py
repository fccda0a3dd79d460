"""Save the whole model as one device would: dense safetensors under the model's own names.

Tensor-parallel pieces are joined and padding is stripped, weights that Megatron's layers keep transposed are turned
back, a shared parameter is written once, by its owner. Each stage writes its own file, so that no process ever holds
more than its stage, the first stage also the model's buffers; an index names the file of each tensor, the way
HuggingFace writes large models.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from partita.adapters.torch.begin import agree
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
    program, rank = runtime.program, runtime.groups.rank
    stages = len(program.pieces)
    files = ["model.safetensors"]
    if stages > 1:
        files = [f"model-{stage + 1:05d}-of-{stages:05d}.safetensors" for stage in range(stages)]
    failure: PartitaError | None = None
    for place in program.places[rank]:
        writes = place.data == 0 and place.tensor == 0
        tensors = dense_parameters(runtime.stages[place.stage], gather, writes)
        if place.stage == 0:
            tensors |= {name: buffer.cpu().contiguous() for name, buffer in runtime.buffers.items()}
        try:
            if writes:
                _write(tensors, Path(folder) / files[place.stage])
        except PartitaError as error:
            # The next stage's parameters are collective: the others would wait for this rank.
            failure = failure or error
    try:
        if stages > 1 and rank == program.devices_of[0][0]:
            names = {name: files[p.stage] for p in program.pieces for name in p.parameters if name not in p.copies}
            names |= dict.fromkeys(runtime.buffers, files[0])
            text = json.dumps({"metadata": {}, "weight_map": dict(sorted(names.items()))}, indent=1) + "\n"
            write_text(Path(folder) / "model.safetensors.index.json", text)
    except PartitaError as error:
        failure = failure or error
    # Nobody goes on before all of it is there, or where some of it will never be.
    agree(runtime.groups.everyone, failure, torch.zeros((), dtype=torch.float64, device=runtime.device))


def _write(tensors: dict[str, Tensor], path: Path) -> None:
    write_whole(path, lambda unfinished: save_file(tensors, unfinished, metadata={"format": "pt"}))


def dense_parameters(stage: StageModule, gather: Gather, keep: bool) -> dict[str, Tensor]:
    """The stage's own parameters, dense, on the CPU of the rank that keeps them. Collective over the stage's ranks."""
    found = {}
    for name, parameter in stage.parameters_by_name.items():
        if name in stage.piece.copies:
            continue
        with gather(parameter), torch.no_grad():
            divided = stage.divided(name)
            value = parameter.detach() if divided is None else divided.whole()
            value = (value.t() if name in stage.flipped else value).contiguous().clone()
        shard = stage.piece.parameters[name]
        if shard is not None:
            value = join(stage.context.groups[shard.axis].gather(value), shard)
        if keep:
            found[name] = value.cpu().contiguous()
    return found
