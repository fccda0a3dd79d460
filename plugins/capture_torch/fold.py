"""Ops into blocks, by the module hierarchy.

A layer is an item of the deepest homogeneous module list whose items run one after another, each reading what the one
before made; every layer is a block under its module path. What runs before the first layer is ``embedding``, after the
last ``head``. In between, ops of a single module form a block under its path, others ``between.0``, ``between.1`` …;
a run that reads no parameter joins the block before it. A model without such a list is folded by the children of its
root. Ops that no parameter reaches (masks, positions) belong to the block that first needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from os.path import commonprefix

from torch import nn

from partita.graph import Block, Op, Tensor


def fold(model: nn.Module, ops: list[Op], tensors: Mapping[str, Tensor]) -> tuple[list[Op], list[Block]]:
    """The ops with their blocks, grouped by block, and the blocks in order of execution."""
    flowing = _reached(ops, tensors)
    layers = _layers(model, flowing, tensors)
    home: dict[str, str] = {}
    runs = [(key, list(group)) for key, group in groupby(flowing, key=lambda op: _layer_of(op.module, layers))]
    last_layer = max((index for index, (key, _) in enumerate(runs) if key), default=-1)
    order: list[str] = []
    between = 0
    for index, (key, group) in enumerate(runs):
        if key:
            name = key
        elif not layers:
            _by_children(group, home, order)
            continue
        elif index == 0:
            name = "embedding"
        elif index > last_layer:
            name = "head"
        elif not any(tensors[n].role == "parameter" for op in group for n in op.inputs):
            name = order[-1]
        else:
            name = _single_module(model, group, tensors)
            if not name:
                name, between = f"between.{between}", between + 1
        if name not in order:
            order.append(name)
        home.update((op.name, name) for op in group)
    _place_constants(ops, home, order)
    rank = {name: index for index, name in enumerate(order)}
    folded = sorted((replace(op, block=home[op.name]) for op in ops), key=lambda op: rank[op.block])
    return folded, owning_blocks(folded, tensors)


def owning_blocks(ops: Iterable[Op], tensors: Mapping[str, Tensor]) -> list[Block]:
    """The blocks of these ops, in order, each with the parameters that no earlier one reads."""
    owned: dict[str, list[str]] = {}
    met: set[str] = set()
    for op in ops:
        mine = owned.setdefault(op.block, [])
        for name in op.inputs:
            if tensors[name].role == "parameter" and name not in met:
                met.add(name)
                mine.append(name)
    return [Block(name, tuple(parameters)) for name, parameters in owned.items()]


def _reached(ops: list[Op], tensors: Mapping[str, Tensor]) -> list[Op]:
    """The ops that depend on a parameter, trained or frozen, with or without a gradient."""
    names = {name for name, tensor in tensors.items() if tensor.role == "parameter"}
    found = []
    for op in ops:
        if names & set(op.inputs):
            names.update(op.outputs)
            found.append(op)
    return found


def _layers(model: nn.Module, ops: list[Op], tensors: Mapping[str, Tensor]) -> list[str]:
    """Paths of all layers: items of homogeneous lists that run in a chain, the deepest where they are nested."""
    found: list[str] = []
    for path, module in model.named_modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)) or len({type(item) for item in module}) != 1:
            continue
        items = [f"{path}.{name}" if path else name for name, _ in module.named_children()]
        if _chained(items, ops, tensors):
            found = [layer for layer in found if not path.startswith(f"{layer}.")] + items
    return found


def _chained(items: list[str], ops: list[Op], tensors: Mapping[str, Tensor]) -> bool:
    made: list[set[str]] = []
    read: list[set[str]] = []
    for item in items:
        inside = [op for op in ops if f"{op.module}.".startswith(f"{item}.")]
        made.append({name for op in inside for name in op.outputs})
        read.append({name for op in inside for name in op.inputs})
        if not any(tensors[name].role == "parameter" for name in read[-1]):
            return False
    # The reader may see the value through an op outside both (a residual scale): follow such ops.
    for op in ops:
        if not any(f"{op.module}.".startswith(f"{item}.") for item in items):
            for group in made:
                if group & set(op.inputs):
                    group.update(op.outputs)
    return all(before & after for before, after in zip(made, read[1:], strict=False))


def _layer_of(module: str, layers: list[str]) -> str:
    return next((layer for layer in layers if f"{module}.".startswith(f"{layer}.")), "")


def _single_module(model: nn.Module, group: list[Op], tensors: Mapping[str, Tensor]) -> str:
    """The path of the module that holds all parameters of the run, if it holds nothing else."""
    reading = [op for op in group if any(tensors[name].role == "parameter" for name in op.inputs)]
    parts = commonprefix([op.module.split(".") for op in reading])
    path = ".".join(parts)
    inside = {name for op in reading for name in op.inputs if tensors[name].role == "parameter"}
    if not path:
        return ""
    # A parameter that several modules share goes by its name in the first.
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    own = {names[id(parameter)] for parameter in model.get_submodule(path).parameters()}
    return path if own == inside else ""


def _by_children(group: list[Op], home: dict[str, str], order: list[str]) -> None:
    """Blocks of a model without layers: one for each child of the root; parameterless ops join the block before."""
    for op in group:
        child = op.module.split(".")[0]
        name = child or (order[-1] if order else "model")
        # A child that runs twice can't be one run of ops: its second visit joins the current block.
        if name in order and name != order[-1]:
            name = order[-1]
        if name not in order:
            order.append(name)
        home[op.name] = name


def _place_constants(ops: list[Op], home: dict[str, str], order: list[str]) -> None:
    rank = {name: index for index, name in enumerate(order)}
    wanted: dict[str, str] = {}
    for op in reversed(ops):
        if op.name not in home:
            home[op.name] = min((wanted[n] for n in op.outputs if n in wanted), key=rank.__getitem__, default=order[-1])
        for name in op.inputs:
            if name not in wanted or rank[home[op.name]] < rank[wanted[name]]:
                wanted[name] = home[op.name]
