"""What the wrap around deepspeed.initialize does without the key: nothing. And with it: everything by name."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import partita.adapters.deepspeed.front as front
from partita.adapters.deepspeed.wrap import MARK, install
from partita.errors import InputError

CONFIG = {"train_batch_size": 8}


@pytest.fixture(scope="module")
def deepspeed() -> Any:
    """Not at the top: tests that are selected by name or mark needn't wait for it."""
    return pytest.importorskip("deepspeed")


@pytest.fixture
def calls(deepspeed: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """The wrap around a function that writes down what it is called with; so does what makes a plan."""
    found: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    signature = inspect.signature(getattr(deepspeed.initialize, MARK, deepspeed.initialize))

    def original(*args: Any, **kwargs: Any) -> str:
        found.append(("original", args, kwargs))
        return "what DeepSpeed returns"

    original.__signature__ = signature  # type: ignore[attr-defined]
    monkeypatch.setattr(deepspeed, "initialize", original)
    monkeypatch.setattr(front, "initialize_with_plan", lambda *args: found.append(("plan", args, {})) or "engine")
    install()
    assert deepspeed.initialize is not original
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.mark.slow
def test_the_very_same_arguments_go_on(deepspeed: Any, calls: list[Any], file: Path) -> None:
    model, args = object(), SimpleNamespace(deepspeed_config=str(file))
    for positional, named in [
        ((), {"model": model, "config": CONFIG}),
        ((args, model), {}),
        ((None, model), {"config_params": CONFIG}),
        ((), {"model": model, "config": str(file)}),
        ((), {"model": model}),
        ((), {"model": model, "config": "no such file.json"}),
        ((), {"model": model, "config": 7}),
        ((), {"model": model, "config": {}}),
    ]:
        calls.clear()
        assert deepspeed.initialize(*positional, **named) == "what DeepSpeed returns"
        ((who, seen, seen_named),) = calls
        assert who == "original"
        assert len(seen) == len(positional)
        assert all(one is other for one, other in zip(seen, positional, strict=True))
        assert seen_named.keys() == named.keys()
        assert all(seen_named[name] is named[name] for name in named)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["config", "config_params", "args", "positional", "file"])
def test_the_key_is_found_wherever_deepspeed_reads(deepspeed: Any, calls: list[Any], file: Path, how: str) -> None:
    config, model = {**CONFIG, "partita": {}}, object()
    file.write_text(json.dumps(config))
    args = SimpleNamespace(deepspeed_config=str(file))
    result = {
        "config": lambda: deepspeed.initialize(model=model, config=config),
        "config_params": lambda: deepspeed.initialize(None, model, config_params=config),
        "args": lambda: deepspeed.initialize(args=args, model=model),
        "positional": lambda: deepspeed.initialize(args, model),
        "file": lambda: deepspeed.initialize(model=model, config=str(file)),
    }[how]()
    assert result == "engine"
    ((who, (seen, given), _),) = calls
    assert who == "plan"
    assert seen == config
    assert given["model"] is model


@pytest.mark.slow
def test_a_wrong_call_is_deepspeeds_to_refuse(deepspeed: Any, calls: list[Any]) -> None:
    deepspeed.initialize(no_such_argument=1)
    assert calls == [("original", (), {"no_such_argument": 1})]


@pytest.mark.slow
def test_installed_once(deepspeed: Any, calls: list[Any]) -> None:
    before = deepspeed.initialize
    install()
    assert deepspeed.initialize is before
    assert not hasattr(getattr(before, MARK), MARK)


@pytest.mark.slow
def test_it_looks_like_the_original(deepspeed: Any, calls: list[Any]) -> None:
    assert inspect.signature(deepspeed.initialize) == inspect.signature(getattr(deepspeed.initialize, MARK))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ["NoneType", "a module is needed"]),
        ({"model": "gpt2"}, ["str", "a module is needed"]),
        ({"mpu": object()}, ["mpu", "makes its own groups"]),
        ({"mesh_param": (1, 2)}, ["mesh_param"]),
    ],
)
def test_what_a_plan_cannot_be_made_for(given: dict[str, Any], words: list[str]) -> None:
    import torch

    given = given if not given or "model" in given else {"model": torch.nn.Linear(2, 2), **given}
    with pytest.raises(InputError) as caught:
        front.initialize_with_plan({**CONFIG, "partita": {}}, given)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.slow
@pytest.mark.parametrize("first", ["import partita.adapters.deepspeed", "import deepspeed", "import torch, deepspeed"])
def test_imported_in_any_order(first: str) -> None:
    code = f"{first}; import deepspeed; print(hasattr(deepspeed.initialize, {MARK!r}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert found.stdout.split()[-1] == "True"
    assert "partita:" not in found.stderr
