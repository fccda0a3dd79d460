"""From a module and example inputs to a Graph.

The module is exported on the meta device in training mode: no weights are needed, and none are kept. Shapes are those
of the example inputs; another micro-batch or sequence length is exported again.
"""

from __future__ import annotations

import gc
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from partita.errors import ModelError, nearest
from partita.graph import Graph, Loss, Op, Tensor, check
from partita.plugins.capture_torch.causal import mark_causal
from partita.plugins.capture_torch.convert import arguments, assertions, kind_of, unchanged
from partita.plugins.capture_torch.fold import fold
from partita.plugins.capture_torch.generation import without_cache
from partita.plugins.capture_torch.skeleton import Skeleton, build_skeleton

Inputs = Mapping[str, Any] | Sequence[Any]
Goal = Literal["loss", "outputs"]


@dataclass(frozen=True)
class Captured:
    """A graph and the skeleton that it was captured from; ``buffers`` are the constants it reads, by tensor name.

    ``given`` maps the graph's inputs to the names of the model's arguments. ``returned`` is what the model returns,
    flattened: a tensor's name, or what isn't a tensor as it is; ``tree`` puts it together again.
    """

    graph: Graph
    skeleton: Skeleton
    buffers: dict[str, torch.Tensor]
    given: dict[str, str]
    returned: tuple[Returned, ...]
    tree: pytree.TreeSpec


@dataclass(frozen=True)
class Returned:
    """One leaf of what a model returns: the tensor of that ``name``, or (``name`` None) a ``value``."""

    name: str | None
    value: Any = None


def capture_module(
    factory: Callable[[], nn.Module], inputs: Inputs, *, name: str, dtype: torch.dtype | None = None
) -> Captured:
    """Capture the model that ``factory`` builds, called with ``inputs`` (a dict of keyword arguments, or a sequence).

    Its first scalar floating output is the loss, and nothing that the loss doesn't need is kept. ModelError where the
    model can't be built or exported (control flow that depends on data, say), writes to its buffers, or returns nothing
    that depends on a parameter.
    """
    return capture_skeleton(build_skeleton(factory, dtype), inputs, name=name)


def capture_skeleton(
    skeleton: Skeleton,
    inputs: Inputs,
    *,
    name: str,
    goal: Goal = "loss",
    training: bool = True,
    others: Sequence[str] = (),
) -> Captured:
    """Capture a skeleton. With the goal ``outputs`` everything that the model returns is kept, and nothing is a loss.

    ``training`` is the model's mode, in which dropout drops; the modules at the paths ``others`` are in the other one.
    ModelError as for ``capture_module``.
    """
    skeleton.model.train(training)
    for path in others:
        skeleton.model.get_submodule(path).training = not training
    program = _export(skeleton.model, inputs)
    return _convert(program, skeleton, name, goal)


