"""``partita reshard`` as a user types it, on checkpoints of real engines: what it says, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from partita.cli.main import main
from partita.plan import save_plan
from tests.ranks.pool import Pool
from tests.reshard.continuing import continued, continued_from, planned, trained
from tests.reshard.made import digests
from tests.reshard.test_deepspeed import DP4, PP2_DP2, PP2_TP2, PP4, TP2_DP2
from tests.runtime.engines import Case
from tests.runtime.programs import Layout

pytestmark = pytest.mark.slow

GPT2 = ["--model", "tests.reshard.models:gpt2"]
LAYOUTS = {
    "pp2 dp2": PP2_DP2, "tp2 dp2": TP2_DP2, "pp2 tp2": PP2_TP2, "pp4": PP4, "tp4": Layout(tp=4, micro_batches=4),
    "dp4": DP4, "zero3": Layout(dp=4, micro_batches=1, zero=3), "tp2 zero1": Layout(tp=2, dp=2, zero=1),
}  # fmt: skip


def case(name: str) -> Case:
    return Case("gpt2", LAYOUTS[name], engine="deepspeed")


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    folder = tmp_path_factory.mktemp("plans")

    def of(name: str) -> str:
        path = folder / f"{name}.json"
        save_plan(planned(case(name)), path)
        return str(path)

    return of


@pytest.fixture(scope="module")
def saved(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saved by tp2 dp2 with ZeRO 1, and the dense model of the same step."""
    folder = tmp_path_factory.mktemp("saved")
    pool.run(trained, 4, case("tp2 zero1"), str(folder), True, timeout=120)
    return folder


def reshard(*words: object) -> int:
    return main(["reshard", *map(str, words)])


def test_what_is_said(saved: Path, plans, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = digests(saved)
    assert reshard(saved, "--to", plans("tp4"), *GPT2, "-o", tmp_path / "out") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:-1] == [
        f"{saved}/global_step2: DeepSpeed ZeRO 1 (2 devices a copy, 2 copies)",
        "  52 parameters and exp_avg, exp_avg_sq: 156 tensors, 0.6 MiB",
        "  model.transformer.wte.weight: 129 rows, saved as 130: 1 are padding and no data",
        f"{tmp_path}/out: for deepspeed: pp1 dp1 tp4 ZeRO 0",
        "  7 files, 0.8 MiB",
        "  model.transformer.wte.weight: 129 rows, padded to 132 with zeros",
    ]
    assert lines[-1].startswith("peak memory: ")
    assert digests(saved) == before
    parts = [load_file(tmp_path / f"out/global_step2/mp_rank_{rank:02d}.safetensors") for rank in range(4)]
    rows = torch.cat([part["parameter:model.transformer.wte.weight"] for part in parts])
    assert rows.shape == (132, 32)
    assert not rows[129:].any()
    assert torch.equal(rows[:129], load_file(saved / "dense/model.safetensors")["model.transformer.wte.weight"])


