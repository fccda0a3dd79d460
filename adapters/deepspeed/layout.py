"""What a rank's checkpoint files say of themselves: which part of which parameter of the model each tensor is.

DeepSpeed's files have a rank's own tensors, by the names of its modules and in the order of its optimizer; which part
of the model these are is known to the plan alone. It is written beside them, so that ``partita reshard`` needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.base_optimizer import ZeROOptimizer
from deepspeed.runtime.engine import DeepSpeedEngine
from torch import Tensor

from partita.adapters.torch.stage import StageModule
from partita.errors import InputError


def described(
    engine: DeepSpeedEngine, stage: StageModule, stages: int, coordinates: dict[str, int], buffers: Mapping[str, Tensor]
) -> dict[str, Any]:
    """The layout of this rank's tensors, as plain values.

    ``parameters``: by the model's names, the dense shape, how it is cut (None: whole) and which piece this is, whether
    it is stored transposed, and whether another stage owns it. ``groups``: the names in each of the optimizer's groups
    in order, where the optimizer's own state has numbers for them; a parameter of another's group is None.
    ``buffers``: the model's, which are in no stage, in the first stage's files.
    """
    return {
        "version": 1, "stages": stages, "parameters": _parts(stage, coordinates), "groups": _groups(engine, stage),
        "buffers": {name: buffer.cpu() for name, buffer in buffers.items()} if stage.piece.stage == 0 else {},
    }  # fmt: skip


def require_same_parts(path: Path, said: Mapping[str, Any], stage: StageModule, coordinates: dict[str, int]) -> None:
    """InputError where a rank's file says that its tensors are other parts of the model than this rank's.

    ``said``: by the model's names, as ``described`` has them. Parts of one shape may be different ones: of another
    piece, or of a tensor that is cut whole instead of by its parts.
    """
    for name, own in _parts(stage, coordinates).items():
        if name in said and _place(said[name]) != _place(own):
            raise InputError(
                f'{path}: its part of "{name}" isn\'t the one that this plan gives the rank; partita reshard writes it '
                "for this plan"
            )


def _place(part: Mapping[str, Any]) -> tuple[Any, ...]:
    shard = part["shard"] or {}
    return list(part["shape"]), part["piece"], *(shard.get(key) for key in ("dim", "parts", "pieces", "padded"))


def _parts(stage: StageModule, coordinates: dict[str, int]) -> dict[str, dict[str, Any]]:
    parameters = {}
    for name, shard in stage.piece.parameters.items():
        held = stage.parameters_by_name[name]
        shape = list(getattr(held, "ds_shape", held.shape))
        shape = shape[::-1] if name in stage.flipped else shape
        if shard is not None:
            shape[shard.dim] = shard.size
        parameters[name] = {
            "shape": shape, "shard": None if shard is None else asdict(shard),
            "piece": 0 if shard is None else coordinates[shard.axis], "flipped": name in stage.flipped,
            "copy": name in stage.piece.copies,
        }  # fmt: skip
    return parameters


def _groups(engine: DeepSpeedEngine, stage: StageModule) -> list[list[str | None]] | None:
    optimizer = engine.optimizer
    if optimizer is None or isinstance(optimizer, ZeROOptimizer):
        # Their own files have the names.
        return None
    names = {id(parameter): name for name, parameter in stage.trained.items()}
    groups = getattr(optimizer, "fp16_groups", None)
    if groups is None:
        groups = [group["params"] for group in optimizer.param_groups]
    return [[names.get(id(p)) for p in group if isinstance(p, torch.Tensor)] for group in groups]
