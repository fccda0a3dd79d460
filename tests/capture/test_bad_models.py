"""Models that can't be captured: one ModelError each, with the facts. And that a skeleton never holds a whole model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from partita.errors import ModelError

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from partita.plugins.capture_torch import build_skeleton, capture_module  # noqa: E402

X = torch.ones(2, 4)


class Model(nn.Module):
    """A weight of 4 numbers, further modules, and a forward pass that is given."""

    def __init__(self, run: Callable[..., Any], *parts: nn.Module):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.parts = nn.ModuleList(parts)
        self.run = run

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)


def plain(model: Model, x: torch.Tensor) -> torch.Tensor:
    return (x * model.weight).sum()


def branches(model: Model, x: torch.Tensor) -> torch.Tensor:
    y = plain(model, x)
    return y * 2 if y > 0 else y


def loops(model: Model, x: torch.Tensor) -> torch.Tensor:
    for _ in range(int(x[0, 0])):
        x = x * model.weight
    return x.sum()


def picks(model: Model, x: torch.Tensor) -> torch.Tensor:
    return (x * model.weight)[x > 0].sum()


def normalised(model: Model, x: torch.Tensor) -> torch.Tensor:
    return plain(model, model.parts[0](x))


def detached(model: Model, x: torch.Tensor) -> torch.Tensor:
    return plain(model, x) * model.parts[0].weight.detach().sum()


def raises() -> nn.Module:
    raise KeyError("hidden_size")


BAD = {
    "a branch on a value": (lambda: Model(branches), {"x": X}, ["Model", "depends on the values of tensors"]),
    "a loop as long as a value": (lambda: Model(loops), {"x": X}, ["Model", "depends on the values of tensors"]),
    "a size that is a value": (lambda: Model(picks), {"x": X}, ["tensor", "depends on data"]),
    "a function that raises": (raises, {"x": X}, ["the model's function raised KeyError", "hidden_size"]),
    "a function that exits": (lambda: sys.exit(3), {"x": X}, ["the model's function raised SystemExit: 3"]),
    "nothing returned": (lambda: None, {"x": X}, ["returned a NoneType", "not an nn.Module"]),
    "no module": (lambda: {"model": 1}, {"x": X}, ["returned a dict"]),
    "batch normalisation": (
        lambda: Model(normalised, nn.BatchNorm1d(4)), {"x": X}, ['"parts.0.running_mean"', "batch normalisation"]
    ),
    "parameters never read": (
        lambda: Model(plain, nn.Linear(3, 3)), {"x": X}, ["parts.0.weight, parts.0.bias", "freeze or remove"]
    ),
    "many parameters never read": (
        lambda: Model(plain, *[nn.Linear(3, 3) for _ in range(4)]), {"x": X}, ["parts.2.weight and 3 more"]
    ),
    "a parameter read without its gradient": (
        lambda: Model(detached, nn.Linear(3, 3, bias=False)), {"x": X}, ["does not depend on: parts.0.weight;"]
    ),
    "a model without parameters": (nn.Identity, (X,), ["Identity returns nothing that depends on a parameter"]),
    "a loss of the inputs alone": (lambda: Model(lambda m, x: x.sum()), (X,), ["Model returns nothing"]),
    "no output": (lambda: Model(lambda m, x: None), (X,), ["Model returns nothing"]),
    "buffers on the meta device": (
        lambda: Model(normalised, nn.BatchNorm1d(4)).to("meta"), {"x": X},
        ["without values", "parts.0.running_mean", "outside torch.device('meta')"],
    ),
    "an input of another name": (lambda: Model(plain), {"X": X}, ["Model.forward(x)", "(X)", 'no "X"', "x"]),
    "an input too many": (lambda: Model(plain), (X, X), ["Model.forward(x)", "(2 by position)", "too many"]),
    "an input too few": (lambda: Model(plain), {}, ["Model.forward(x)", "(none)", "'x'"]),
    "an input of another shape": (lambda: Model(plain), (torch.ones(2, 5),), ["can't capture Model", "4", "5"]),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", BAD)
def test_a_model_that_cannot_be_captured(what: str) -> None:
    factory, inputs, words = BAD[what]
    with pytest.raises(ModelError) as error:
        capture_module(factory, inputs, name="bad")
    for word in words:
        assert word in str(error.value), f"{word!r} is not in: {error.value}"


def test_a_model_made_on_the_meta_device_is_fine_without_buffers() -> None:
    def build() -> nn.Module:
        with torch.device("meta"):
            return Model(plain)

    assert capture_module(build, {"x": X}, name="meta").graph == capture_module(
        lambda: Model(plain), {"x": X}, name="meta"
    ).graph  # fmt: skip


def test_frozen_parameters_need_no_gradient() -> None:
    def build() -> nn.Module:
        model = Model(detached, nn.Linear(3, 3, bias=False))
        model.parts[0].requires_grad_(False)
        return model

    graph = capture_module(build, {"x": X}, name="frozen").graph
    assert {t.name: t.gradient for t in graph.tensors if t.role == "parameter"} == {
        "weight": True, "parts.0.weight": False,
    }  # fmt: skip


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shared = nn.Parameter(torch.ones(4))
        self.first = shared
        self.second = shared
        self.other = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.first + x * self.second * self.other).sum()


def test_a_parameter_registered_twice_stays_one() -> None:
    skeleton = build_skeleton(Tied)
    assert skeleton.canonical == {"first": "first", "second": "first", "other": "other"}
    graph = capture_module(Tied, {"x": X}, name="tied").graph
    assert graph.aliases == {"second": "first"}
    assert graph.parameter_count == 8


class Cached(nn.Module):
    """As models for generation do: keeps what it computed, in an object, unless its configuration says not to."""

    class Settings:
        use_cache = True

    def __init__(self) -> None:
        super().__init__()
        self.config = self.Settings()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> tuple[Any, ...]:
        y = x * self.weight
        return (y.sum(), object()) if self.config.use_cache else (y.sum(),)


def test_caches_for_generation_are_off_only_while_a_model_is_captured() -> None:
    captured = capture_module(Cached, {"x": X}, name="cached")
    assert [op.kind for op in captured.graph.ops] == ["mul", "sum"]
    assert captured.skeleton.model.config.use_cache is True


# 12 matrices of 36 MB, each filled with numbers, so that all its pages are touched: 432 MB in all.
BIG = """
import sys, torch
from pathlib import Path
from torch import nn
from partita.plugins.capture_torch import build_skeleton

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3000, 3000), 0.5))

