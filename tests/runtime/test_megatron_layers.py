"""Megatron-core's layers in the place of a plan's cut ops, on real ranks, against the whole model on one device.

The vocabulary is odd (129 words, padded to 130), labels hold -100, and every micro-batch has another number of tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from partita.adapters.megatron.layers import realise, require
from partita.adapters.torch.engine import TorchEngine
from partita.adapters.torch.groups import Groups, make_groups
from partita.adapters.torch.runtime import Runtime
from partita.adapters.torch.stage import Parameters, StageModule, dense_name
from partita.adapters.torch.weights import StateDict, cut, fill
from partita.errors import PlanError
from partita.graph import Op
from partita.plugins.capture_torch import capture_module
from partita.spacetime.preserve import preserve
from partita.spacetime.program import LocalOp, Program
from partita.spacetime.schedule import assign, order
from partita.spacetime.transform import StageCode, transform
from tests.ranks.pool import Pool

WORDS, LENGTH, SAMPLES, MICRO = 129, 12, 2, 2
CPU = torch.device("cpu")


class FullPrecision(nn.Module):
    """A causal language model with its loss in the model's own precision (HuggingFace's is float32 in any case)."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        logits = self.inner(input_ids=input_ids, attention_mask=attention_mask).logits
        following = functional.pad(labels, (0, 1), value=-100)[:, 1:]
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), following.reshape(-1))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=2, n_embd=32, n_head=4, vocab_size=WORDS, n_positions=16, use_cache=False, bos_token_id=0,
            eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        )
    )  # fmt: skip


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
            vocab_size=WORDS, use_cache=False,
        )
    )  # fmt: skip


MODELS = {
    ("gpt2", "float32"): gpt2,
    ("llama", "float32"): llama,
    ("gpt2", "float64"): lambda: FullPrecision(gpt2()),
    ("llama", "float64"): lambda: FullPrecision(llama()),
}


