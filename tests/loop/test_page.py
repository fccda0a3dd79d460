"""Every configuration that the documentation shows is one that runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from partita.key import parse_key
from tests.ranks.pool import Pool

PAGE = Path(__file__).parents[2] / "docs" / "deepspeed.md"


def configurations() -> list[str]:
    """The JSON objects of the page: whole blocks, and blocks with one object a line."""
    found = []
    for block in re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL):
        lines = block.strip().splitlines()
        found += lines if all(line.startswith("{") and line.endswith("}") for line in lines) else [block]
    return found


def step(text: str) -> float | str:
    """The loss of a call after one step, or how the process would have ended."""
    import torch
    import torch.distributed as dist

    from tests.loop.models import batches, build
    from tests.loop.play import Case, initialize

    config = json.loads(text)
    model = build("gpt2")
    parameters = list(model.parameters())
    by_json = "optimizer" in config
    given = {"model_parameters": parameters} if by_json else {"optimizer": torch.optim.AdamW(parameters)}
    try:
        engine = initialize(model, Case("", "", config=config), **given)
    except SystemExit as end:
        return f"ended with {end.code}"
    for _ in range(2):
        loss = engine(**batches(model, 0, [4, 4])[dist.get_rank()]).loss
        engine.backward(loss)
        engine.step()
    return float(loss)


def test_keys_are_right() -> None:
    keys = [json.loads(text)["partita"] for text in configurations()]
    assert len(keys) == 7
    used = {option for key in keys for option in key}
    assert used == {"cluster", "memory_gib", "pipeline", "tensor_parallel", "seq", "fix", "dry_run"}
    for key in keys:
        parse_key(key)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(7))
def test_configurations_run(pool: Pool, number: int) -> None:
    text = configurations()[number]
    first, second = pool.run(step, 2, text, timeout=120)
    assert first == second
    if "dry_run" in text:
        assert first == "ended with 0"
    else:
        assert 0 < first < 10
