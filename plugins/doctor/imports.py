"""Tries imports in another process and reads how they went, whatever happens to that process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# A first import after an installation compiles thousands of files; a hang is said to be one after this long.
SECONDS = 60.0


@dataclass(frozen=True)
class Import:
    """How the import of a module went: ``error`` is None when it did. ``facts`` are what the module then said."""

    module: str
    error: str | None
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)


def imports(modules: Sequence[str], seconds: float = SECONDS) -> list[Import]:
    """Import the modules one after another, in one process while it lives: most of them import torch, which takes long.

    After a crash, or after so many ``seconds``, the module that was being imported is blamed and the rest is tried
    again; not after torch, which the rest would import too.
    """
    found: list[Import] = []
    while len(found) < len(modules):
        left = modules[len(found) :]
        answers, end = _process(left, seconds)
        found += answers
        if len(answers) < len(left):
            blamed = left[len(answers)]
            found.append(Import(blamed, end))
            if blamed == "torch":
                found += [Import(module, "not tried, since it imports torch") for module in modules[len(found) :]]
    return found


def _process(modules: Sequence[str], seconds: float) -> tuple[list[Import], str]:
    """The answers that one process gave, and how it ended."""
    # -P: a file torch.py in the current folder is not torch.
    command = [sys.executable, "-P", "-m", "partita.plugins.doctor.probe", *modules]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        return [], f"{sys.executable} can't be started: {error.strerror}"
    try:
        out, err = process.communicate(timeout=seconds)
        end = _ended(process.returncode, err)
    except subprocess.TimeoutExpired:
        _kill(process)
        out, _ = process.communicate()
        end = f"did not end within {seconds:g} seconds"
    except BaseException:
        _kill(process)
        raise
    answers = [json.loads(line) for line in out.decode(errors="replace").splitlines()]
    return [Import(a["module"], a["error"], a["seconds"], a["facts"]) for a in answers], end


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it started, such as a compiler; they are a session of their own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _ended(status: int, err: bytes) -> str:
    lines = err.decode(errors="replace").strip().splitlines()
    last = f": {lines[-1][:300]}" if lines else ""
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}{last}"
    return f"the process ended with status {status}{last}"
