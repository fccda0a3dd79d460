"""The user's own module, as the loop holds it: its parameters are those of this rank's stage, calling it runs the plan.

The object stays the one that the user made, so that its class, configuration and saving go on as before. Its
submodules have no parameters any more; the stage is one more submodule.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from partita.adapters.torch.stage import StageModule
from partita.errors import PartitaError

# Where the stage stands among the module's children.
CHILD = "partita"
# Hooks that change nothing in what the module computes: transformers sets one where activations are recomputed.
HARMLESS = ("make_inputs_require_grads",)


class FacadeError(PartitaError, RuntimeError):
    """What can't be done with a module that holds one rank's part. A RuntimeError: transformers takes a ValueError that
    saving raises for a matter of settings, and goes on without the weights."""


def require_free(model: nn.Module) -> None:
    """FacadeError for a module that a plan has already, or that has hooks that the plan would never call."""
    what = type(model).__name__
    if CHILD in model._modules:
        raise FacadeError(f"this {what} has been given to deepspeed.initialize before; build the model anew")
    for path, module in model.named_modules():
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            name = getattr(hook, "__name__", type(hook).__name__)
            if name not in HARMLESS:
                raise FacadeError(
                    f'the module "{path or what}" has the forward hook {name}: a plan runs the model\'s ops and '
                    "not its modules, and would never call it. Remove the hook, or take the key partita out"
                )


def occupy(
    model: nn.Module,
    stage: StageModule,
    call: Callable[..., Any],
    state: Callable[[], dict[str, Tensor]],
    count: Mapping[tuple[bool, bool], int],
) -> None:
    """Turn a model into the facade of a stage. ``call`` runs it, ``state`` gives the dense weights, ``count`` is what
    its num_parameters(only_trainable, exclude_embeddings) says of the whole model, empty where it has none."""
    what = type(model).__name__
    for module in model.modules():
        if module._parameters:
            # Some print their weights' shapes.
            module.extra_repr = functools.partial(str, module.extra_repr())  # type: ignore[method-assign]
        for name in module._parameters:
            module._parameters[name] = None
    forward = model.forward
    model.add_module(CHILD, stage)

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    def state_dict(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return state()

    def refuse(action: str, instead: str) -> Callable[..., NoReturn]:
        def refused(*args: Any, **kwargs: Any) -> NoReturn:
            raise FacadeError(f"{what}.{action}: this rank holds a part of the model. {instead}")

        return refused

    # On the object: its class stays as it is for all other models.
    model.forward = run  # type: ignore[method-assign]
    model.state_dict = state_dict  # type: ignore[method-assign, assignment]
    if count:
        model.num_parameters = lambda only_trainable=False, exclude_embeddings=False: count[
            bool(only_trainable), bool(exclude_embeddings)
        ]
    model.load_state_dict = refuse(  # type: ignore[method-assign]
        "load_state_dict", "Load the weights before deepspeed.initialize, or engine.load_checkpoint after it"
    )
    again = "Save it, and load it in a process without the key partita"
    for action in ("generate", "resize_token_embeddings", "tie_weights"):
        if hasattr(model, action):
            setattr(model, action, refuse(action, again))


def keep_dtype(model: nn.Module, dtype: torch.dtype) -> None:
    """From now on FacadeError where a facade is turned to another precision: the plan's code is exported for one."""

    def keeping(change: Callable[..., nn.Module], asked: Callable[..., torch.dtype | None]) -> Callable[..., nn.Module]:
        def changed(*args: Any, **kwargs: Any) -> nn.Module:
            found = asked(*args, **kwargs)
            if found not in (None, dtype):
                raise FacadeError(
                    f"{type(model).__name__} can't be turned to {found}: its plan computes in {dtype}. Say the "
                    "precision in DeepSpeed's configuration, before the plan is made"
                )
            return change(*args, **kwargs)

        return changed

    model.to = keeping(model.to, lambda *args, **kwargs: torch._C._nn._parse_to(*args, **kwargs)[1])  # type: ignore[method-assign]
    for name, other in (("half", torch.float16), ("bfloat16", torch.bfloat16), ("float", torch.float32)):
        setattr(model, name, keeping(getattr(model, name), lambda other=other: other))