def test_json(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reshard(saved, "--to", "safetensors", "-o", tmp_path / "out", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["source"] == {
        "path": f"{saved}/global_step2", "format": "DeepSpeed ZeRO 1 (2 devices a copy, 2 copies)", "parameters": 52,
        "states": ["exp_avg", "exp_avg_sq"], "tensors": 156, "bytes": 3 * 4 * 55520, "steps": 2,
        "buffers": [], "others": [], "padded": {"model.transformer.wte.weight": [129, 130]},
    }  # fmt: skip
    size = (tmp_path / "out/model.safetensors").stat().st_size
    assert document["target"] == {
        "path": f"{tmp_path}/out", "plan": None, "framework": None, "files": ["model.safetensors"], "bytes": size,
        "kept": 0, "padded": {},
        "left_out": ["exp_avg", "exp_avg_sq", "step", "steps", "samples", "loss_scale", "client"],
    }  # fmt: skip
    assert document["peak_bytes"] >= document["before_bytes"] > 2**20
    ours, engine_s = load_file(tmp_path / "out/model.safetensors"), load_file(saved / "dense/model.safetensors")
    assert ours.keys() == engine_s.keys()
    assert all(torch.equal(ours[name], engine_s[name]) for name in ours)


def test_from_plan_to_plan_and_back_is_the_same(saved: Path, plans, tmp_path: Path) -> None:
    source = saved
    for index, name in enumerate(("tp2 dp2", "tp4", "zero3", "pp2 tp2", "tp2 dp2")):
        assert reshard(source, "--to", plans(name), *GPT2, "-o", tmp_path / str(index)) == 0
        source = tmp_path / str(index)
    first, last = digests(tmp_path / "0"), digests(tmp_path / "4")
    assert first == last


@pytest.mark.parametrize("name", ["pp2 tp2", "zero3"])
def test_safetensors_to_any_plan(pool: Pool, saved: Path, plans, tmp_path: Path, name: str) -> None:
    """As an engine that was made with these weights."""
    dense = saved / "dense/model.safetensors"
    assert reshard(dense, "--to", plans(name), *GPT2, "-o", tmp_path / "out") == 0
    wanted = pool.run(continued_from, 4, case(name), str(dense), timeout=120)
    for rank, (losses, steps, _) in enumerate(pool.run(continued, 4, case(name), str(tmp_path / "out"), timeout=120)):
        assert losses == wanted[rank]
        assert steps == 0


def test_a_checkpoint_that_does_not_say_its_plan(
    saved: Path, plans, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As versions before this one saved it: --from says the plan; square weights are told from no others."""
    old = tmp_path / "old"
    old.mkdir()
    for path in (saved / "global_step2").iterdir():
        held = torch.load(path, weights_only=False)
        held.pop("partita", None)
        torch.save(held, old / path.name)
    words = [old, "--to", plans("pp4"), *GPT2]
    assert reshard(*words, "-o", tmp_path / "no") == 2
    assert "which parts of the model its tensors are (a copy of the model lay on 2 devices); --from PLAN says" in (
        capsys.readouterr().err
    )
    assert reshard(*words, "--from", plans("tp2 zero1"), "-o", tmp_path / "told") == 0
    assert reshard(saved, "--to", plans("pp4"), *GPT2, "-o", tmp_path / "itself") == 0
    told, itself = digests(tmp_path / "told"), digests(tmp_path / "itself")
    assert told == itself


REFUSED = {
    "another plan": (
        ["--from", "pp4"], "the --from plan (pp4 dp1 tp1 ZeRO 0) isn't the one that saved it: a copy of the model lay "
        "on 2 devices, that of the plan lies on 4; leave out --from: the checkpoint says it itself",
    ),
    "another plan of as many devices": (
        ["--from", "pp2 dp2"], "the --from plan (pp2 dp2 tp1 ZeRO 0) isn't the one that saved it: its part of "
        '"model.transformer.wte.weight" is another one; leave out --from: the checkpoint says it itself',
    ),
    "another model": (
        ["--model", "tests.reshard.models:llama"], 'model "llama" has 6; not in both: model.transformer.h.0',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_belong_together(
    saved: Path, plans, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    words, expected = REFUSED[name]
    words = [plans(word) if word in LAYOUTS else word for word in words]
    before = digests(saved)
    assert reshard(saved, "--to", plans("tp2 dp2"), *GPT2, *words, "-o", tmp_path / "out") == 2
    err = capsys.readouterr().err
    assert expected in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
    assert digests(saved) == before


def test_another_model_s_checkpoint(pool: Pool, plans, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import save_file

    for tensors, words in (
        ({"model.other": torch.ones(2)}, 'that has a parameter "model.transformer.wte.weight", the checkpoint none.'),
        ({"model.transformer.wte.weight": torch.ones(129, 48)},
         '"model.transformer.wte.weight" is [129, 48] in it, [129, 32] in the model'),
    ):  # fmt: skip
        save_file(tensors, tmp_path / "model.safetensors")
        assert reshard(tmp_path / "model.safetensors", "--to", plans("pp4"), *GPT2, "-o", tmp_path / "out") == 2
        assert words in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors"]


def test_loading_what_was_written_for_another_plan(pool: Pool, saved: Path, plans, tmp_path: Path) -> None:
    """Every rank says so, and nothing is loaded."""
    from tests.reshard.continuing import refused

    assert reshard(saved, "--to", plans("pp4"), *GPT2, "-o", tmp_path / "out") == 0
    for said, losses in pool.run(refused, 4, case("dp4"), str(tmp_path / "out"), timeout=120):
        assert said == (
            f"{tmp_path}/out/global_step2: was written for a plan that lays a copy of the model on 4 devices, this one "
            "on 1; partita reshard writes it for this plan"
        )
        assert losses[0] == losses[1]
    layout = tmp_path / "out/global_step2/partita_layout.json"
    written = layout.read_text()
    # Of the same shape, and another piece.
    layout.write_text(written.replace('"piece": 0', '"piece": 1'))
    for said, losses in pool.run(refused, 4, case("pp4"), str(tmp_path / "out"), timeout=120):
        assert "isn't the one that this plan gives the rank; partita reshard writes it for this plan" in said
        assert losses[0] == losses[1]
    layout.write_text(written)
    (tmp_path / "out/global_step2/mp_rank_02.safetensors").write_bytes(b"")
    for said, losses in pool.run(refused, 4, case("pp4"), str(tmp_path / "out"), timeout=120):
        assert "can't be read, a file is truncated or broken" in said
        assert losses[0] == losses[1]


def test_what_is_saved_in_the_place_of_a_resharded_checkpoint_is_loaded(
    pool: Pool, saved: Path, plans, tmp_path: Path
) -> None:
    from tests.reshard.continuing import saved_over

    assert reshard(saved, "--to", plans("pp4"), *GPT2, "-o", tmp_path / "out") == 0
    for before, after in pool.run(saved_over, 4, case("pp4"), str(tmp_path / "out"), "global_step2", timeout=120):
        assert before == pytest.approx(after, abs=1e-6)
    assert not list((tmp_path / "out/global_step2").glob("*.safetensors"))
