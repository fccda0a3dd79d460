from __future__ import annotations

from pathlib import Path

import pytest

from partita.cli.main import main
from tests.report.pages import Step, step


def planned(folder: Path, model: str, cluster: str, batch: int, **fixed: int) -> Path:
    """A plan with these decisions held."""
    file = folder / "plan.json"
    held = [word for name, value in fixed.items() for word in ("--fix", f"{name}={value}")]
    assert main(["plan", model, "--cluster", cluster, "--global-batch", str(batch), *held, "-o", str(file)]) == 0
    return file


@pytest.fixture(scope="session")
def two_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    return planned(folder, "gpt3-tiny", "2xa100-80gb", 8, pp=2, micro_batches=4)


@pytest.fixture(scope="session")
def two(two_file: Path) -> Step:
    """Two stages on two devices, four micro-batches."""
    return step(two_file)


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Step:
    """32 devices that all do something else, 64 micro-batches."""
    folder = tmp_path_factory.mktemp("large")
    return step(planned(folder, "gpt3-6.7b", "4x8xa100-80gb", 64, pp=32, micro_batches=64))


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Step:
    """64 devices, 16 of each stage doing the same, collectives inside turns."""
    folder = tmp_path_factory.mktemp("wide")
    return step(planned(folder, "gpt3-tiny", "8x8xa100-80gb", 64, pp=4, tp=2, dp=8, micro_batches=4))
