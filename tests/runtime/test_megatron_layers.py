"""Megatron-core's layers in the place of a plan's cut ops, on real ranks. How they train: ``test_megatron.py``.

The vocabulary is odd (129 words, padded to 130), labels hold -100, and every micro-batch has another number of tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from partita.adapters.megatron.layers import realise, require
from partita.adapters.torch.prepare import Lowered, Prepared, prepare
from partita.adapters.torch.stage import Parameters, dense_name
from partita.adapters.torch.weights import StateDict, cut
from partita.errors import PlanError
from partita.graph import Op
from partita.plugins.capture_torch import capture_module
from partita.spacetime.program import LocalOp
from tests.ranks.pool import Pool
from tests.runtime.models import MODELS, SEQ, Batch
from tests.runtime.programs import Layout, program

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def sharded(build: Callable[[], nn.Module], example: Batch, dtype: str, layout: Layout) -> tuple[nn.Module, Prepared]:
    """The whole model, and this rank's part of it with Megatron's layers and the same weights."""
    captured = capture_module(build, example, name="model", dtype=getattr(torch, dtype))
    torch.manual_seed(0)
    model = build().to(getattr(torch, dtype))
    weights = StateDict(model.state_dict(), captured.graph.aliases)
    lowered = Lowered(captured, program(captured.graph, layout))
    return model, prepare(lowered, weights=weights, device=CPU, realise=realise)


def language_model(family: str, dtype: str, layout: Layout) -> tuple[nn.Module, Prepared]:
    kind = MODELS[family]
    return sharded(kind.build, kind.batch(kind.samples, torch.Generator(), False), dtype, layout)


def structure(family: str, layout: Layout) -> dict[str, Any]:
    """What a rank's stage is made of: the class of every cut op's module, and the names of parameters and state."""
    from megatron.core import tensor_parallel as megatron
    from megatron.core.tensor_parallel.layers import param_is_not_tensor_parallel_duplicate

    from partita.adapters.megatron.modules import VocabularyLoss

    kinds = {
        ("column", "linear"): megatron.ColumnParallelLinear, ("column", "addmm"): megatron.ColumnParallelLinear,
        ("row", "linear"): megatron.RowParallelLinear, ("row", "addmm"): megatron.RowParallelLinear,
        ("vocabulary", "embedding"): megatron.VocabParallelEmbedding,
        ("vocabulary", "cross_entropy"): VocabularyLoss,
    }  # fmt: skip
    _, mine = language_model(family, "float64", layout)
    stage = mine.stage
    counts: dict[str, int] = {}
    for block, segment in zip(stage.blocks, stage.piece.segments, strict=True):
        for local in segment.ops:
            if (local.form, local.op.kind) in kinds:
                module, _ = block.realised[block.place_of(local)]
                assert isinstance(module, kinds[local.form, local.op.kind])
                assert any(module is part for part in block.modules())
                counts[type(module).__name__] = counts.get(type(module).__name__, 0) + 1
    state = stage.state_dict()
    stage.load_state_dict(state, strict=True)
    marks = {
        name: (parameter.tensor_model_parallel, getattr(parameter, "partition_dim", None))
        for name, parameter in stage.parameters_by_name.items()
    }
    group = mine.groups.axes[stage.piece.stage]["tensor"].process_group
    counted = sum(param_is_not_tensor_parallel_duplicate(p, group) for p in stage.trained.values())
    return {
        "counts": counts,
        "parameters": {dense_name(name) for name, _ in stage.named_parameters(remove_duplicate=False)},
        "known": set(stage.parameters_by_name),
        "state": {dense_name(name) for name in state},
        "cut": {name for name, shard in stage.piece.parameters.items() if shard is not None},
        "marks": marks,
        "counted": counted,
        "trained": set(stage.trained),
    }


LAYERS = {
    "gpt2": {"Column": 4 * 2 + 1, "Row": 4 * 2, "Embedding": 1, "VocabularyLoss": 1},
    "llama": {"Column": 4 * 5 + 1, "Row": 4 * 2, "Embedding": 1, "VocabularyLoss": 1},
}


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("pp", [1, 2])
def test_layers_are_megatrons_under_the_models_names(pool: Pool, family: str, pp: int) -> None:
    ranks = pool.run(structure, pp * 2, family, Layout(pp=pp, tp=2))
    assert {kind: sum(rank["counts"].get(kind, 0) for rank in ranks[::2]) for kind in LAYERS[family]} == LAYERS[family]
    model = dict(MODELS[family].build().named_parameters())
    for rank in ranks:
        assert rank["parameters"] == rank["state"] == rank["known"] <= set(model)
        assert {name for name, (cut_, _) in rank["marks"].items() if cut_} == rank["cut"]
    assert set().union(*(rank["known"] for rank in ranks)) == set(model)
    # Over the group of two, pieces count twice and what both hold counts once.
    for stage in range(pp):
        first, second = ranks[2 * stage : 2 * stage + 2]
        assert first["counted"] + second["counted"] == len(first["trained"]) + len(first["cut"] & first["trained"])
    if family == "gpt2":
        # Stored [out, in] by Megatron, [in, out] by GPT-2: a column layer's piece is cut along dim 0.
        assert ranks[0]["marks"]["model.transformer.h.0.attn.c_attn.weight"] == (True, 0)
        assert ranks[0]["marks"]["model.transformer.h.0.mlp.c_proj.weight"] == (True, 1)


class Sums(TorchDispatchMode):
    """The shapes of all-reduced tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket == torch.ops.c10d.allreduce_:
            self.shapes += [tuple(tensor.shape) for tensor in args[0]]
        return func(*args, **(kwargs or {}))


