"""A user's module as the facade of a stage: what is refused, and that refusals aren't taken for something else."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor, nn

from partita.adapters.torch.loop.facade import CHILD, FacadeError, occupy, require_free


class Net(nn.Module):
    """Two weights, of which one is in a submodule, and what a transformers model also has."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.own = nn.Parameter(torch.ones(2))
        self.register_buffer("kept", torch.ones(1))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        return self.inner(x) * self.own

    def generate(self) -> None: ...

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


def occupied(model: nn.Module) -> nn.Module:
    stage = nn.Linear(1, 1)
    occupy(model, stage, lambda *args, **kwargs: (args, kwargs), lambda: {"dense": torch.ones(1)}, {(False, False): 8})  # type: ignore[arg-type]
    return model


def test_the_parameters_are_the_stages() -> None:
    model = occupied(Net())
    assert [name for name, _ in model.named_parameters()] == [f"{CHILD}.weight", f"{CHILD}.bias"]
    assert [name for name, _ in model.named_buffers()] == ["kept"]
    assert isinstance(model, Net)
    # What others read of a module before they call it.
    assert inspect.signature(model.forward) == inspect.signature(Net().forward)
    assert model(1, labels=2) == ((1,), {"labels": 2})
    assert model.num_parameters() == 8


def test_its_state_is_the_dense_one() -> None:
    model = occupied(Net())
    assert list(model.state_dict()) == ["dense"]
    # Other models of the class are as they were.
    assert list(Net().state_dict()) == ["own", "kept", "inner.weight", "inner.bias"]


@pytest.mark.parametrize(
    ("action", "arguments"), [("load_state_dict", ({},)), ("generate", ())], ids=["load_state_dict", "generate"]
)
def test_refused(action: str, arguments: tuple[object, ...]) -> None:
    model = occupied(Net())
    with pytest.raises(FacadeError, match=rf"Net\.{action}: this rank holds a part of the model") as caught:
        getattr(model, action)(*arguments)
    assert isinstance(caught.value, RuntimeError)


def hook(module: nn.Module, *values: object) -> None: ...


def make_inputs_require_grads(module: nn.Module, *values: object) -> None: ...


@pytest.mark.parametrize(
    ("add", "words"),
    [
        (lambda model: model.inner.register_forward_hook(hook), ['"inner"', "forward hook hook", "Remove the hook"]),
        (lambda model: model.inner.register_forward_pre_hook(hook), ['"inner"', "hook"]),
        (lambda model: model.register_forward_hook(hook), ['"Net"']),
        (lambda model: occupied(model), ["given to deepspeed.initialize before", "build the model anew"]),
    ],
)
def test_not_free(add: object, words: list[str]) -> None:
    model = Net()
    add(model)  # type: ignore[operator]
    with pytest.raises(FacadeError) as caught:
        require_free(model)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_hook_that_changes_nothing_may_stay() -> None:
    model = Net()
    model.inner.register_forward_hook(make_inputs_require_grads)
    require_free(model)
