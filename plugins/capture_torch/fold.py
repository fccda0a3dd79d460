"""Ops into blocks, by the module hierarchy.

A layer is an item of the deepest homogeneous module list whose items run one after another, each reading what the one
before made; those that don't run are left out. Every layer is a block under its module path. What runs before the first
layer is ``embedding``, after the last ``head``. In between, ops of a single module form a block under its path, others
``between.0``, ``between.1`` … What runs before or between layers is several blocks where one would tie branches
together, and joins another block where it reads no parameter (``parts``). A model without such a list is folded by the
children of its root: each is a block, and what the root itself computes joins them in the same way. Ops that no
parameter reaches (masks, positions) belong to the block that first needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count, groupby
from os.path import commonprefix

from torch import nn

from partita.graph import Block, Op, Tensor
from partita.plugins.capture_torch.parts import Part, Run, divided, placed


def fold(model: nn.Module, ops: list[Op], tensors: Mapping[str, Tensor]) -> tuple[list[Op], list[Block]]:
    """The ops with their blocks, grouped by block, and the blocks in order of execution."""
    flowing = _reached(ops, tensors)
    layers = _layers(model, flowing, tensors)
    paths = [_layer_of(op.module, layers) for op in flowing] if layers else _children(flowing)
    runs = [(path, [op for _, op in run]) for path, run in groupby(zip(paths, flowing, strict=True), lambda at: at[0])]
    parts = placed(_parts_of_layers(runs, tensors) if layers else _parts_of_children(runs))
    names = _names(model, parts, runs, tensors, bool(layers))
    home = {op.name: name for name, part in zip(names, parts, strict=True) for op in part.ops}
    _place_constants(ops, home, names)
    rank = {name: index for index, name in enumerate(names)}
    folded = sorted((replace(op, block=home[op.name]) for op in ops), key=lambda op: rank[op.block])
    return folded, owning_blocks(folded, tensors)


def _parts_of_layers(runs: list[Run], tensors: Mapping[str, Tensor]) -> Iterator[Part]:
    """Of a run between two layers, what reads no parameter joins another part. The head is one."""
    last = _last(runs)
    for part in chain.from_iterable(divided(runs[: last + 1])):
        part.joins = not part.path and not any(tensors[n].role == "parameter" for op in part.ops for n in op.inputs)
        yield part
    yield from (Part(ops, last + 1) for _, ops in runs[last + 1 :])


def _parts_of_children(runs: list[Run]) -> Iterator[Part]:
    """What the root computes before any child is a part of its own."""
    for part in chain.from_iterable(divided(runs)):
        part.joins = not part.path and part.run > 0
        yield part


def _names(
    model: nn.Module, parts: Sequence[Part], runs: Sequence[Run], tensors: Mapping[str, Tensor], layered: bool
) -> list[str]:
    """A name for each part: its layer's or child's; of the others of one run those that feed layers have the first."""
    names = {part: part.path for part in parts if part.path}
    taken, between, last = set(names.values()), count(), _last(runs)
    for run, group in groupby((part for part in parts if not part.path), key=lambda part: part.run):
        mine = sorted(group, key=lambda part: not part.feeds)
        inside = 0 < run < last
        for part in mine if inside or len(mine) > 1 else ():
            if (path := _single_module(model, part.ops, tensors)) and path not in taken:
                names[part] = path
                taken.add(path)
        word = ""
        for part in mine:
            if part not in names:
                word = word or (f"between.{next(between)}" if inside else _end(run, layered))
                numbered = chain([word], (f"{word}.{number}" for number in count(1)))
                names[part] = next(name for name in numbered if name not in taken)
                taken.add(names[part])
    return [names[part] for part in parts]


def _end(run: int, layered: bool) -> str:
    return "head" if run else "embedding" if layered else "model"


def _last(runs: Sequence[Run]) -> int:
    """The number of the last run that is a layer or a child; -1 where none is."""
    return max((index for index, (path, _) in enumerate(runs) if path), default=-1)


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
        # Of a backbone that is read before its end (LLaVA's) the last layers don't run.
        running = [item for item in items if any(_inside(op, item) for op in ops)]
        items = running if len(running) > 1 else items
        if _chained(items, ops, tensors):
            found = [layer for layer in found if not path.startswith(f"{layer}.")] + items
    return found


def _chained(items: list[str], ops: list[Op], tensors: Mapping[str, Tensor]) -> bool:
    made: list[set[str]] = []
    read: list[set[str]] = []
    for item in items:
        inside = [op for op in ops if _inside(op, item)]
        made.append({name for op in inside for name in op.outputs})
        read.append({name for op in inside for name in op.inputs})
        if not any(tensors[name].role == "parameter" for name in read[-1]):
            return False
    # The reader may see the value through an op outside both (a residual scale): follow such ops.
    for op in ops:
        if not any(_inside(op, item) for item in items):
            for group in made:
                if group & set(op.inputs):
                    group.update(op.outputs)
    return all(before & after for before, after in zip(made, read[1:], strict=False))


def _inside(op: Op, path: str) -> bool:
    return f"{op.module}.".startswith(f"{path}.")


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


def _children(ops: Iterable[Op]) -> list[str]:
    """For each op of a model without layers the child of the root that it belongs to; "" for what the root itself
    computes, and where a child runs a second time, because then it can't be one run of ops."""
    met: set[str] = set()
    found: list[str] = []
    for op in ops:
        child = op.module.split(".")[0]
        again = child in met and not (found and found[-1] == child)
        found.append("" if again else child)
        met.add(child)
    return found


def _place_constants(ops: list[Op], home: dict[str, str], order: list[str]) -> None:
    rank = {name: index for index, name in enumerate(order)}
    wanted: dict[str, str] = {}
    for op in reversed(ops):
        if op.name not in home:
            home[op.name] = min((wanted[n] for n in op.outputs if n in wanted), key=rank.__getitem__, default=order[-1])
        for name in op.inputs:
            if name not in wanted or rank[home[op.name]] < rank[wanted[name]]:
                wanted[name] = home[op.name]
