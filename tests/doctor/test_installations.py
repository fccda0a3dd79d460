"""The doctor examines real installations: this one, one without frameworks, ones that are broken in every way."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from partita.plugins.doctor.imports import imports
from partita.plugins.doctor.installed import numbers, packages
from partita.plugins.doctor.installed import tested as together
from tests.doctor.environment import FRAMEWORKS, Environment, bare

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CLI = Path(sys.executable).parent / "partita"


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Shared by tests that put nothing into it."""
    return bare(tmp_path_factory.mktemp("bare"))


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return bare(tmp_path / "environment")


def broken(document: dict) -> list[str]:
    return [finding["what"] for finding in document["findings"] if finding["severity"] == "broken"]


def processor_seconds() -> float:
    """What all processes that this one started and that have ended took of the processor."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_what_is_installed_here_works() -> None:
    for name in FRAMEWORKS:
        try:
            version(name)
        except PackageNotFoundError:
            pytest.skip(f"{name} is not installed")
    start = processor_seconds()
    done = subprocess.run([CLI, "doctor", "--json"], capture_output=True, text=True, timeout=120)
    seconds = processor_seconds() - start
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr, broken(found)) == (0, "", [])
    assert found["ok"] is True
    assert {one["name"]: one["installed"] for one in found["packages"]} == {p.name: version(p.name) for p in packages()}
    assert [one["name"] for one in found["packages"] if one["import"]] == list(FRAMEWORKS)
    assert found["groups"]["gloo"] is True
    assert found["python"]["version"] == sys.version.split()[0]
    assert {"core", "doctor", "export", "gpt3"} <= {one["name"] for one in found["plugins"]}
    (core,) = [one for one in found["plugins"] if one["name"] == "core"]
    assert {"partita_capture", "partita_planner", "partita_verbs"} <= set(core["hooks"])
    (notice,) = [one for one in found["plugins"] if one["group"] == "torch.backends" and one["package"] == "partita"]
    assert (notice["name"], notice["value"], notice["on"]) == ("partita", "partita.adapters.notice:install", True)
    assert found["deepspeed"]["noticed"] is True
    assert seconds < 15


def test_without_frameworks_it_says_what_to_install_at_once(without: Environment) -> None:
    start = processor_seconds()
    found = without.doctor(1)
    assert processor_seconds() - start < 1
    assert broken(found) == [
        f"{name} is not installed; recipes can't do without it" for name in FRAMEWORKS if name != "accelerate"
    ]
    assert {finding["mend"] for finding in found["findings"] if finding["severity"] == "broken"} == {
        f"pip install 'partita[{extra}]'" for extra in ("torch", "deepspeed", "megatron", "transformers")
    }
    assert all(one["import"] is None for one in found["packages"])
    assert found["groups"] == {"distributed": False, "gloo": False, "nccl": False}


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        (
            "raise ImportError('libcudart.so.12: cannot open shared object file')",
            "ImportError: libcudart.so.12: cannot",
        ),
        ("def f(:", "SyntaxError"),
        ("import os; os.abort()", "the process was ended by SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "the process was ended by SIGSEGV"),
        ("raise SystemExit('no GPU here')", "SystemExit: no GPU here"),
        ("import os; os._exit(7)", "the process ended with status 7"),
        ("import os; os.write(2, b'first\\nIllegal instruction\\n'); os._exit(132)", "status 132: Illegal instruction"),
        ("print('{\"module\": 1}')\nraise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        # It can be imported, and is no torch.
        ("", "AttributeError: module 'torch' has no attribute 'version'"),
    ],
)
def test_a_broken_torch_is_reported(environment: Environment, text: str, fact: str) -> None:
    environment.install("torch", "2.13.0", {"torch/__init__.py": text, "torch/distributed.py": ""})
    found = environment.doctor(1)
    (what,) = [what for what in broken(found) if what.startswith("torch ")]
    assert what.startswith("torch is installed and can't be imported: ")
    assert fact in what
    (mend,) = [finding["mend"] for finding in found["findings"] if finding["what"] == what]
    assert mend == "pip install --force-reinstall torch==2.13.0"


def test_an_import_that_hangs_is_ended(environment: Environment) -> None:
    environment.install("torch", "2.13.0", {"torch.py": "import time\ntime.sleep(600)"})
    environment.install("deepspeed", "0.19.8", {"deepspeed.py": ""})
    code = (
        "from partita.plugins.doctor.imports import imports\n"
        "for one in imports(['torch', 'deepspeed'], 1.0): print(one.module, one.error)"
    )
    done = environment.run("-c", code)
    assert done.stdout.splitlines() == [
        "torch did not end within 1 seconds",
        "deepspeed not tried, since it imports torch",
    ]


def test_what_comes_after_a_crash_is_still_tried() -> None:
    first, second, third = imports(["json", "no_such_module", "string"])
    assert (first.error, second.error, third.error) == (
        None, "ModuleNotFoundError: No module named 'no_such_module'", None,
    )  # fmt: skip


def test_a_crash_in_the_middle_is_blamed_on_the_right_one(environment: Environment) -> None:
    environment.install("deepspeed", "0.19.8", {"deepspeed.py": "import os; os.abort()"})
    environment.install("transformers", "5.24.0", {"transformers.py": ""})
    found = environment.doctor(1)
    outcomes = {one["name"]: one["import"] for one in found["packages"] if one["import"]}
    assert outcomes["deepspeed"]["error"].startswith("the process was ended by SIGABRT")
    assert outcomes["transformers"]["error"] is None


@pytest.mark.parametrize(
    ("name", "installed", "same", "fact"),
    [
        ("torch", "2.1.0", False, "torch 2.1.0 is too old, 2.11 is the least"),
        ("deepspeed", "0.9.9", False, "deepspeed 0.9.9 is too old, 0.19 is the least"),
        ("transformers", "5.25.0", False, "transformers 5.25.0 (tested 5.24.0)"),
        ("accelerate", "1.15.0", True, None),
        ("torch", "2.13.0+cu130", True, None),
    ],
)
def test_versions_are_compared(environment: Environment, name: str, installed: str, same: bool, fact: str) -> None:
    environment.install(name, installed, {})
    found = environment.doctor(1)
    (package,) = [one for one in found["packages"] if one["name"] == name]
    assert (package["installed"], package["same"]) == (installed, same)
    about = [finding["what"] for finding in found["findings"] if f"{name} {installed}" in finding["what"]]
    assert [fact in what for what in about] == ([True] if fact else [])


def test_a_plugin_that_is_broken_doesnt_keep_the_doctor_from_coming(environment: Environment) -> None:
    environment.install("strange", "1.0", {}, "[partita]\nodd = no_such_module.at_all\n")
    verb = environment.run("-m", "partita.cli.main", "doctor")
    assert verb.returncode == 2
    assert 'the plugin "odd" of the package strange' in verb.stderr
    found = environment.doctor(1)
    (what,) = [what for what in broken(found) if "plugin" in what]
    assert what.startswith('the plugin "odd" of strange (no_such_module.at_all) can\'t be loaded: ModuleNotFoundError')


@pytest.mark.parametrize(
    ("variables", "on", "notice"),
    [
        ({}, True, True),
        ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, False, False),
        ({"PARTITA_NOTICE": "off"}, True, False),
        ({"PARTITA_NOTICE": "on"}, True, True),
    ],
)
def test_what_torch_loads_for_partita_is_reported(
    environment: Environment, variables: dict[str, str], on: bool, notice: bool
) -> None:
    lines = "[torch.backends]\nahead = partita.no_such:module\nother = other_package:load\n"
    environment.install("ahead", "1.0", {}, lines)
    found = environment.doctor(1, **variables)
    (hook,) = [one for one in found["plugins"] if one["package"] == "ahead"]
    assert (hook["group"], hook["name"], hook["on"], hook["error"]) == ("torch.backends", "ahead", on, None)
    assert any('"ahead" of ahead is off' in finding["what"] for finding in found["findings"]) is not on
    (own,) = [one for one in found["plugins"] if one["value"] == "partita.adapters.notice:install"]
    assert (own["group"], own["package"], own["on"]) == ("torch.backends", "partita", notice)
    assert found["environment"].items() >= variables.items()


def test_people_get_the_same(without: Environment) -> None:
    done = without.run("-m", "partita.cli.main", "doctor")
    assert (done.returncode, done.stderr) == (1, "")
    assert "broken: torch is not installed; recipes can't do without it. To mend it: pip install" in done.stdout
    assert done.stdout.endswith("4 broken\n")
    assert without.run("-m", "partita.plugins.doctor", "--jsno").returncode == 1


def test_the_versions_are_those_that_are_pinned() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert {package.name: package.tested for package in packages()} == {p.name: pins[p.name] for p in packages()}


def test_the_least_versions_are_those_that_are_required() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    assert project["requires-python"] == f">={together()['python']['least']}"
    least = dict(line.split(">=") for line in lines if ">=" in line)
    assert {p.name: p.least for p in packages()} == {p.name: least[p.name] for p in packages()}
    assert all(numbers(p.least) <= numbers(p.tested) for p in packages())
    extras = project["optional-dependencies"]
    assert [p.name for p in packages() if p.extra and not any(p.name in line for line in extras[p.extra])] == []
