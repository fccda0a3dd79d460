"""A user's module as the facade of a stage: what is refused, and that refusals aren't taken for something else."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor, nn

from partita.adapters.torch.loop.facade import CHILD, FacadeError, keep_dtype, occupy, require_free


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
        (lambda model: model.inner.register_full_backward_hook(hook), ['"inner"', "the backward hook hook"]),
        (lambda model: model.inner.register_full_backward_pre_hook(hook), ['"inner"', "the backward hook hook"]),
        (lambda model: model.inner.weight.register_hook(hook), ['the parameter "inner.weight" has the hook hook']),
        (
            lambda model: model.own.register_post_accumulate_grad_hook(hook),
            ['the parameter "own" has the hook hook', "Remove the hook"],
        ),
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


@pytest.mark.parametrize("arguments", [{"prefix": "model."}, {"destination": {}}, {"keep_vars": True}], ids=str)
def test_a_state_that_would_be_another(arguments: dict[str, object]) -> None:
    with pytest.raises(FacadeError, match=r"Net\.state_dict takes no destination, prefix or keep_vars"):
        occupied(Net()).state_dict(**arguments)


def test_as_a_part_of_another_module() -> None:
    with pytest.raises(FacadeError, match="is no part of another module's"):
        nn.Sequential(occupied(Net())).state_dict()


def test_the_state_of_a_part() -> None:
    model = occupied(nn.Sequential(Net(), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), nn.Dropout()))
    for part, name in ((model[0], "0"), (model[0].inner, r"0\.inner"), (model[1], "1"), (model[1][1], r"1\.1")):
        with pytest.raises(FacadeError, match=rf"Sequential\.{name}\.state_dict: this rank holds a part of the model"):
            part.state_dict()
    # These have nothing that could be missing.
    assert [dict(part.state_dict()) for part in (model[1][0], model[2])] == [{}, {}]
    # What the model itself holds is read through its parts.
    assert list(nn.Module.state_dict(model)) == ["0.kept", f"{CHILD}.weight", f"{CHILD}.bias"]


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.double(), lambda model: model.half(), lambda model: model.type(torch.float64),
        lambda model: model.type("torch.DoubleTensor"), lambda model: model.to(torch.float64),
    ],
)  # fmt: skip
def test_another_precision(change: object) -> None:
    model = occupied(Net())
    keep_dtype(model, torch.float32)
    with pytest.raises(
        FacadeError, match=r"Net can't be turned to torch\.float(16|64): its plan computes in torch.float32"
    ):
        change(model)  # type: ignore[operator]
    assert model.type(torch.float32) is model.float() is model.to("cpu") is model


def test_a_model_with_a_type_of_its_own() -> None:
    model = occupied(Net())
    model.type = "encoder"  # type: ignore[assignment, method-assign]
    keep_dtype(model, torch.float32)
    assert model.type == "encoder"
