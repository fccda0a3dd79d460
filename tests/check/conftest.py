"""The command in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check.command import Check


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    monkeypatch.chdir(tmp_path)
    return Check(tmp_path, capsys)
