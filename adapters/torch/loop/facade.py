"""The user's own module, as the loop holds it: its parameters are those of this rank's stage, calling it runs the plan.

The object stays the one that the user made, so that its class, configuration and saving go on as before. Its
submodules have no parameters any more; the stage is one more submodule.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
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
        hooks = {
            "forward": (*module._forward_hooks.values(), *module._forward_pre_hooks.values()),
            "backward": (*module._backward_hooks.values(), *module._backward_pre_hooks.values()),
        }
        for kind, given in hooks.items():
            _refuse_hooks(f'the module "{path or what}"', f"{kind} hook", given)
    for path, parameter in model.named_parameters():
        # None where there never was one.
        for more in (parameter._backward_hooks, parameter._post_accumulate_grad_hooks):
            _refuse_hooks(f'the parameter "{path}"', "hook", (more or {}).values())


def _refuse_hooks(where: str, kind: str, hooks: Iterable[Any]) -> None:
    for hook in hooks:
        name = getattr(hook, "__name__", type(hook).__name__)
        if name not in HARMLESS:
            raise FacadeError(
                f"{where} has the {kind} {name}: a plan runs the model's ops on parts of its parameters, not its "
                "modules, and would never call it. Remove the hook, or take the key partita out"
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
    for path, module in model.named_modules():
        if path and next(module.parameters(), None) is not None:
            _refuse_state(module, f"{what}.{path}")
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

    def state_dict(*args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> dict[str, Tensor]:
        if args or destination is not None or prefix or keep_vars:
            raise FacadeError(
                f"{what}.state_dict takes no destination, prefix or keep_vars, and is no part of another module's: it "
                "gathers the dense weights of all ranks. Call it alone, and change what it returns"
            )
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


def _refuse_state(module: nn.Module, name: str) -> None:
    """The weights of a part of the model are not the part's own: its state would be empty, and say nothing of it."""
    own = module.state_dict

    @functools.wraps(own)
    def state_dict(*args: Any, **kwargs: Any) -> Any:
        # Called by the state of the module around it.
        if args or kwargs.get("destination") is not None:
            return own(*args, **kwargs)
        raise FacadeError(
            f"{name}.state_dict: this rank holds a part of the model, under other names. Call the whole model's "
            "state_dict on every rank, and take the names that begin with the part's"
        )

    module.state_dict = state_dict  # type: ignore[method-assign, assignment]


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
    # A model may have a word of its own by this name.
    if getattr(model.type, "__func__", None) is nn.Module.type:
        # Of a type or its name, which may say a device too.
        model.type = keeping(model.type, lambda dst_type: torch.empty(0).type(dst_type).dtype)  # type: ignore[method-assign]
    changes = {"half": torch.float16, "bfloat16": torch.bfloat16, "float": torch.float32, "double": torch.float64}
    for name, other in changes.items():
        setattr(model, name, keeping(getattr(model, name), lambda other=other: other))