def _export(model: nn.Module, inputs: Inputs) -> ExportedProgram:
    def on_meta(value: Any) -> Any:
        # A clone each: one tensor given twice (input_ids as labels) would be exported as one input.
        return value.detach().clone().to("meta") if isinstance(value, torch.Tensor) else value

    if isinstance(inputs, Mapping):
        args, kwargs = (), {key: on_meta(value) for key, value in inputs.items() if value is not None}
    else:
        args, kwargs = tuple(on_meta(value) for value in inputs), {}
    _require_arguments(model, args, kwargs)
    try:
        with without_cache(model), _uncollected():
            program = torch.export.export(model, args, kwargs, strict=False)
    except Exception as error:
        reason = str(error).strip().splitlines() or [""]
        hint = (
            " Its control flow depends on the values of tensors, which a fixed graph can't hold."
            if "data-dependent" in str(error).lower() or "GuardOnData" in type(error).__name__
            else ""
        )
        raise ModelError(
            f"torch.export can't capture {type(model).__name__}: {type(error).__name__}: {reason[0]}{hint}"
        ) from error
    mutable = [n for n in program.graph.nodes if n.op == "call_function" and _mutates(n)]
    with _uncollected():
        return program.run_decompositions({}) if mutable else program


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keeps the garbage collector still: what it finds may run code of its own (an engine's that ends), and operators
    called there would be recorded as the model's."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _require_arguments(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """ModelError when the model's forward can't be called with these."""
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        strange = [name for name in kwargs if name not in signature.parameters]
        hint = f' There is no "{strange[0]}".{nearest(strange[0], signature.parameters)}' if strange else ""
        given = f"{len(args)} by position" if args else ", ".join(kwargs) or "none"
        raise ModelError(
            f"{type(model).__name__}.forward({', '.join(signature.parameters)}) can't be called with the example "
            f"inputs ({given}): {error}.{hint}"
        ) from None


def _mutates(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _convert(program: ExportedProgram, skeleton: Skeleton, name: str, goal: Goal) -> Captured:
    names: dict[Node, str] = {}
    tensors: list[Tensor] = []
    buffers: dict[str, torch.Tensor] = {}
    aliases = {name: first for name, first in skeleton.canonical.items() if name != first}
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    batch: list[str] = []
    trained = {n: p.requires_grad for n, p in skeleton.model.named_parameters()}
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        spec, value = specs[node.name], node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        if spec.kind is InputKind.PARAMETER:
            names[node] = skeleton.canonical[spec.target]
            if any(tensor.name == names[node] for tensor in tensors):
                continue
            tensors.append(_tensor(names[node], value, "parameter", trained[names[node]]))
        elif spec.kind is InputKind.USER_INPUT:
            names[node] = node.name
            batch.append(node.name)
            tensors.append(_tensor(node.name, value, "input", False))
        else:
            names[node] = spec.target or node.name
            constant = skeleton.buffers.get(names[node], program.constants.get(names[node]))
            if constant is None or constant.device.type == "meta":
                raise ModelError(f'the constant "{names[node]}" of the exported model has no value')
            buffers[names[node]] = constant
            tensors.append(_tensor(names[node], value, "buffer", False))
    outputs = _outputs(program)
    ops = _ops(program, names, tensors, taken={tensor.name for tensor in tensors})
    ops = mark_causal(ops, {tensor.name: tensor for tensor in tensors}, buffers)
    outs = [names[node] for node in outputs if node in names]
    loss = _loss(outs, ops, {tensor.name: tensor for tensor in tensors}) if goal == "loss" else None
    ends = [loss.tensor] if loss else outs
    kept = _needed(ops, ends)
    ops = [op for op in ops if op.name in kept]
    used = {n for op in ops for n in (*op.inputs, *op.outputs)}
    carried = _carried(ops, ends, {t.name for t in tensors if t.gradient})
    if goal == "loss":
        _require_trained(skeleton.model, ops, carried)
    tensors = [_without_gradient(t, carried) for t in tensors if t.name in used]
    folded, blocks = fold(skeleton.model, ops, {t.name: t for t in tensors})
    first = next((t for t in tensors if t.role == "input" and t.shape), None)
    graph = Graph(
        name=name,
        samples=first.shape[0] if first else 1,
        seq=next((t.shape[1] for t in tensors if t.name == "input_ids"), None),
        tensors=tuple(tensors), ops=tuple(folded), blocks=tuple(blocks),
        inputs=tuple(n for n in batch if n in used), outputs=tuple(n for n in outs if n in used),
        loss=loss, aliases=aliases,
    )  # fmt: skip
    given = dict(zip(program.graph_signature.user_inputs, _argument_names(program), strict=True))
    return Captured(
        check(graph), skeleton, {n: b for n, b in buffers.items() if n in used},
        {name: given[name] for name in graph.inputs}, _returned(program, names), program.call_spec.out_spec,
    )  # fmt: skip


def _argument_names(program: ExportedProgram) -> list[str]:
    """The model's own names of its arguments, in the order of the program's inputs; other names where a structure of
    tensors is given."""
    _, kwargs = program.call_spec.in_spec.children()
    plain = kwargs.num_leaves == kwargs.num_children == program.call_spec.in_spec.num_leaves
    return [*kwargs.context] if plain else [str(name) for name in program.graph_signature.user_inputs]


def _returned(program: ExportedProgram, names: Mapping[Node, str]) -> tuple[Returned, ...]:
    by_name = {node.name: node for node in program.graph.nodes}
    found = []
    for spec in program.graph_signature.output_specs:
        if spec.kind is OutputKind.USER_OUTPUT:
            node = by_name.get(getattr(spec.arg, "name", ""))
            found.append(Returned(names[node]) if node in names else Returned(None, getattr(spec.arg, "value", None)))
    return tuple(found)


def _tensor(name: str, value: torch.Tensor, role: Any, gradient: bool) -> Tensor:
    for size in value.shape:
        if not isinstance(size, int):
            raise ModelError(f'tensor "{name}" has the size {size}, which depends on data')
    return Tensor(name, tuple(value.shape), str(value.dtype).removeprefix("torch."), role, gradient)


def _outputs(program: ExportedProgram) -> list[Node]:
    by_name = {node.name: node for node in program.graph.nodes}
    found = []
    for spec in program.graph_signature.output_specs:
        if spec.kind is OutputKind.BUFFER_MUTATION:
            raise ModelError(
                f'the model writes to its buffer "{spec.target}" while training (batch normalisation does): '
                "micro-batches on several devices can't share it"
            )
        if spec.kind is OutputKind.USER_OUTPUT and getattr(spec.arg, "name", None) in by_name:
            found.append(by_name[spec.arg.name])
    return found


def _ops(program: ExportedProgram, names: dict[Node, str], tensors: list[Tensor], taken: set[str]) -> list[Op]:
    gradient = {tensor.name: tensor.gradient for tensor in tensors}
    ops: list[Op] = []
    dropped = assertions(program.graph)
    for node in program.graph.nodes:
        if node.op != "call_function" or node in names or node in dropped:
            continue
        if node.target is operator.getitem:
            raise AssertionError(f"{node.name} picks from an op that was skipped")
        kind = kind_of(node)
        source = unchanged(node)
        if source is not None:
            names[node] = names[source]
            continue
        inputs, attributes = arguments(node)
        outputs = [node]
        if isinstance(node.meta.get("val"), (list, tuple)):
            outputs = sorted((user for user in node.users if user.target is operator.getitem), key=lambda n: n.args[1])
            attributes["items"] = [user.args[1] for user in outputs]
        flows = any(gradient[names[source]] for source in inputs) and kind != "detach"
        for output in outputs:
            value = output.meta.get("val")
            if not isinstance(value, torch.Tensor):
                raise ModelError(f'the exported model calls "{node.target}" (at {output.name}), which gives no tensor')
            label = output.name if output.name not in taken else f"{output.name}_value"
            names[output] = label
            tensors.append(_tensor(label, value, "value", flows and value.is_floating_point()))
            gradient[label] = tensors[-1].gradient
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        ops.append(
            Op(
                name=node.name, kind=kind, inputs=tuple(names[source] for source in inputs),
                outputs=tuple(names[output] for output in outputs), block="", module=stack[-1][0] if stack else "",
                attributes=attributes,
            )
        )  # fmt: skip
    return ops


def _loss(outs: list[str], ops: list[Op], tensors: Mapping[str, Tensor]) -> Loss | None:
    name = next((n for n in outs if tensors[n].shape == () and tensors[n].gradient), None)
    if name is None:
        return None
    makers = {output: op for op in ops for output in op.outputs}
    producer = makers[name]
    if producer.kind in ("div", "mul") and _is_sum(producer, makers, tensors):
        return Loss(name, "sum")
    if producer.kind == "cross_entropy":
        args = [*producer.attributes["args"], *[None] * 6]
        kwargs = producer.attributes["kwargs"]
        plain = args[2] is None and "weight" not in kwargs and not (args[5] or kwargs.get("label_smoothing"))
        reduction = kwargs.get("reduction", 1 if args[3] is None else args[3])
        ignore = kwargs.get("ignore_index", -100 if args[4] is None else args[4])
        targets = producer.inputs[1]
        if reduction == 2:
            raise ModelError(
                f'the loss "{name}" is a sum over tokens, which grows with the batch; return the mean '
                '(reduction="mean"), and Partita takes it over the global batch'
            )
        if plain and reduction == 1 and not tensors[targets].dtype.startswith(("float", "bfloat")):
            return Loss(name, "tokens", targets, ignore)
    return Loss(name, "samples")


def _is_sum(op: Op, makers: Mapping[str, Op], tensors: Mapping[str, Tensor]) -> bool:
    """Whether it divides (or multiplies) a cross entropy summed over tokens by numbers of the batch."""
    while op.kind in ("div", "mul", "to"):
        if any(makers.get(other) or tensors[other].role != "input" for other in op.inputs[1:]):
            return False
        if op.inputs[0] not in makers:
            return False
        op = makers[op.inputs[0]]
    if op.kind != "cross_entropy":
        return False
    args = [*op.attributes["args"], *[None] * 4]
    return op.attributes["kwargs"].get("reduction", 1 if args[3] is None else args[3]) == 2


def _needed(ops: list[Op], wanted: list[str]) -> set[str]:
    live, kept = set(wanted), set()
    for op in reversed(ops):
        if live & set(op.outputs):
            kept.add(op.name)
            live.update(op.inputs)
    return kept


def _carried(ops: list[Op], ends: list[str], gradient: set[str]) -> set[str]:
    """The tensors to which a gradient comes back from the ends: of those that could carry one, what a ``detach`` cuts
    off is left out.
    """
    found = gradient.intersection(ends)
    for op in reversed(ops):
        if not found.isdisjoint(op.outputs):
            found.update(gradient.intersection(op.inputs))
    return found


def _without_gradient(tensor: Tensor, carried: set[str]) -> Tensor:
    """The tensor, marked if it is a value to which no gradient comes back; a parameter stays as it is."""
    return replace(tensor, gradient=False) if tensor.role == "value" and tensor.name not in carried else tensor


def _require_trained(model: nn.Module, ops: list[Op], carried: set[str]) -> None:
    """ModelError unless every trained parameter gets a gradient from the loss, or from the outputs if there is none."""
    parameters = dict(model.named_parameters())
    if not any(name in parameters for op in ops for name in op.inputs):
        raise ModelError(f"{type(model).__name__} returns nothing that depends on a parameter")
    if idle := [name for name, parameter in parameters.items() if parameter.requires_grad and name not in carried]:
        more = f" and {len(idle) - 5} more" if len(idle) > 5 else ""
        raise ModelError(
            f"parameters that the loss does not depend on: {', '.join(idle[:5])}{more}; freeze or remove them"
        )