def sums(family: str) -> tuple[list[Any], list[Any], list[Any], int]:
    """All-reduces of a forward and a backward pass, the shapes of entered values, and the number of row layers."""
    _, mine = language_model(family, "float32", Layout(tp=2))
    kind = MODELS[family]
    with Sums() as forward:
        outputs = mine.stage(kind.batch(kind.samples, torch.Generator(), True), {}, ())
    with Sums() as backward:
        outputs[mine.lowered.program.loss.tensor].backward()
    ops = [local for segment in mine.stage.piece.segments for local in segment.ops]
    entered = [local.shapes[0] for local in ops if local.form == "enter"]
    return forward.shapes, backward.shapes, entered, sum(local.form == "row" for local in ops)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_one_sum_for_each_entered_value_and_each_row_layer(pool: Pool, family: str) -> None:
    for forward, backward, entered, rows in pool.run(sums, 2, family):
        assert rows == 4 * 2
        assert len(entered) == 4 * 2 + 1
        assert backward == entered[::-1]
        # The embedding; Megatron's loss sums three numbers for each token: maximum, exponentials, the target's logit.
        assert len(forward) == 1 + rows + 3
        assert forward[-3:] == [(MODELS[family].samples * SEQ,)] * 3


def loss(real: int, dtype: str, reduction: str) -> dict[str, Any]:
    from megatron.core import parallel_state

    from partita.adapters.megatron.modules import VocabularyLoss

    rank, tp = dist.get_rank(), dist.get_world_size()
    width = -(-real // tp)
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(7, real, generator=generator).to(getattr(torch, dtype))
    targets = torch.randint(0, real, (7,), generator=generator)
    targets[[1, 4]] = -100
    targets[0] = real - 1
    whole = logits.clone().requires_grad_()
    expected = functional.cross_entropy(whole.float(), targets, reduction=reduction)
    expected.backward()
    # Padding columns hold what would win if it could be chosen.
    padded = functional.pad(logits, (0, width * tp - real), value=50.0)
    mine = padded[:, rank * width : (rank + 1) * width].clone().requires_grad_()
    before = mine.detach().clone()
    found = VocabularyLoss(real, -100, reduction, dist.group.WORLD)(mine, targets)
    found.backward()
    wanted = functional.pad(whole.grad, (0, width * tp - real))[:, rank * width : (rank + 1) * width]
    return {
        "loss": abs(float(found) - float(expected)),
        "gradient": float((mine.grad - wanted).abs().max()),
        "changed": not torch.equal(mine.detach(), before),
        "left": parallel_state.get_tensor_model_parallel_group(check_initialized=False),
        "function": "VocabParallelCrossEntropy" in graph_names(found.grad_fn),
    }


def graph_names(node: Any) -> str:
    """The names of all functions behind a value."""
    return "" if node is None else node.name() + " ".join(graph_names(before) for before, _ in node.next_functions)


@pytest.mark.parametrize(
    ("tp", "real", "dtype", "reduction", "tolerance"),
    [
        (2, 128, "float32", "mean", 1e-6),
        (2, 129, "float32", "sum", 1e-5),
        (4, 129, "float32", "mean", 1e-6),
        (4, 5, "float32", "mean", 1e-6),  # the last rank holds nothing but padding
        (2, 129, "bfloat16", "mean", 1e-3),
        (2, 129, "float64", "sum", 1e-5),
    ],
)
def test_loss_ignores_labels_and_padding(
    pool: Pool, tp: int, real: int, dtype: str, reduction: str, tolerance: float
) -> None:
    for rank in pool.run(loss, tp, real, dtype, reduction):
        assert rank["loss"] < tolerance
        assert rank["gradient"] < tolerance
        assert not rank["changed"]
        assert rank["left"] is None
        # Megatron's loss would round float64 to float32.
        assert rank["function"] == (dtype != "float64")


def padding_row() -> tuple[float, float]:
    from partita.adapters.megatron.modules import Embedding

    group = dist.group.WORLD
    table = nn.Embedding(9, 4, padding_idx=6)
    with torch.no_grad():
        table.weight.copy_(torch.arange(36.0).view(9, 4))
    mine = Embedding((5, 4), 6, Parameters({}, {}, set(), torch.float32, CPU, group))
    part = slice(dist.get_rank() * 5, dist.get_rank() * 5 + 5)
    padded = functional.pad(table.weight.detach(), (0, 0, 0, 1))
    with torch.no_grad():
        mine.weight.copy_(padded[part])
    ids = torch.tensor([[0, 6, 8], [6, 6, 4]])
    expected, found = table(ids), mine(ids)
    expected.pow(2).sum().backward()
    found.pow(2).sum().backward()
    wanted = functional.pad(table.weight.grad, (0, 0, 0, 1))[part]
    return float((found - expected).abs().max()), float((mine.weight.grad - wanted).abs().max())


def test_padding_row_has_no_gradient(pool: Pool) -> None:
    assert pool.run(padding_row, 2) == [(0.0, 0.0)] * 2


class Windows(nn.Module):
    """Linear layers on four dims, the first one's weight frozen but not its bias."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))
        self.mlp[0].weight.requires_grad_(False)

    def forward(self, values: Tensor) -> Tensor:
        return self.mlp(values).square().mean()


def windows() -> tuple[list[str], dict[str, float | None]]:
    """The layers, and differences of gradients from one device by parameter; None where neither has a gradient."""
    batch = {"values": torch.randn(2, 3, 2, 6, generator=torch.Generator().manual_seed(5))}
    model, mine = sharded(Windows, batch, "float32", Layout(tp=2))
    stage = mine.stage
    stage(batch, {}, ())[mine.lowered.program.loss.tensor].backward()
    model(**batch).backward()
    found: dict[str, float | None] = {}
    for name, parameter in stage.parameters_by_name.items():
        gradient = dict(model.named_parameters())[name].grad
        assert (gradient is None) == (parameter.grad is None)
        if gradient is None:
            found[name] = None
        else:
            wanted = cut(gradient, stage.piece.parameters[name], stage.context.coordinates["tensor"])
            found[name] = float((parameter.grad - wanted).abs().max())
    return [type(module).__name__ for block in stage.blocks for module, _ in block.realised.values()], found


def test_four_dims_and_a_bias_trained_beside_a_frozen_weight(pool: Pool) -> None:
    for layers, found in pool.run(windows, 2):
        assert layers == ["Column", "Row"]
        assert found.pop("mlp.0.weight") is None
        assert set(found) == {"mlp.0.bias", "mlp.2.weight", "mlp.2.bias"}
        assert max(value for value in found.values() if value is not None) < 1e-6


def refusals() -> list[bool]:
    """Whether None was the answer, for ops that no layer of Megatron's fits."""
    weight = nn.Parameter(torch.empty(4, 3))
    group = dist.group.WORLD

    def answer(form: Any, kind: str, made: dict[str, nn.Parameter], shared: set[str], inputs: tuple[str, ...]) -> bool:
        op = Op("op", kind, inputs, ("y",), "block", attributes={"args": [{"tensor": 0}, {"tensor": 1}], "kwargs": {}})
        shapes = {name: (4, 3) for name in inputs if name.startswith("a.")}
        parameters = Parameters(shapes, made, shared, torch.float32, CPU, group)
        return realise(LocalOp(op, form, ((2, 3),)), parameters) is None

    return [
        answer("column", "linear", {}, set(), ("x", "a.weight")),
        answer("column", "linear", {"a.weight": weight}, {"a.weight"}, ("x", "a.weight")),
        answer("row", "linear", {"a.weight": weight}, {"a.weight"}, ("x", "a.weight")),
        answer("row", "linear", {}, set(), ("x", "a.weight")),
        answer("column", "linear", {}, set(), ("x", "computed")),
        answer("column", "addmm", {}, {"a.weight"}, ("b", "x", "a.weight")),
        answer("column", "addmm", {}, set(), ("b", "x", "a.kernel")),
        answer("column", "linear", {}, set(), ("x", "a.kernel")),
        answer("row", "linear", {}, set(), ("x", "a.kernel")),
        answer("vocabulary", "embedding", {"a.weight": weight}, {"a.weight"}, ("a.weight", "x")),
    ]


def test_what_fits_no_layer_stays_with_torch(pool: Pool) -> None:
    assert pool.run(refusals, 2) == [[False, False, True, False, True, True, True, False, True, True]] * 2


def test_without_megatron_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import partita.adapters.megatron as package

    monkeypatch.delattr(package, "modules", raising=False)
    monkeypatch.delitem(sys.modules, "partita.adapters.megatron.modules", raising=False)
    monkeypatch.setitem(sys.modules, "megatron.core", None)
    with pytest.raises(PlanError, match=r"tp=2 .*pip install 'partita\[megatron\]'; tp=1 works .*target=partita"):
        require(2)
