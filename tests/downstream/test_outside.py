"""A package from outside, installed with pip, extends the real command line; broken ones are named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip installed the package; built from a copy, since building writes beside the source."""
    folder = tmp_path_factory.mktemp("outside")
    shutil.copytree(HERE / "outside", folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", folder / "target", folder / "source"], check=True, capture_output=True)
    return folder / "target"


def partita(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    cli = Path(sys.executable).parent / "partita"
    return subprocess.run(
        [cli, *arguments], capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(path)}
    )


def test_its_device_is_planned_by_its_own_engine(installed: Path) -> None:
    command = ["plan", "gpt3-125m", "--cluster", "2x4xxylophone-1", "--global-batch", "64", "--json"]
    plan = json.loads(partita(installed, *command, "--fix", "pp=2").stdout)
    assert plan["cluster"] == "2x4xxylophone-1"
    assert (plan["search"]["engine"], plan["schedule"], len(plan["stages"])) == ("outside", "gpipe", 2)
    # What the engine leaves alone goes to the next one.
    other = json.loads(partita(installed, *command, "--fix", "schedule=1f1b", "--fix", "pp=2").stdout)
    assert (other["search"]["engine"], other["schedule"]) == ("joint", "1f1b")


def test_its_strategy_joins_the_search_and_wins(installed: Path) -> None:
    command = ["plan", "outside-gpt", "--cluster", "1x4xa100-80gb", "--global-batch", "8", "--json", "--fix", "tp=4"]
    plan = json.loads(partita(installed, *command, "--target", "partita").stdout)
    (stage,) = plan["stages"]
    cuts = {
        block: {cut["dim"]: cut["axes"] for cut in strategy["cuts"] if cut["dim"] != "batch"}
        for block, strategy in zip(stage["blocks"], stage["strategies"], strict=True)
    }
    layers = [block for block in stage["blocks"] if block not in ("embedding", "head")]
    assert [cuts[block] for block in layers] == [{"hidden": ["tensor"]}] * 3
    # Of the plain one both classes are cut, which is slower; other frameworks aren't offered it.
    plain = json.loads(partita(installed, *command).stdout)
    assert {"heads", "hidden"} == {cut["dim"] for cut in plain["stages"][0]["strategies"][1]["cuts"]} - {"batch"}
    assert plan["predicted"]["step_seconds"] < plain["predicted"]["step_seconds"]


def test_its_verb_stands_in_the_help_and_decides_the_exit_status(installed: Path) -> None:
    assert "Count a model's parameters." in partita(installed, "--help").stdout
    done = partita(installed, "parameters", "outside-gpt")
    h, vocabulary, positions = 64, 100, 32
    count = (vocabulary + positions) * h + 3 * (12 * h * h + 13 * h) + 2 * h
    assert (json.loads(done.stdout), done.returncode) == ({"parameters": count}, count % 2)
    done = partita(installed, "parameters", "outside-gtp")
    assert done.returncode == 2
    assert "Did you mean 'outside-gpt'" in done.stderr


def test_its_recipe_runs_with_its_own_options(installed: Path) -> None:
    done = partita(installed, "run", "outside-gpt", "--steps", "3", "--help")
    assert (done.returncode, done.stdout) == (0, "outside-gpt trained with ['--steps', '3', '--help']\n")
    assert partita(installed, "run", "outside-gpt", "--fail").returncode == 1


@pytest.mark.parametrize(
    ("code", "facts"),
    [
        ("import no_such_module", ["package broken", "(broken_plugin)", "No module named 'no_such_module'"]),
        ("1 / 0", ["package broken", "ZeroDivisionError: division by zero"]),
        (
            "from partita.hooks import hookimpl\n@hookimpl\ndef partita_planer(problem): pass",
            ['"broken" implements partita_planer', "'partita_planner'"],
        ),
        (
            "from partita.hooks import hookimpl\n@hookimpl\ndef partita_planner(question): pass",
            ['"broken" (broken_plugin) does not fit a hook', "question"],
        ),
    ],
)
def test_a_broken_plugin_is_named(tmp_path: Path, code: str, facts: list[str]) -> None:
    plugin(tmp_path, code)
    done = partita(tmp_path, "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert [fact for fact in facts if fact not in done.stderr] == []
    assert "Traceback" not in done.stderr


def test_two_recipes_of_one_name_are_not_one_in_silence(tmp_path: Path) -> None:
    plugin(
        tmp_path,
        "from partita.hooks import hookimpl\n"
        "class Recipe: names = ('gpt3-tiny',)\n"
        "@hookimpl\ndef partita_recipe(): return Recipe()",
    )
    done = partita(tmp_path, "run", "gpt3-tiny")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert 'two plugins offer a recipe "gpt3-tiny"' in done.stderr


def test_a_defect_is_no_fault_of_the_user(tmp_path: Path) -> None:
    plugin(tmp_path, "from partita.hooks import hookimpl\n@hookimpl\ndef partita_capture(model): return {}[model]")
    command = ["plan", "anything", "--cluster", "8xh200", "--global-batch", "8"]
    done = partita(tmp_path, *command)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "KeyError: 'anything' (partita_capture, line 3)" in done.stderr
    assert "Traceback" in partita(tmp_path, *command, "--debug").stderr


def plugin(folder: Path, code: str) -> None:
    """An installed package with one module, as an installer leaves it."""
    info = folder / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[partita]\nbroken = broken_plugin\n")
    (folder / "broken_plugin.py").write_text(code)
