"""Values of every wrong kind at every key: findings or nothing, never a defect."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from partita.plugins.check.checking import check_documents
from partita.plugins.check.recognise import read_documents
from partita.plugins.check.report import document, text
from partita.plugins.check.settings import Asked
from partita.plugins.check.tables import arity, table

pytestmark = pytest.mark.slow

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2.5,
    10**30,
    "auto",
    "x",
    "",
    [],
    [None],
    {},
    {"a": {"b": []}},
    {"enabled": "yes"},
)


def known(keys: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, below in keys.items():
        yield (*above, key)
        if isinstance(below, dict):
            yield from known(below, (*above, key))


def answered(folder: Path, content: str, *others: str) -> None:
    (folder / "config.json").write_text(content)
    report = check_documents(read_documents([str(folder / "config.json"), *others]), Asked(8, 2, 2, 64), None, None)
    assert json.loads(json.dumps(document(report)))["ok"] is report.ok
    assert text(report)


@pytest.mark.parametrize("section", table("deepspeed_keys")["keys"])
def test_deepspeed(section: str, tmp_path: Path) -> None:
    other = tmp_path / "args.json"
    other.write_text(json.dumps({"output_dir": "out", "bf16": True, "per_device_train_batch_size": 2}))
    for path in known({section: table("deepspeed_keys")["keys"][section]}):
        for value in ODD:
            config: Any = value
            for key in reversed(path):
                config = {key: config}
            answered(tmp_path, json.dumps({"steps_per_print": 1, **config}))
        answered(tmp_path, json.dumps({"steps_per_print": 1, **config}), str(other))


def test_training_arguments(tmp_path: Path) -> None:
    for key in table("training_arguments")["keys"]:
        for value in ODD:
            if key == "deepspeed" and value == "x":
                continue
            answered(tmp_path, json.dumps({"output_dir": "out", "seed": 1, key: value}))


def test_megatron(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    for flag in arity():
        for value in ("", "0", "-1", "x", "9" * 30, "$UNSET", "1 2 3"):
            path.write_text(f"--num-layers 4 --hidden-size 8\n{flag} {value}\n")
            report = check_documents(read_documents([str(path)]), Asked(8, None, None, 64), None, None)
            assert text(report)
