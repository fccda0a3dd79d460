"""``partita run train.py``: the script runs as python would run it, one process a device or in torchrun's processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from partita.cli.main import main

CLI = Path(sys.executable).parent / "partita"

# What a script can see of how it was started. A variable's annotation is evaluated, unless who runs it says otherwise.
SCRIPT = """
import json, os, sys
import beside
seen: beside.Kind = 1
def later(): return __name__, os.path.basename(__file__)
main = sys.modules["__main__"]
print(json.dumps([
    __name__, __file__, sys.argv, sys.path[0], sys.path.count(""), __annotations__["seen"] is beside.Kind, __doc__,
    main.later is later and later(), __spec__ is None, __package__, os.getcwd(), beside.__file__,
]))
if len(sys.argv) > 1:
    sys.exit({"zero": 0, "three": 3, "words": "some words"}[sys.argv[1]])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "train.py").write_text(SCRIPT)
    (tmp_path / "own" / "beside.py").write_text("class Kind: pass\n")
    (tmp_path / "own" / "extensionless").write_text(SCRIPT)
    (tmp_path / "link.py").symlink_to(tmp_path / "own" / "train.py")
    # Not in the path of a script that stands in another folder.
    (tmp_path / "beside.py").write_text("raise SystemExit('the wrong one')\n")
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong one')\n")
    return tmp_path


