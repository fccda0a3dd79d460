"""``--profile`` on every verb that takes it: the same figures in each; what is said of a file that can't be used."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest

from partita.cli.main import main

H200 = str(Path(__file__).parents[1] / "data/profiles/h200.json")
MODEL = ["gpt3-350m", "--cluster", "2xh200", "--global-batch", "16", "--seq", "2048"]


def answer(capsys, *words: str) -> dict:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "fix",
    [
        ["pp=2", "micro_batch=4"], pytest.param(["micro_batch=2"], marks=pytest.mark.slow),
        pytest.param(["micro_batches=1"], marks=pytest.mark.slow),
        pytest.param(["recompute=full"], marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_simulation_takes_the_same_profile(capsys, tmp_path, fix):
    path = str(tmp_path / "plan.json")
    held = [word for name in fix for word in ("--fix", name)]
    plan = answer(capsys, "plan", *MODEL, *held, "--profile", H200, "-o", path)
    with_it = answer(capsys, "simulate", path)
    assert with_it == answer(capsys, "simulate", path, "--profile", H200)
    without = answer(capsys, "simulate", path, "--cluster", "2xh200")
    assert with_it["step_seconds"] == pytest.approx(plan["predicted"]["step_seconds"], rel=0.02)
    assert abs(without["step_seconds"] / with_it["step_seconds"] - 1) > 0.02
    assert with_it["peak_bytes"].keys() == plan["predicted"]["peak_bytes"].keys()


def test_a_plan_names_its_profile(capsys, tmp_path):
    """Whoever reads the file prices it as it was made: what ifs, the plan beside others, or a message by name."""
    profile, path = tmp_path / "own.json", str(tmp_path / "plan.json")
    profile.write_bytes(Path(H200).read_bytes())
    plan = answer(capsys, "plan", *MODEL, "--fix", "pp=2", "--profile", str(profile), "-o", path)
    digest = sha256(profile.read_bytes()).hexdigest()
    assert plan["profile"] == {"path": str(profile), "sha256": digest}
    simulated = answer(capsys, "simulate", path)["step_seconds"]
    assert answer(capsys, "compare", path)["plans"][0]["step_seconds"] == simulated
    profile.write_text(profile.read_text() + "\n")
    assert main(["simulate", path]) == 2
    assert f'the profile "{profile}" is not what it was' in capsys.readouterr().err
    profile.unlink()
    assert main(["simulate", path]) == 2
    assert f'{path}: the plan was made with the profile "{profile}", which isn\'t here' in capsys.readouterr().err
    assert answer(capsys, "simulate", path, "--profile", H200)["step_seconds"] == simulated


@pytest.mark.slow
def test_a_profiled_plan_is_asked_again_as_it_was(capsys, tmp_path):
    path = str(tmp_path / "plan.json")
    answer(capsys, "plan", *MODEL, "--profile", H200, "-o", path)
    asked = answer(capsys, "explain", path)["asked"]
    assert asked == answer(capsys, "explain", *MODEL, "--profile", H200)["asked"]


def test_plans_by_hand_take_it_too(capsys, tmp_path):
    """Interleaved stages are priced stage by stage, from the same blocks: two of them on one device as one of 24."""
    path = str(tmp_path / "plan.json")
    words = ["plan", *MODEL, "--plan-function", "interleaved", "--fix", "pp=2", "--fix", "chunks=2"]
    with_it = answer(capsys, *words, "--profile", H200, "-o", path)
    assert answer(capsys, "simulate", path, "--profile", H200)["step_seconds"] == pytest.approx(
        with_it["predicted"]["step_seconds"]
    )
    assert with_it["predicted"]["step_seconds"] != answer(capsys, *words)["predicted"]["step_seconds"]


@pytest.mark.slow
def test_the_plan_of_each_verb_is_one(capsys):
    plan = answer(capsys, "plan", *MODEL, "--profile", H200)
    compared = answer(capsys, "compare", *MODEL, "--profile", H200)
    own = next(found for found in compared["plans"] if found["name"] == "partita")
    assert own["predicted_seconds"] == plan["predicted"]["step_seconds"]
    assert main(["explain", *MODEL, "--profile", H200]) == 0
    assert "24 of 26 blocks are measured" in " ".join(capsys.readouterr().out.split())


def test_several_micro_batches_add_up_their_gradients(capsys):
    steps = {}
    for count in (1, 2, 4):
        words = ["plan", "gpt3-350m", "--cluster", "1xh200", "--global-batch", str(count), "--seq", "2048"]
        found = answer(capsys, *words, "--fix", f"micro_batches={count}", "--profile", H200)
        steps[count] = found["predicted"]["step_seconds"]
    # One: pass + end. Two and four: as many times (pass + adding) and the end.
    both = (steps[4] - steps[2]) / 2
    end = steps[2] - 2 * both
    adding = both - (steps[1] - end)
    # 355.9 million gradients of 2 bytes, read twice and written, at the measured 3.44 TB/s of pointwise kernels.
    assert adding == pytest.approx(3 * 2 * 355.9e6 / 3.44e12, rel=0.01)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--profile", "missing.json"], "missing.json: no such file"),
        (["--profile", H200, "--precision", "fp32"], "--precision bf16 works"),
        (["--profile", H200, "--cluster", "1xa100-80gb"], "a cluster of h200 devices works"),
    ],
)
def test_what_cannot_be_used(capsys, words, says):
    assert main(["plan", *MODEL, *words]) == 2
    assert says in capsys.readouterr().err
