"""``package.module:function`` to a graph: imports the module, calls the function, captures what it returns."""

from __future__ import annotations

import copy
import importlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch import nn

from partita.errors import ModelError, nearest
from partita.graph import Graph
from partita.plugins.capture_torch.capture import capture_module
from partita.plugins.capture_torch.example import arguments_of
from partita.plugins.capture_torch.skeleton import parameters_on_meta

WANTED = "(model, example_inputs): an nn.Module or a function that builds one, and a dict, tuple or list of its inputs"

# The loggers that repeat, at length, what the error of a failed export says.
LOUD = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")


def capture_function(name: str, seq: int | None, dtype: str) -> Graph:
    """The graph of the model that the function returns; its samples and sequence are those of the example inputs.

    The module is looked for in the current folder too. ModelError quotes ``name`` and says what raised or what is
    wrong with the returned value.
    """
    function = _function(name)
    try:
        # A model that the function builds gets no storage either.
        with parameters_on_meta():
            returned = function()
    except (Exception, SystemExit) as error:
        raise ModelError(f"{name} raised {type(error).__name__}: {error}{_place(error)}") from error
    model, inputs = _pair(name, returned)
    factory = (lambda: model) if isinstance(model, nn.Module) else model
    try:
        with _quiet():
            graph = capture_module(factory, inputs, name=name.partition(":")[2], dtype=getattr(torch, dtype)).graph
    except ModelError as error:
        raise ModelError(f"{name}: {error}{_place(error.__cause__)}") from error
    if seq not in (None, graph.seq):
        has = "have no sequence" if graph.seq is None else f"have seq={graph.seq}"
        raise ModelError(f"{name}: its example inputs {has}, not {seq}; leave out --seq or change the function")
    return graph


def module_of_function(name: str) -> tuple[Callable[[], nn.Module], Callable[[int], dict[str, Any]]]:
    """What builds the model that the function returns, and its arguments by name for any number of samples: those of
    the example, again and again.

    ModelError as for ``capture_function``.
    """
    function = _function(name)

    def returned() -> tuple[Any, Any]:
        try:
            return _pair(name, function())
        except (Exception, SystemExit) as error:
            if isinstance(error, ModelError):
                raise
            raise ModelError(f"{name} raised {type(error).__name__}: {error}{_place(error)}") from error

    def build() -> nn.Module:
        model = returned()[0]
        # A module that was made once and kept would be trained by whoever had it before.
        return copy.deepcopy(model) if isinstance(model, nn.Module) else model()

    inputs = returned()[1]
    if not isinstance(inputs, Mapping):
        inputs = arguments_of(build(), inputs)
    rows = next((len(value) for value in inputs.values() if isinstance(value, torch.Tensor) and value.dim()), 1)

    def example(samples: int) -> dict[str, Any]:
        return {
            key: value[torch.arange(samples) % rows]
            if isinstance(value, torch.Tensor) and value.dim() and len(value) == rows
            else value
            for key, value in inputs.items()
        }

    return build, example


def _function(name: str) -> Callable[[], Any]:
    place, _, attribute = name.partition(":")
    # As `python -m` does, and where a user who writes my_model:build expects it.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise ModelError(f"{name}: importing {place} raised ModuleNotFoundError: {error}{_place(error)}") from error
        raise ModelError(f'{name}: there is no module "{error.name}" here ({os.getcwd()}) or installed') from None
    except (Exception, SystemExit) as error:
        raise ModelError(f"{name}: importing {place} raised {type(error).__name__}: {error}{_place(error)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            offered = [key for key, value in vars(found).items() if callable(value) and not key.startswith("_")]
            raise ModelError(f'{name}: {place} has no "{part}".{nearest(part, offered)}')
        found = getattr(found, part)
    if not callable(found):
        raise ModelError(f"{name} is {_kind(found)}, not a function; it must return {WANTED}")
    return found  # type: ignore[no-any-return]


@contextmanager
def _quiet() -> Iterator[None]:
    """Where an export fails, torch prints the graph that it gave up on; the error that follows says what matters.

    It also logs a traceback for shapes that don't fit, on a stderr that it took hold of when it was imported.
    """
    logs = [logging.getLogger(name) for name in LOUD]
    levels, printed = [log.level for log in logs], io.StringIO()
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        with redirect_stderr(printed):
            yield
        sys.stderr.write(printed.getvalue())
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


def _place(error: BaseException | None) -> str:
    """The user's line that raised: the innermost one that belongs to no installed package, in parentheses."""
    frames = traceback.extract_tb(error.__traceback__) if error else []
    own = (Path(__file__).parents[2], *map(Path, {sys.prefix, sys.base_prefix}))
    for frame in reversed(frames):
        path = Path(frame.filename)
        if path.is_file() and not any(path.is_relative_to(folder) for folder in own):
            return f" ({path.name}, line {frame.lineno}: {frame.line})"
    return ""


def _pair(name: str, returned: Any) -> tuple[Any, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        size = f" of {len(returned)}" if isinstance(returned, tuple | list | dict) else ""
        raise ModelError(f"{name} returned {_kind(returned)}{size}; it must return {WANTED}")
    model, inputs = returned
    if not callable(model):
        raise ModelError(f"{name} returned {_kind(model)} as the model; it must return {WANTED}")
    if not isinstance(inputs, Mapping | tuple | list):
        raise ModelError(f"{name} returned {_kind(inputs)} as the example inputs; it must return {WANTED}")
    return model, inputs


def _kind(value: Any) -> str:
    return f"a value of type {type(value).__name__}"
