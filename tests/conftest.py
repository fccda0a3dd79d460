"""What all tests share: the folder from which they import one another, and the one pool of ranks."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Before anything from tests is imported: a rank gets this path too, and finds a test's function by its module's name.
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

# Texts are as wide as where there is no terminal, whoever starts the tests.
os.environ.pop("COLUMNS", None)

# Its assertions are those of many tests: they should say what they compared.
pytest.register_assert_rewrite("tests.runtime.parity", "tests.runtime.library")

from tests.ranks.pool import Pool  # noqa: E402

# As tests/ranks/captures.py has it, which imports torch.
CAPTURES = "PARTITA_TESTS_CAPTURES"


# A third of the time in which tests are collected went into looking for garbage among what is kept.
gc.set_threshold(100_000)


def pytest_collection_finish() -> None:
    """Nor need it be looked through later."""
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """One folder for all captures of a run: workers find its name in their environment."""
    if CAPTURES not in os.environ:
        folder = os.environ[CAPTURES] = tempfile.mkdtemp(prefix="captures.")
        config.add_cleanup(lambda: os.environ.pop(CAPTURES) and shutil.rmtree(folder, ignore_errors=True))


@pytest.fixture(scope="session")
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """Live processes; they start when a test first runs something on them. No fast test needs a framework there."""
    made = Pool(captures=Path(os.environ[CAPTURES]), frameworks=request.config.getoption("markexpr") != "not slow")
    yield made
    made.close()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Of tiny tensors more threads for each virtual device cost more than they give."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def partita(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must end with ``status`` and nothing on stderr; returns what it printed."""
    from partita.cli.main import main

    def run(*words: object, status: int = 0) -> str:
        found = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert (found, err) == (status, "")
        return out

    return run
