"""``partita run`` with options that can't be meant: exit 2 and one message, before anything is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from partita.cli.main import main
from partita.errors import PlanError

PLAN = ["--cluster", "cpu", "--devices", "2", "--global-batch", "4", "--seq", "16", "-o"]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plans of gpt3-tiny, in fp32, in bf16 and for Megatron, of gpt3-125m, of swin-tiny, and texts."""
    folder = tmp_path_factory.mktemp("plans")
    for name, model, words in (
        ("plan", "gpt3-tiny", ["--precision", "fp32"]),
        ("bf16", "gpt3-tiny", ["--precision", "bf16"]),
        ("megatron", "gpt3-tiny", ["--precision", "fp32", "--target", "megatron"]),
        ("other", "gpt3-125m", ["--precision", "fp32"]),
    ):
        assert main(["plan", model, *words, *PLAN, str(folder / f"{name}.json")]) == 0
    swin = [word for word in PLAN if word not in ("--seq", "16")]
    assert main(["plan", "swin-tiny", *swin, str(folder / "swin.json"), "--precision", "fp32"]) == 0
    (folder / "short.txt").write_bytes(b"x" * 16)
    (folder / "broken.json").write_text('{"version": 1,\n "model": }')
    return folder


GPT3 = [
    (["--steps", "0"], "--steps 0: at least 1 is needed"),
    (["--steps", "-3"], "--steps -3: at least 1 is needed"),
    (["--steps", "many"], "'--steps': Input should be a valid integer"),
    (["--learning-rate", "nan"], "--learning-rate nan: a positive, finite number is needed, such as 0.001"),
    (["--learning-rate", "0"], "--learning-rate 0.0: a positive, finite number is needed, such as 0.001"),
    (["--seed", "-1"], "--seed -1: from 0 to 4294967295 work"),
    (["--fix", "tp=3"], "tp=3"),
    (["--devices", "0"], "devices"),
    (["--text", "nowhere.txt"], "nowhere.txt: no such file"),
    (["--text", "FOLDER"], "can't be read: Is a directory"),
    (
        ["--text", "FOLDER/short.txt", "--plan", "FOLDER/plan.json"],
        "short.txt: the text has 16 bytes; a sample takes 16 tokens of a byte each, so at least 17 are needed",
    ),
    (["--plan", "nowhere.json"], "nowhere.json: no such file"),
    (["--plan", "FOLDER/broken.json"], "broken.json: line 2, column 11: broken JSON"),
    (["--plan", "FOLDER/other.json"], 'other.json: the plan is for "gpt3-125m", not for "gpt3-tiny"'),
    (
        ["--plan", "FOLDER/plan.json", "--fix", "tp=2", "--global-batch", "8"],
        "--global-batch, --fix with --plan",
    ),
    (["--compare", "--precision", "bf16"], "--compare with a plan in bf16: losses are compared in fp32"),
    (["--compare", "--plan", "FOLDER/bf16.json"], "--compare with a plan in bf16: losses are compared in fp32"),
    (
        ["--plan", "FOLDER/megatron.json", "--checkpoint", "FOLDER"],
        "has files that are no checkpoint; give another folder",
    ),
    (["--resume", "nowhere"], "--resume nowhere: no such folder"),
    (["--compare", "--resume", "FOLDER"], "the one device begins with fresh weights"),
    (["--checkpoint", "FOLDER/short.txt/saved"], "can't be made: Not a directory"),
    (["--plan-function", "interleavd"], "there is no plan \"interleavd\" in the library. Did you mean 'interleaved'"),
    (["--plan-function", "nowhere.py:mine"], '"nowhere.py:mine": there is no file nowhere.py'),
    (
        ["--devices", "2", "--plan-function", "interleaved", "--fix", "q=2"],
        '"interleaved" asks for no number "q". Known: chunks',
    ),
    (["--plan-function", "interleaved", "--fix", "pp=3"], "4 devices can't be divided into 3 equal parts"),
    (["--plan-function", "1f1b", "--plan", "FOLDER/plan.json"], "--plan-function with --plan"),
    *(
        (
            ["--plan-function", "interleaved", "--devices", "2", "--target", target],
            f'target {target} can\'t train this plan: device 0 serves the stages "stage0" and "stage2"; target partita',
        )
        for target in ("deepspeed", "megatron")
    ),
]


SWIN = [
    (["--text", "FOLDER/short.txt"], "No such option: --text"),
    (["--seq", "16"], "seq=16: an image model has no sequence"),
    (["--fix", "tp=4"], "tp=4 does not divide heads=2"),
    (["--plan", "FOLDER/plan.json"], 'plan.json: the plan is for "gpt3-tiny", not for "swin-tiny"'),
    (["--plan", "FOLDER/swin.json", "--devices", "4"], "--devices with --plan"),
    (["--steps", "0"], "--steps 0: at least 1 is needed"),
]
CASES = [*(("gpt3-tiny", *case) for case in GPT3), *(("swin-tiny", *case) for case in SWIN)]


@pytest.mark.parametrize(("name", "words", "says"), CASES, ids=[" ".join([name, *words]) for name, words, _ in CASES])
def test_what_can_not_be_meant(
    name: str, words: list[str], says: str, plans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    status = main(["run", name, *(word.replace("FOLDER", str(plans)) for word in words)])
    out, err = capfd.readouterr()
    assert status == 2
    assert says in err
    assert "Traceback" not in err
    assert "starting" not in out
    assert list(tmp_path.iterdir()) == []


def test_without_scikit_learn(
    plans: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """What an import statement and find_spec see where it is not installed."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert main(["run", "swin-tiny", "--plan", str(plans / "swin.json")]) == 2
    assert "scikit-learn, which is not installed here; pip install scikit-learn" in capfd.readouterr().err


def test_a_rank_with_the_plan_of_another_model(plans: Path) -> None:
    """As somebody with torchrun starts it: the checks of ``partita run`` are not made before."""
    from partita.recipes.train import begin

    with pytest.raises(PlanError, match=r'plan.json: the plan is for "gpt3-tiny", not for "gpt3-125m"'):
        begin(["gpt3-125m", "--plan", str(plans / "plan.json")])
