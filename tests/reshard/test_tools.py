"""The dense model beside what DeepSpeed's own tools make of the same checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from partita.adapters.checkpoint.boxes import whole
from partita.adapters.checkpoint.fill import Files, fill
from partita.adapters.checkpoint.sources import read_checkpoint
from partita.adapters.checkpoint.write_safetensors import dense_outputs
from partita.cli.main import main
from partita.errors import InputError
from tests.ranks.pool import Pool
from tests.reshard.continuing import PLAIN_SHAPES, plain_deepspeed

pytestmark = pytest.mark.slow


def test_weights_without_zero(pool: Pool, tmp_path: Path) -> None:
    """Of DeepSpeed alone without ZeRO the weights are taken; whose the optimizer's state is, its files don't say."""
    pool.run(plain_deepspeed, 4, 0, str(tmp_path / "saved"), timeout=120)
    with pytest.raises(InputError, match=r"knows its parameters by numbers, .* --to safetensors takes its weights"):
        read_checkpoint(tmp_path / "saved")
    assert main(["reshard", str(tmp_path / "saved"), "--to", "safetensors", "-o", str(tmp_path / "out")]) == 0
    (file,) = tmp_path.glob("saved/*/mp_rank_00_model_states.pt")
    theirs, ours = torch.load(file, weights_only=False)["module"], load_file(tmp_path / "out/model.safetensors")
    assert ours.keys() == PLAIN_SHAPES.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_as_zero_to_fp32(pool: Pool, tmp_path: Path, zero: int) -> None:
    """Of plain DeepSpeed's, by the model's own names: the same weights to the bit."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    pool.run(plain_deepspeed, 4, zero, str(tmp_path / "saved"), timeout=120)
    (output,) = dense_outputs(read_checkpoint(tmp_path / "saved"))
    output.write(tmp_path / output.name)
    theirs = get_fp32_state_dict_from_zero_checkpoint(str(tmp_path / "saved"))
    ours = load_file(tmp_path / output.name)
    assert {name: tuple(value.shape) for name, value in ours.items()} == PLAIN_SHAPES
    for name, value in ours.items():
        assert torch.equal(value, theirs[name])


def test_as_universal_checkpoint(pool: Pool, tmp_path: Path) -> None:
    """Its files of each parameter have the same weights and the same state of the optimizer."""
    pool.run(plain_deepspeed, 4, 1, str(tmp_path / "saved"), timeout=120)
    (folder,) = (path for path in (tmp_path / "saved").iterdir() if path.is_dir())
    catalogue = read_checkpoint(folder)
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", str(folder),
               "--output_folder", str(tmp_path / "universal"), "--num_extract_workers", "1", "--num_merge_workers", "1",
               "--inject_missing_state"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    for (name, state), entry in catalogue.tensors.items():
        found = torch.empty(entry.shape)
        with Files() as files:
            fill(entry, whole(entry.shape), found, files)
        word = "fp32" if state == "parameter" else state
        theirs = torch.load(tmp_path / "universal/zero" / name / f"{word}.pt", weights_only=False)
        theirs = theirs["param"] if isinstance(theirs, dict) else theirs
        assert torch.equal(found, theirs.view(entry.shape))
    assert {state for _, state in catalogue.tensors} == {"parameter", "exp_avg", "exp_avg_sq"}
