"""Which format a checkpoint is in, by its files, and its catalogue."""

from __future__ import annotations

import os
from pathlib import Path

from partita.adapters.checkpoint.catalogue import Catalogue, require_whole
from partita.adapters.checkpoint.read_dcp import is_dcp, read_dcp
from partita.adapters.checkpoint.read_deepspeed import deepspeed_folder, read_deepspeed
from partita.adapters.checkpoint.read_megatron import megatron_folder, read_megatron
from partita.adapters.checkpoint.read_resharded import read_resharded, resharded_folder
from partita.adapters.checkpoint.read_safetensors import read_safetensors, safetensors_files
from partita.adapters.checkpoint.target import Target
from partita.errors import InputError
from partita.graph import Graph

FORMS = (
    "known are a DeepSpeed folder (or one checkpoint of it), safetensors (a file, or a folder with model.safetensors "
    "or its index), torch's and Megatron's distributed checkpoints, and what partita reshard wrote"
)


def read_checkpoint(
    path: Path, by: Target | None = None, graph: Graph | None = None, weights: bool = False
) -> Catalogue:  # fmt: skip
    """The catalogue of the checkpoint at a path, found to be whole.

    ``by``: the plan that saved it, where it is given; ``graph``: the model, where it is known; ``weights``: the weights
    alone are wanted. InputError where nothing is there, where it is of no form that is known, or where parts lack.
    """
    # Of a name that is too long, or of links in a circle, this only says that nothing is there.
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file or folder")
    catalogue = _of_folder(path, by, graph, weights) if path.is_dir() else None
    if catalogue is None and (files := safetensors_files(path)):
        catalogue = read_safetensors(path, files)
    if catalogue is None:
        held = sorted(item.name for item in path.iterdir())[:5] if path.is_dir() else []
        has = f" (it has {', '.join(held)})" if held else ""
        raise InputError(f"{path}: is no checkpoint of a known form{has}; {FORMS}")
    require_whole(catalogue)
    return catalogue


def _of_folder(path: Path, by: Target | None, graph: Graph | None, weights: bool) -> Catalogue | None:
    if (folder := resharded_folder(path)) is not None:
        return read_resharded(folder)
    if (folder := deepspeed_folder(path)) is not None:
        return read_deepspeed(folder, by, weights)
    if (folder := megatron_folder(path)) is not None:
        if graph is None:
            raise InputError(f"{folder}: Megatron's tensors have names of its own; --model MODEL says what they are")
        return read_megatron(folder, graph)
    return read_dcp(path) if is_dcp(path) else None
