"""Environments to examine: this one without its frameworks, and packages put into it that don't work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

FRAMEWORKS = ("torch", "deepspeed", "megatron-core", "transformers", "accelerate")


@dataclass(frozen=True)
class Environment:
    """A virtual environment whose packages are links to this one's."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        return self.folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"

    def install(self, name: str, version: str, files: dict[str, str], entry_points: str = "") -> None:
        """A package with these files, as an installer would leave it."""
        info = self.packages / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(entry_points)
        for path, text in files.items():
            (self.packages / path).parent.mkdir(parents=True, exist_ok=True)
            (self.packages / path).write_text(text)

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Its interpreter with these arguments, in an empty folder."""
        return subprocess.run(
            [self.python, *words], cwd=self.folder, capture_output=True, text=True, timeout=120,
            env={**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", **variables},
        )  # fmt: skip

    def doctor(self, status: int, **variables: str) -> dict[str, Any]:
        """What the doctor answers, whose exit status must be this one, and who says nothing else."""
        done = self.run("-m", "partita.plugins.doctor", "--json", **variables)
        assert (done.returncode, done.stderr) == (status, ""), done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["ok"] is (status == 0)
        return found


def bare(folder: Path) -> Environment:
    """An environment without frameworks."""
    venv.create(folder, symlinks=True)
    made = Environment(folder)
    here = Path(site_packages())
    left_out = {
        path.parts[0] for name in FRAMEWORKS if _installed(name) for path in distribution(name).files or ()
    }  # fmt: skip
    for path in here.iterdir():
        if path.name not in left_out and path.name != "__pycache__":
            (made.packages / path.name).symlink_to(path)
    return made


def site_packages() -> Path:
    """The folder that packages are installed in here."""
    return Path(str(distribution("pytest").locate_file("")))


def _installed(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError

    try:
        return bool(distribution(name))
    except PackageNotFoundError:
        return False
