"""No more of a checkpoint is in memory than a few MiB, however large it and its tensors are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

MIB = 2**20
# 192 MiB with the two moments of Adam.
SHAPES = {"a": (8192, 1024), "b": (4096, 1024), "c": (4 * 2**20,)}


@pytest.mark.slow
def test_64_mib_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    path.mkdir()
    elements = sum(torch.Size(shape).numel() for shape in SHAPES.values())
    each = -(-elements // 3)
    values = torch.arange(float(elements))
    for copy in range(3):
        part = values[copy * each : (copy + 1) * each].clone()
        base = {"state": {0: {"exp_avg": part, "exp_avg_sq": part.clone()}}, "param_groups": [{"params": [0]}]}
        inner = {"base_optimizer_state": base, "single_partition_of_fp32_groups": [part.clone()], "zero_stage": 2}
        torch.save({"optimizer_state_dict": inner}, path / f"zero_pp_rank_{copy}_mp_rank_00_optim_states.pt")
    shapes = [{name: torch.Size(shape) for name, shape in SHAPES.items()}]
    head = {"module": {}, "param_shapes": shapes, "dp_world_size": 3, "mp_world_size": 1}
    torch.save(head, path / "mp_rank_00_model_states.pt")
    command = [str(Path(sys.executable).with_name("partita")), "reshard", str(path), "--to", "safetensors", "--json"]
    done = subprocess.run([*command, "-o", tmp_path / "out"], capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(done.stdout)
    assert found["source"]["bytes"] == 192 * MIB
    assert found["peak_bytes"] - found["before_bytes"] <= 64 * MIB
    from safetensors.torch import load_file

    written = load_file(tmp_path / "out/model.safetensors")
    assert torch.equal(torch.cat([written[name].flatten() for name in SHAPES]), values)
