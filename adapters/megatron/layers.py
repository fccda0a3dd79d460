"""Which of Megatron-core's layers stands for an op that tensor parallelism cuts.

``realise`` decides, ``modules`` holds the layers. A weight is stored as Megatron stores it, [out, in]: one that the
model keeps as [in, out] is ``flipped``. The few ops that no layer of Megatron's fits stay with the torch runtime, which
computes the same: for them the answer is None.
"""

from __future__ import annotations

import warnings
from types import ModuleType

from partita.adapters.torch.execute import loss_arguments, split_linear, transposed
from partita.adapters.torch.stage import Parameters, Realised
from partita.errors import PlanError
from partita.graph.table import argument
from partita.spacetime.program import LocalOp


def realise(local: LocalOp, parameters: Parameters) -> Realised | None:
    """Megatron's layer for an op of form column, row or vocabulary, on the plan's own group; or None where none fits.

    The layer's parameters are made but not filled. PlanError when Megatron-core can't be imported.
    """
    modules = require(parameters.group.size())
    if local.form in ("column", "row"):
        return _linear(modules, local, parameters)
    if local.op.kind == "embedding":
        return _embedding(modules, local, parameters)
    real, ignore, reduction = loss_arguments(local)
    return Realised(modules.VocabularyLoss(real, ignore, reduction, parameters.group), {})


def require(tp: int) -> ModuleType:
    """The module with the layers. PlanError, with what to install or to plan instead, without Megatron-core."""
    try:
        with warnings.catch_warnings():
            # Megatron-core warns of missing kernels that none of these layers use.
            warnings.simplefilter("ignore")
            # Here, because importing Megatron-core takes seconds and only plans with tp > 1 need it.
            from partita.adapters.megatron import modules
    except ImportError as error:
        raise PlanError(
            f"tp={tp} runs on Megatron-core's layers, but Megatron-core can't be imported ({error}): "
            "pip install 'partita[megatron]'; tp=1 works without it, and so does target=partita"
        ) from None
    return modules


def _linear(modules: ModuleType, local: LocalOp, parameters: Parameters) -> Realised | None:
    bias, value, weight = split_linear(local, local.op.inputs)
    if weight not in parameters.shapes:
        return None  # computed by the model, not stored
    flip = transposed(local)
    folder, _, leaf = weight.rpartition(".")
    owned = weight not in parameters.made and folder != "" and leaf == "weight"
    if flip and (weight in parameters.shared or not owned):
        return None  # somebody else reads it, or makes it, as the model stores it
    if local.form == "row" and not owned:
        return None  # RowParallelLinear takes no weight from outside
    owns = {"weight": weight} if owned else {}
    if owned and bias == f"{folder}.bias" and bias not in parameters.made:
        owns["bias"] = bias
    shape = parameters.shapes[weight]
    make = modules.Column if local.form == "column" else modules.Row
    given = [name for name in local.op.inputs if name not in owns.values()]
    order = modules.Order(*(given.index(name) if name in given else None for name in (value, weight, bias)))
    module = make(shape[::-1] if flip else shape, order, frozenset(owns), parameters)
    return Realised(module, owns, frozenset({weight} if flip else ()))


def _embedding(modules: ModuleType, local: LocalOp, parameters: Parameters) -> Realised | None:
    weight = local.op.inputs[0]
    folder, _, leaf = weight.rpartition(".")
    if weight not in parameters.shapes or weight in parameters.made or folder == "" or leaf != "weight":
        return None
    padding = argument(local.op, 2, "padding_idx", -1)
    module = modules.Embedding(parameters.shapes[weight], padding if padding >= 0 else None, parameters)
    return Realised(module, {"weight": weight})
