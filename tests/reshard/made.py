"""Checkpoints made by hand in DeepSpeed's form, of tensors with numbers that say where they belong."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

STATES = ("exp_avg", "exp_avg_sq")
# Three tensors that a chunk's bounds fall into, and one of a single number.
SHAPES: Mapping[str, tuple[int, ...]] = {"a.weight": (7, 5), "a.bias": (7,), "b.weight": (3, 2, 4), "scale": ()}


def numbers(name: str, state: str) -> Tensor:
    """A tensor's values: another range for every name and state."""
    place = [*SHAPES].index(name) * 3 + ("parameter", *STATES).index(state)
    shape = SHAPES[name]
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + 1000 * place


def zero1(folder: Path, copies: int = 2, tag: str = "global_step5") -> Path:
    """A checkpoint as plain DeepSpeed saves one with ZeRO 1; the path of its folder."""
    path = folder / tag
    path.mkdir(parents=True)
    (folder / "latest").write_text(tag)
    flat = {state: torch.cat([numbers(n, state).flatten() for n in SHAPES]) for state in ("parameter", *STATES)}
    each = -(-len(flat["parameter"]) // copies)
    for copy in range(copies):
        part = {state: values[copy * each : (copy + 1) * each].clone() for state, values in flat.items()}
        base = {
            "state": {0: {"step": torch.tensor(5.0), **{s: part[s] for s in STATES}}},
            "param_groups": [{"lr": 0.25, "betas": (0.9, 0.99), "params": [0]}],
        }
        inner = {
            "base_optimizer_state": base, "single_partition_of_fp32_groups": [part["parameter"]], "zero_stage": 1,
            "partition_count": [copies], "ds_version": "0.19.8",
        }  # fmt: skip
        torch.save({"optimizer_state_dict": inner}, path / f"zero_pp_rank_{copy}_mp_rank_00_optim_states.pt")
    torch.save(_head(copies), path / "mp_rank_00_model_states.pt")
    return folder


def _head(copies: int) -> dict[str, Any]:
    return {
        "module": {name: numbers(name, "parameter").bfloat16() for name in SHAPES}, "buffer_names": [],
        "optimizer": None, "param_shapes": [{name: torch.Size(shape) for name, shape in SHAPES.items()}],
        "frozen_param_shapes": None, "shared_params": {}, "lr_scheduler": {"last_step": 5}, "skipped_steps": 0,
        "global_steps": 5, "global_samples": 40, "dp_world_size": copies, "mp_world_size": 1, "mine": {"epoch": 3},
    }  # fmt: skip


def digests(folder: Path) -> dict[str, str]:
    """The contents of all files under a folder, by name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
