"""The example on the verb's page is what the command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from partita.cli.main import main
from tests.check.command import Check

PAGE = Path(__file__).parents[2] / "docs" / "verbs" / "check.md"


def test_the_example_of_the_page(check: Check) -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[:3]
    (_, config), (_, command), (_, printed) = blocks
    assert [language for language, _ in blocks] == ["json", "sh", "text"]
    check.write("ds_config.json", config)
    assert main(shlex.split(command)[1:]) == 1
    assert check.capsys.readouterr().out == printed
