"""What holds for the repository as a whole: its packages, its files, its words, and what its pages show."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from partita.cli.main import main

ROOT = Path(__file__).parents[1]
ROOMS = {"core": "partita", "plugins": "partita.plugins", "adapters": "partita.adapters", "recipes": "partita.recipes"}
MADE = {
    ".git", ".venv", "build", "dist", "site", "out", "partita.egg-info", "__pycache__", ".hypothesis",
    ".pytest_cache", ".mypy_cache", ".ruff_cache", ".import_linter_cache",
}  # fmt: skip
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def sources() -> Iterator[Path]:
    """Every file that somebody wrote: no environment, no cache, nothing that a target of the Makefile makes."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in MADE]
        yield from (Path(folder, name) for name in names if name not in MADE)


def blocks(page: Path, language: str) -> list[tuple[int, str, str]]:
    """Fenced blocks of a page: the number of the first line, the text, and the last line before the fence."""
    pattern = rf"^(?P<before>[^\n]*)\n```{language}\n(?P<text>.*?)^```$"
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start("text")) + 1, found["text"], found["before"].strip())
        for found in re.finditer(pattern, text, re.MULTILINE | re.DOTALL)
    ]


def test_every_package_is_installed_and_no_other() -> None:
    folders = [init.parent for room in ROOMS for init in (ROOT / room).rglob("__init__.py")]
    found = {
        ".".join([ROOMS[path.parts[0]], *path.parts[1:]]) for path in (folder.relative_to(ROOT) for folder in folders)
    }
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(found)


def test_every_module_is_in_a_package() -> None:
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    assert [str(path.relative_to(ROOT)) for path in files if not (path.parent / "__init__.py").exists()] == []


def test_no_file_is_long() -> None:
    lines = {path: len(path.read_bytes().splitlines()) for path in sources() if path.suffix in {".py", ".sh", ".md"}}
    assert {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > 500} == {}


def test_files_are_named_by_what_they_hold() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}
    names = [path.relative_to(ROOT) for path in sources()]
    assert [str(path) for path in names if vague & {*path.parts, path.stem}] == []


# Joined here, so that this file doesn't hold what it looks for.
@pytest.mark.parametrize("words", ["/wo" + "rk/", "../sha" + "red", "/tm" + "p/house", ".lib" + "rary/"])
def test_the_repository_speaks_of_itself_alone(words: str) -> None:
    assert [str(path.relative_to(ROOT)) for path in sources() if words.encode() in path.read_bytes()] == []


def test_versions_are_pinned_without_a_build() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line)] == []
    assert "torch==2.13.0" in lines


@pytest.mark.parametrize("arguments", [["-c", "import partita"], ["-m", "partita.cli.main", "--help"]])
def test_the_planner_starts_without_a_framework(arguments: list[str]) -> None:
    # What a process imported is read from the interpreter's own report, so that nothing runs inside it but the import.
    done = subprocess.run([sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True)
    imported = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "partita" in imported
    assert imported & {"torch", "deepspeed", "megatron", "transformers", "accelerate", "scipy", "numba"} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_on_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page are one program, in order."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for line, text, _ in blocks(page, "python"):
        exec(compile("\n" * (line - 1) + text, str(page), "exec"), names)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_on_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shell blocks under ``<!-- run -->``, all of a page in one folder: one reads what another wrote."""
    monkeypatch.chdir(tmp_path)
    commands = "\n".join(text for _, text, before in blocks(page, "sh") if before == "<!-- run -->")
    for line in commands.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] == "partita", f"{page.name}: only commands of partita are run, this is not one: {line}"
        assert main(words[1:]) == 0, f"{page.name}: {line}\n{capsys.readouterr().err}"
