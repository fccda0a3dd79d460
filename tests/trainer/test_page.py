"""The configuration on the Trainer's page is that of the example, which the other tests run."""

from __future__ import annotations

import json
import re
from pathlib import Path

from partita.key import parse_key

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_shows_the_example() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", (DOCS / "trainer.md").read_text(), re.DOTALL)
    example = json.loads((DOCS / "examples" / "trainer" / "ds.json").read_text())
    assert json.loads(shown) == example
    parse_key(example["partita"])
