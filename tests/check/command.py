"""How the tests ask: files are written, the command runs, and its one JSON document is the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from partita.cli.main import main


class Check:
    """``partita check`` in a folder of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]):
        self.folder, self.capsys = folder, capsys

    def __call__(self, files: Mapping[str, Any], *arguments: str, status: int | None = None) -> dict[str, Any]:
        """The document for these files (text, or an object that becomes JSON with a key a line)."""
        names = [self.write(name, content) for name, content in files.items()]
        found = main(["check", *names, "--json", *arguments])
        out, err = self.capsys.readouterr()
        assert err == ""
        document: dict[str, Any] = json.loads(out)
        assert found == (0 if document["ok"] else 1)
        assert status in (None, found), out
        return document

    def write(self, name: str, content: Any) -> str:
        text = content if isinstance(content, str) else json.dumps(content, indent=1)
        (self.folder / name).write_text(text)
        return name

    def refused(self, *arguments: str) -> str:
        """The message of a command that ends with 2."""
        assert main(["check", *arguments]) == 2
        out, err = self.capsys.readouterr()
        assert out == ""
        assert err.startswith("partita: ")
        assert "Traceback" not in err
        return err


def problems(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in document["findings"] if finding["severity"] == "problem"]


def paths(document: Mapping[str, Any], severity: str) -> list[str]:
    """Paths of the findings, in order."""
    return [finding["path"] for finding in document["findings"] if finding["severity"] == severity]