def resident(what):
    status = Path("/proc/self/status").read_text()
    return int(status.split(what + ":")[1].split()[0]) * 1024  # kB there are KiB

build_skeleton(lambda: nn.Sequential(nn.Linear(4, 4)))
Path("/proc/self/clear_refs").write_text("5")  # forgets the peak that the imports had
before = resident("VmRSS")
if sys.argv[1] == "skeleton":
    model = build_skeleton(lambda: nn.Sequential(*[Layer() for _ in range(12)])).model
else:
    model = nn.Sequential(*[Layer() for _ in range(12)])
print(sum(p.numel() * 4 for p in model.parameters()), resident("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read as Linux counts it")
def test_a_skeleton_never_holds_more_than_one_parameter() -> None:
    largest = 4 * 3000 * 3000
    grown = {}
    for what in ("skeleton", "model"):
        command = [sys.executable, "-c", BIG, what]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        size, grown[what] = map(int, done.stdout.split())
        assert size == 12 * largest > 400e6
    assert grown["skeleton"] < 2 * largest
    # The measure itself: the model built as always takes all of its bytes.
    assert grown["model"] > 11 * largest


def test_weights_that_would_be_lost_are_refused() -> None:
    def loads() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4))
        model.load_state_dict({"0.weight": torch.zeros(4, 4), "0.bias": torch.zeros(4)})
        return model

    with pytest.raises(ModelError, match=r"loads weights into Sequential, and they would be lost"):
        build_skeleton(loads)
    built = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(ModelError, match=r'built before \("0.weight" has storage already\)'):
        build_skeleton(lambda: built)
    assert nn.Module.load_state_dict.__name__ == "load_state_dict"


def test_a_loss_that_is_a_sum_is_refused() -> None:
    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self.head(x), labels, reduction="sum")

    inputs = {"x": torch.zeros(2, 4), "labels": torch.zeros(2, dtype=torch.long)}
    with pytest.raises(ModelError, match=r'is a sum over tokens.*reduction="mean"'):
        capture_module(Summed, inputs, name="summed")
