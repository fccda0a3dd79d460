"""Buffers of a model go from a checkpoint to any other, with the weights, as the model's own state has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from partita.cli.main import main
from partita.plan import save_plan
from tests.ranks.pool import Pool
from tests.reshard import looping
from tests.reshard.continuing import planned, trained
from tests.reshard.resuming import train_and_save
from tests.runtime.engines import Case
from tests.runtime.models import MODELS
from tests.runtime.programs import Layout

pytestmark = pytest.mark.slow

LAYOUT = Layout(pp=2, tp=2, micro_batches=4)
SHIFTED = ["--model", "tests.reshard.models:shifted"]


def dense(path: Path) -> dict[str, torch.Tensor]:
    return {name: value for file in path.glob("*.safetensors") for name, value in load_file(file).items()}


@pytest.mark.parametrize("engine", ["deepspeed", "torch"])
def test_of_an_engine_for_a_plan(pool: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str) -> None:
    case = Case("gpt2 shifted", LAYOUT, engine=engine)
    saves = (trained, 4, case, str(tmp_path / "saved"), True) if engine == "deepspeed" else (
        train_and_save, 4, case, str(tmp_path / "saved"))  # fmt: skip
    pool.run(*saves, timeout=120)
    source = tmp_path / "saved"
    for number, other in enumerate(("deepspeed", "torch")):
        save_plan(planned(Case("gpt2 shifted", Layout(tp=4, micro_batches=4), engine=other)), tmp_path / "plan.json")
        words = ["reshard", str(source), "--to", str(tmp_path / "plan.json"), *SHIFTED]
        assert main([*words, "-o", str(tmp_path / f"{number}")]) == 0, capsys.readouterr().err
        assert "  buffers: shift, version\n" in capsys.readouterr().out
        source = tmp_path / f"{number}"
    found = []
    for name in ("saved", "0", "1"):
        words = ["reshard", str(tmp_path / name), "--to", "safetensors", "-o", str(tmp_path / f"{name} dense")]
        assert main(words) == 0, capsys.readouterr().err
        found.append(dense(tmp_path / f"{name} dense"))
    state = MODELS["gpt2 shifted"].build().state_dict()
    for one in found:
        assert torch.equal(one["shift"], state["shift"])
        assert torch.equal(one["version"], state["version"])
        # A tied head's weight is the embedding's.
        assert state.keys() - one.keys() == {"model.lm_head.weight"}
        assert one.keys() <= state.keys()
        assert all(torch.equal(one[name], found[0][name]) for name in one)
    if engine == "deepspeed":
        engine_s = dense(tmp_path / "saved/dense")
        assert engine_s.keys() == found[0].keys()
        assert all(torch.equal(engine_s[name], found[0][name]) for name in engine_s)


@pytest.mark.parametrize("plan", ["pp2 dp2", "zero3"])
def test_of_a_loop(pool: Pool, tmp_path: Path, plan: str) -> None:
    wanted = pool.run(looping.saved_with_buffers, 4, plan, str(tmp_path / "saved"), timeout=120)[0]
    assert main(["reshard", str(tmp_path / "saved"), "--to", "safetensors", "-o", str(tmp_path / "out")]) == 0
    found = load_file(tmp_path / "out/model.safetensors")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_among_weights_that_nobody_tells_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model says which of a file's tensors is a buffer that it reads; one that nothing reads is refused by name."""
    state = MODELS["gpt2 shifted"].build().state_dict()
    del state["model.lm_head.weight"]
    version = state.pop("version")
    save_plan(planned(Case("gpt2 shifted", LAYOUT)), tmp_path / "plan.json")
    save_file(state, tmp_path / "model.safetensors")
    words = ["reshard", str(tmp_path / "model.safetensors"), "--to", str(tmp_path / "plan.json"), *SHIFTED]
    assert main([*words, "-o", str(tmp_path / "out")]) == 0, capsys.readouterr().err
    assert "  buffers: shift\n" in capsys.readouterr().out
    save_file({**state, "version": version}, tmp_path / "model.safetensors")
    assert main([*words, "-o", str(tmp_path / "no")]) == 2
    assert '1 of its parameters are not the model\'s, "version" the first' in capsys.readouterr().err
