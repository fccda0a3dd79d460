"""A model saved by many ranks is the model of one device: names, shapes and bits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from partita.errors import InputError
from tests.ranks.pool import Pool, RankError
from tests.runtime.engines import Case
from tests.runtime.models import MODELS
from tests.runtime.programs import Layout
from tests.runtime.training import Part

PARTITIONED = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
CASES = {
    # 129 words over two devices: one row of padding, which must not be saved. GPT-2's weights are [in, out].
    "gpt2 pp2 tp2": Case("gpt2", Layout(pp=2, tp=2)),
    "llama dp2 tp2": Case("llama", Layout(dp=2, tp=2, zero=1)),
    "gpt2 dp2 zero3": Case("gpt2", Layout(dp=2, zero=3), config=PARTITIONED),
}


def weights(case: Case) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    return MODELS[case.model].build().state_dict()


def save(case: Case, folder: str) -> None:
    Part(case, weights(case)).engine.save_model(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_what_is_saved_is_the_dense_model(pool: Pool, tmp_path: Path, name: str) -> None:
    case = replace(CASES[name], engine="deepspeed")
    pool.run(save, case.layout.devices, case, str(tmp_path), timeout=120)
    index = tmp_path / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if case.layout.pp > 1:
        names = json.loads(index.read_text())["weight_map"]
        files = sorted(set(names.values()))
        assert {n: set(load_file(tmp_path / f)) for n, f in names.items()} == {
            n: {m for m, g in names.items() if g == f} for n, f in names.items()
        }
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*files, *([index.name] if len(files) > 1 else [])]
    )
    saved = {n: t for file in files for n, t in load_file(tmp_path / file).items()}
    wanted = dict(MODELS[case.model].build().named_parameters())
    dense = weights(case)
    assert saved.keys() == wanted.keys()
    assert {n: t.shape for n, t in saved.items()} == {n: t.shape for n, t in wanted.items()}
    assert [n for n, t in saved.items() if not torch.equal(t, dense[n])] == []


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_is_said(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    case = Case("gpt2", Layout(), engine="deepspeed")
    with pytest.raises(RankError, match=InputError.__name__):
        pool.run(save, 1, case, str(tmp_path / "file" / "model"), timeout=60)