class Windows(nn.Module):
    """Linear layers on four dims, the first one's weight frozen but not its bias."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 6)
        self.up.weight.requires_grad_(False)

    def forward(self, values: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(values))).pow(2).mean()


@cache
def captured(family: str, dtype: str) -> Any:
    example = {
        "input_ids": torch.zeros(SAMPLES, LENGTH, dtype=torch.long),
        "attention_mask": torch.ones(SAMPLES, LENGTH, dtype=torch.long),
        "labels": torch.zeros(SAMPLES, LENGTH, dtype=torch.long),
    }
    return capture_module(MODELS[family, dtype], example, name=family, dtype=getattr(torch, dtype))


def build(
    capture: Any, pp: int, dp: int, tp: int, *, schedule: str = "gpipe", recompute: bool = False, micro: int = MICRO
) -> tuple[Program, Groups, StageModule]:
    """The program, and this rank's stage with Megatron's layers, weights not filled in."""
    graph = capture.graph
    names = [block.name for block in graph.blocks]
    bounds = [round(index * len(names) / pp) for index in range(pp + 1)]
    stages = [
        StageCode(tuple(names[start:stop]), tp, (recompute,) * (stop - start))
        for start, stop in zip(bounds, bounds[1:], strict=False)
    ]
    pieces = transform(graph, stages)
    devices = tuple(tuple(range(index * dp * tp, (index + 1) * dp * tp)) for index in range(pp))
    places = assign(devices, [dp] * pp, [tp] * pp)
    tasks = preserve(graph, pieces, places, devices, order(schedule, pp, micro, places))
    program = Program(pieces, tasks, places, devices, (dp,) * pp, (tp,) * pp, micro, SAMPLES, 0, graph.loss, {})
    groups = make_groups(program)
    place = places[dist.get_rank()]
    stage = StageModule(
        graph, pieces[place.stage], buffers=capture.buffers, group=groups.tensor, rank=place.tensor, device=CPU,
        realise=realise,
    )  # fmt: skip
    return program, groups, stage


def dense(family: str, dtype: str, capture: Any, stage: StageModule) -> nn.Module:
    """The whole model, and the same weights in the stage."""
    torch.manual_seed(0)
    model = MODELS[family, dtype]().to(getattr(torch, dtype))
    put(stage, model, capture.graph.aliases)
    return model


def put(stage: StageModule, model: nn.Module, aliases: dict[str, str]) -> None:
    weights = StateDict(model.state_dict(), aliases)
    fill(stage.parameters_by_name, weights, stage.piece.parameters, stage.context.rank, stage.flipped)


def batches(samples: int) -> Iterator[dict[str, Tensor]]:
    """Global batches with endings of different length masked out."""
    generator = torch.Generator().manual_seed(1)
    while True:
        ids = torch.randint(0, WORDS, (samples, LENGTH), generator=generator)
        ids[0, 0] = WORDS - 1
        ends = torch.randint(3, LENGTH + 1, (samples, 1), generator=generator)
        mask = (torch.arange(LENGTH) < ends).long()
        yield {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


class Recording(TorchEngine):
    """Keeps the gradients that the optimizer was given."""

    def update(self) -> None:
        self.gradients = {name: parameter.grad.clone() for name, parameter in self.stage.trained.items()}
        super().update()


def train(
    family: str, dtype: str, pp: int, dp: int, tp: int, schedule: str, recompute: bool, steps: int
) -> dict[str, float]:
    """The worst differences from one device over some steps: of the losses, the gradients and, in the end, the weights."""
    capture = captured(family, dtype)
    program, groups, stage = build(capture, pp, dp, tp, schedule=schedule, recompute=recompute)
    model = dense(family, dtype, capture, stage)
    place = program.places[dist.get_rank()]
    engine = Recording(stage, groups, torch.optim.Adam(list(stage.trained.values()), lr=1e-2))
    runtime = Runtime(program, stage, groups, device=CPU)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    parameters = dict(model.named_parameters())

    def part(name: str, tensor: Tensor) -> Tensor:
        mine = cut(tensor, stage.piece.parameters[name], place.tensor)
        return mine.t() if name in stage.flipped else mine

    worst = {"loss": 0.0, "gradient": 0.0, "weight": 0.0}
    stream = batches(dp * MICRO * SAMPLES)
    for _ in range(steps):
        batch = next(stream)
        starts = [(place.data * MICRO + index) * SAMPLES for index in range(MICRO)]
        mine = [{name: value[start : start + SAMPLES] for name, value in batch.items()} for start in starts]
        loss = runtime.step(iter(mine), engine)
        optimizer.zero_grad()
        result = model(**batch)
        expected = result if isinstance(result, Tensor) else result.loss
        expected.backward()
        worst["loss"] = max(worst["loss"], abs(loss - float(expected)))
        for name, gradient in engine.gradients.items():
            wanted = parameters[name].grad
            # GPT-2's key bias has a gradient that is zero but for rounding.
            size = max(float(wanted.norm()), 1e-2)
            worst["gradient"] = max(worst["gradient"], float((gradient - part(name, wanted)).norm()) / size)
        optimizer.step()
    for name, parameter in stage.parameters_by_name.items():
        difference = parameter.detach() - part(name, parameters[name].detach())
        worst["weight"] = max(worst["weight"], float(difference.abs().max()))
    return worst


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize(
    ("pp", "dp", "schedule", "recompute"),
    [(1, 1, "gpipe", False), (2, 1, "gpipe", False), (2, 1, "1f1b", True), (1, 2, "gpipe", False)],
    ids=["tp2", "pp2-tp2", "pp2-tp2-1f1b-recompute", "dp2-tp2"],
)
def test_float64_equals_one_device(
    pool: Pool, family: str, pp: int, dp: int, schedule: str, recompute: bool
) -> None:
    for worst in pool.run(train, pp * dp * 2, family, "float64", pp, dp, 2, schedule, recompute, 3):
        assert worst["loss"] < 1e-12
        assert worst["gradient"] < 1e-12
        assert worst["weight"] < 1e-10


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize(("pp", "dp", "tp"), [(2, 1, 2), (1, 2, 2)], ids=["pp2-tp2", "dp2-tp2"])
def test_float32_with_megatrons_loss_equals_one_device(pool: Pool, family: str, pp: int, dp: int, tp: int) -> None:
    for worst in pool.run(train, pp * dp * tp, family, "float32", pp, dp, tp, "1f1b", False, 1):
        assert worst["loss"] < 1e-5
        assert worst["gradient"] < 1e-5


def structure(family: str, pp: int) -> dict[str, Any]:
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
    capture = captured(family, "float64")
    _, groups, stage = build(capture, pp, 1, 2)
    dense(family, "float64", capture, stage)
    counts: dict[str, int] = {}
    for block in stage.blocks:
        for local in block.segment.ops:
            if (local.form, local.op.kind) in kinds:
                module = block.realised[local.op.name]
                assert isinstance(module, kinds[local.form, local.op.kind])
                assert any(module is part for part in block.modules())
                counts[type(module).__name__] = counts.get(type(module).__name__, 0) + 1
    state = stage.state_dict()
    print(stage.load_state_dict(state, strict=True))
    marks = {
        name: (parameter.tensor_model_parallel, getattr(parameter, "partition_dim", None))
        for name, parameter in stage.parameters_by_name.items()
    }
    counted = sum(param_is_not_tensor_parallel_duplicate(p, groups.tensor) for p in stage.trained.values())
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
    "gpt2": {"Column": 2 * 2 + 1, "Row": 2 * 2, "Embedding": 1, "VocabularyLoss": 1},
    "llama": {"Column": 2 * 5 + 1, "Row": 2 * 2, "Embedding": 1, "VocabularyLoss": 1},
}


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("pp", [1, 2])
def test_layers_are_megatrons_under_the_models_names(pool: Pool, family: str, pp: int) -> None:
    ranks = pool.run(structure, pp * 2, family, pp)
    firsts = ranks[::2]
    assert {
        kind: sum(rank["counts"].get(kind, 0) for rank in firsts) for kind in LAYERS[family]
    } == LAYERS[family]
    model = dict(MODELS[family, "float64"]().named_parameters())
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
        assert ranks[0]["marks"]["inner.transformer.h.0.attn.c_attn.weight"] == (True, 0)
        assert ranks[0]["marks"]["inner.transformer.h.0.mlp.c_proj.weight"] == (True, 1)


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
    capture = captured(family, "float32")
    _, _, stage = build(capture, 1, 1, 2)
    dense(family, "float32", capture, stage)
    batch = next(batches(SAMPLES))
    with Sums() as forward:
        outputs = stage(batch, {}, ())
    with Sums() as backward:
        outputs[capture.graph.loss.tensor].backward()
    ops = [local for segment in stage.piece.segments for local in segment.ops]
    entered = [local.shapes[0] for local in ops if local.form == "enter"]
    return forward.shapes, backward.shapes, entered, sum(local.form == "row" for local in ops)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_one_sum_for_each_entered_value_and_each_row_layer(pool: Pool, family: str) -> None:
    for forward, backward, entered, rows in pool.run(sums, 2, family):
        assert rows == 4
        assert len(entered) == 2 * 2 + 1
        assert backward == entered[::-1]
        # The embedding; Megatron's loss sums three numbers for each token: maximum, exponentials, the target's logit.
        assert len(forward) == 1 + rows + 3
        assert forward[-3:] == [(SAMPLES * LENGTH,)] * 3


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
    expected, found = table(ids), mine(mine.weight, ids)
    expected.pow(2).sum().backward()
    found.pow(2).sum().backward()
    wanted = functional.pad(table.weight.grad, (0, 0, 0, 1))[part]
    return float((found - expected).abs().max()), float((mine.weight.grad - wanted).abs().max())


def test_padding_row_has_no_gradient(pool: Pool) -> None:
    assert pool.run(padding_row, 2) == [(0.0, 0.0)] * 2


def windows() -> dict[str, float | None]:
    """Differences of gradients from one device by parameter; None where there is no gradient."""
    values = torch.randn(2, 3, 2, 6, generator=torch.Generator().manual_seed(5))
    capture = capture_module(Windows, {"values": torch.zeros_like(values)}, name="windows", dtype=torch.float32)
    _, _, stage = build(capture, 1, 1, 2)
    torch.manual_seed(0)
    model = Windows()
    put(stage, model, {})
    assert sorted(type(m).__name__ for block in stage.blocks for m in block.realised.values()) == ["Column", "Row"]
    stage({"values": values}, {}, ())[capture.graph.loss.tensor].backward()
    model(values).backward()
    found: dict[str, float | None] = {}
    for name, parameter in stage.parameters_by_name.items():
        gradient = dict(model.named_parameters())[name].grad
        assert (gradient is None) == (parameter.grad is None)
        if gradient is not None:
            wanted = cut(gradient, stage.piece.parameters[name], stage.context.rank)
            found[name] = float((parameter.grad - wanted).abs().max())
        else:
            found[name] = None
    return found


def test_four_dims_and_a_bias_trained_beside_a_frozen_weight(pool: Pool) -> None:
    for found in pool.run(windows, 2):
        assert found.pop("up.weight") is None
        assert set(found) == {"up.bias", "down.weight", "down.bias"}
        assert max(value for value in found.values() if value is not None) < 1e-6


def refusals() -> list[bool]:
    """Whether None was the answer, for ops that no layer of Megatron's fits."""
    weight = nn.Parameter(torch.empty(4, 3))
    group = dist.group.WORLD

    def answer(form: Any, kind: str, made: dict[str, nn.Parameter], shared: set[str], inputs: tuple[str, ...]) -> bool:
        op = Op("op", kind, inputs, ("y",), "block", attributes={"args": [{"tensor": 0}, {"tensor": 1}], "kwargs": {}})
        shapes = {name: (4, 3) for name in inputs if name == "a.weight"}
        parameters = Parameters(shapes, made, shared, torch.float32, CPU, group)
        return realise(LocalOp(op, form, ((2, 3),)), parameters) is None

    return [
        answer("column", "linear", {}, set(), ("x", "a.weight")),
        answer("column", "linear", {"a.weight": weight}, {"a.weight"}, ("x", "a.weight")),
        answer("row", "linear", {"a.weight": weight}, {"a.weight"}, ("x", "a.weight")),
        answer("row", "linear", {}, set(), ("x", "a.weight")),
        answer("column", "linear", {}, set(), ("x", "computed")),
        answer("column", "addmm", {}, {"a.weight"}, ("b", "x", "a.weight")),
        answer("vocabulary", "embedding", {"a.weight": weight}, {"a.weight"}, ("a.weight", "x")),
    ]


def test_what_fits_no_layer_stays_with_torch(pool: Pool) -> None:
    assert pool.run(refusals, 2) == [[False, False, True, False, True, True, True]] * 2


def test_without_megatron_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import partita.adapters.megatron as package

    monkeypatch.delattr(package, "modules", raising=False)
    monkeypatch.delitem(sys.modules, "partita.adapters.megatron.modules", raising=False)
    monkeypatch.setitem(sys.modules, "megatron.core", None)
    with pytest.raises(PlanError, match=r"tp=2 .*pip install 'partita\[megatron\]'; tp=1 works .*target=partita"):
        require(2)