def run(folder: Path, *command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in the folder, among the tests' own variables but for those that ``partita run`` goes by."""
    own = ("RANK", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    return subprocess.run(
        [str(word) for word in command], cwd=folder, env={**environment, **variables}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("script", ["own/train.py", "./own/train.py", "link.py", "own/extensionless", "/own/train.py"])
@pytest.mark.parametrize("rank", [{"RANK": "0"}, {}], ids=["torchrun", "alone"])
def test_a_script_sees_what_python_would_show_it(script: str, rank: dict[str, str], folder: Path) -> None:
    script = f"{folder}{script}" if script.startswith("/") else script
    # Options of Partita's own, behind the name, are the script's.
    words = [script, "zero", "--debug", "--devices", "2", "--", "--json", "-x"]
    as_always = run(folder, sys.executable, *words)
    done = run(folder, CLI, "run", *words, **rank)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json.loads(as_always.stdout)
    assert json.loads(done.stdout)[2] == words


@pytest.mark.slow
@pytest.mark.parametrize(("word", "status", "err"), [("zero", 0, ""), ("three", 3, ""), ("words", 1, "some words\n")])
def test_its_exit_is_the_answer(word: str, status: int, err: str, folder: Path) -> None:
    assert run(folder, sys.executable, "own/train.py", word).returncode == status
    done = run(folder, CLI, "run", "own/train.py", word, RANK="3")
    assert (done.returncode, done.stderr) == (status, err)
    done = run(folder, CLI, "run", "own/train.py", word)
    says = f"partita: rank 0 of 1 ended with exit status {status}\n" if status else ""
    assert (done.returncode, done.stderr) == (status, err + says)


@pytest.mark.slow
def test_under_torchrun_it_is_the_process_that_torchrun_started(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import os; print(os.getpid(), os.environ['RANK'], os.environ.get('MASTER_PORT'))")
    environment = {**os.environ, "RANK": "5"}
    environment.pop("MASTER_PORT", None)
    process = subprocess.Popen([CLI, "run", "s.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.communicate(timeout=60)[0] == f"{process.pid} 5 None\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "variables", "ranks", "threads"),
    [
        (["--devices", "3"], {}, 3, str(max(1, len(os.sched_getaffinity(0)) // 3))),
        (["--devices", "2"], {"OMP_NUM_THREADS": "7"}, 2, "7"),
        ([], {"CUDA_VISIBLE_DEVICES": "1"}, 1, str(len(os.sched_getaffinity(0)))),
        ([], {"CUDA_VISIBLE_DEVICES": "1,0"}, 2, str(max(1, len(os.sched_getaffinity(0)) // 2))),
        ([], {"CUDA_VISIBLE_DEVICES": ""}, 1, str(len(os.sched_getaffinity(0)))),
        ([], {}, 2, str(max(1, len(os.sched_getaffinity(0)) // 2))),
    ],
)
def test_one_process_a_device(
    words: list[str], variables: dict[str, str], ranks: int, threads: str, tmp_path: Path
) -> None:
    """The machine's driver has two GPUs."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho One\necho Two\n")
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    # One write a line: the lines of several processes may come together.
    names = "('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'OMP_NUM_THREADS')"
    code = f"import os; os.write(1, (' '.join(os.environ[name] for name in {names}) + '\\n').encode())"
    (tmp_path / "s.py").write_text(code)
    shown = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", **variables}
    done = run(tmp_path, CLI, "run", *words, "s.py", **shown)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [f"{rank} {rank} {ranks} {threads}" for rank in range(ranks)]


@pytest.mark.slow
def test_an_exception_ends_with_its_traceback_and_the_ranks_name(tmp_path: Path) -> None:
    code = "import os, time\nif os.environ['RANK'] == '1':\n    raise RuntimeError('what is wrong')\ntime.sleep(600)\n"
    (tmp_path / "s.py").write_text(code)
    done = run(tmp_path, CLI, "run", "--devices", "2", "s.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert f'File "{tmp_path}/s.py", line 3, in <module>' in done.stderr
    last = "partita: rank 1 of 2 ended with exit status 1; the other ranks were stopped"
    assert done.stderr.splitlines()[-2:] == ["RuntimeError: what is wrong", last]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trian.py"], "trian.py: no such file. Did you mean 'train.py'"),
        (["own/trian.py"], "own/trian.py: no such file. Did you mean 'own/train.py'"),
        (["none/train.py"], "none/train.py: no such file.\n"),
        (["gpt3-tiny.py"], "gpt3-tiny.py: no such file. Did you mean 'gpt3-tiny'"),
        (["train"], "there is no recipe \"train\", and no file of that name. Did you mean 'train.py'"),
        (["gpt3-tinny"], "there is no recipe \"gpt3-tinny\", and no file of that name. Did you mean 'gpt3-tiny'"),
        (["zzz"], 'there is no recipe "zzz", and no file of that name. Known: alphafold2-128-1024-512'),
        (["own"], 'there is no recipe "own", and no file of that name.'),
        (["folder.py"], "folder.py: is a folder, a script is needed"),
        (["syntax.py"], "syntax.py: line 2: is not Python: '(' was never closed"),
        (["binary"], "binary: is not Python: source code string cannot contain null bytes"),
        (["--devices", "0", "train.py"], "'--devices': Input should be greater than or equal to 1"),
        (["--devices", "two", "train.py"], "'--devices': Input should be a valid integer"),
        (["--devices", "2"], "Missing argument 'RECIPE|SCRIPT'"),
        (["--device", "2", "train.py"], "No such option: --device"),
        (
            ["--devices", "2", "gpt3-tiny"],
            "--devices 2 before the recipe gpt3-tiny: it is the recipe's own option; write partita run gpt3-tiny "
            "--devices 2",
        ),
    ],
    ids=str,
)
def test_what_can_not_be_run(
    words: list[str], says: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "train.py").write_text(SCRIPT)
    (folder / "folder.py").mkdir()
    (folder / "syntax.py").write_text("a = 1\nprint(\n")
    (folder / "binary").write_bytes(b"\x7fELF\0\0")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("RANK", raising=False)
    assert main(["run", *words]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert says in err


@pytest.mark.slow
def test_devices_are_counted_once(folder: Path) -> None:
    done = run(folder, CLI, "run", "--devices", "2", "own/train.py", RANK="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("partita: --devices 2 in a process that is rank 1 already: whoever started it says")


@pytest.mark.slow
def test_a_recipes_name_is_the_recipe(folder: Path) -> None:
    shutil.copy(folder / "own" / "train.py", folder / "gpt3-tiny")
    (folder / "gpt3-tiny").write_text("print('the file')\n")
    assert "Usage: partita run gpt3-tiny" in run(folder, CLI, "run", "gpt3-tiny", "--help").stdout
    assert run(folder, CLI, "run", "./gpt3-tiny").stdout == "the file\n"
    # A traceback can be had of what goes wrong in a recipe, wherever the word stands.
    for words in (["--debug", "run", "gpt3-tiny"], ["run", "--debug", "gpt3-tiny"], ["run", "gpt3-tiny", "--debug"]):
        done = run(folder, CLI, *words, "--steps", "0")
        assert (done.returncode, "Traceback" in done.stderr) == (2, True), done.stderr
