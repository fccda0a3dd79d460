"""Fresh weights: by the model's own rules, the same however the model is cut, and never all of them in one process."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from pathlib import Path

import pytest
import torch
from torch import nn

from partita.adapters.torch.prepare import Lowered, lower_model, prepare, realiser
from partita.adapters.torch.weights import Initialised, StateDict, fill, join
from partita.errors import ModelError, PlanError
from partita.plugins.capture_torch import build_skeleton, capture_module
from partita.spacetime.lower import lower
from tests.ranks.pool import Pool
from tests.runtime.models import MODELS, SEQ, Batch, tokens
from tests.runtime.programs import Layout, plan
from tests.runtime.training import capture

LAYOUTS = [Layout(), Layout(pp=2), Layout(tp=2), Layout(dp=2), Layout(pp=2, tp=2)]


def example(samples: int) -> Batch:
    return tokens(samples, torch.Generator(), False)


def initial(model: str, layout: Layout, target: str) -> dict[str, bytes]:
    """The bytes of this rank's trained parameters, put together over the ranks that share them."""
    planned = replace(plan(capture(model, "float32").graph, layout), target=target)
    lowered = lower_model(planned, MODELS[model].build, example)
    prepared = prepare(lowered, seed=3, realise=realiser(lowered, target))
    stage, found = prepared.stage, {}
    for name, parameter in stage.trained.items():
        part = parameter.detach().t() if name in stage.flipped else parameter.detach()
        pieces = [part.contiguous()]
        if tensor := prepared.groups.axes[stage.piece.stage].get("tensor"):
            pieces = tensor.gather(part.contiguous())
        found[name] = join(pieces, stage.piece.parameters[name]).contiguous().numpy().tobytes()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_a_seed_gives_the_same_weights_however_the_model_is_cut(pool: Pool, model: str) -> None:
    (alone,) = pool.run(initial, 1, model, LAYOUTS[0], "partita")
    assert alone.keys() == dict(MODELS[model].build().named_parameters()).keys()
    # Initialised by a rule, not left as the memory was: no two matrices are the same.
    matrices = [held for held in alone.values() if len(held) > 4 * 32 * 32]
    assert len(set(matrices)) == len(matrices) > 8
    # Stages and pieces are cut alike for both; copies are DeepSpeed's own.
    runs = [("partita", layout) for layout in LAYOUTS] + [("deepspeed", layout) for layout in LAYOUTS[-2:]]
    for target, layout in runs:
        together: dict[str, bytes] = {}
        for rank in pool.run(initial, layout.devices, model, layout, target, timeout=120):
            assert {name: held for name, held in rank.items() if alone[name] != held} == {}
            together.update(rank)
        assert together.keys() == alone.keys()


def small_gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=8, n_embd=64, n_head=4, vocab_size=500, n_positions=64))


def small_llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=500)
    )


def gpt2_rule(name: str) -> float:
    # GPT-2 adds two values a layer to its residual stream, and scales what makes them.
    return 0.02 / sqrt(2 * 8) if name.endswith("c_proj.weight") else 0.02


@pytest.mark.parametrize(("build", "rule"), [(small_gpt2, gpt2_rule), (small_llama, lambda name: 0.02)])
def test_weights_are_drawn_by_the_rule_of_the_model(
    build: Callable[[], nn.Module], rule: Callable[[str], float]
) -> None:
    """Standard deviations are the rule's, and those that the model gives itself, within 5 of their own deviations."""
    weights = Initialised(build_skeleton(build), 0)
    torch.manual_seed(0)
    drawn = 0
    for name, theirs in build().named_parameters():
        ours = weights.dense(name)
        if theirs.unique().numel() == 1:
            assert torch.equal(ours, theirs), name
            continue
        drawn += 1
        noise = 5 / sqrt(2 * ours.numel())
        assert float(ours.std()) == pytest.approx(rule(name), rel=noise), name
        assert float(theirs.detach().std()) == pytest.approx(rule(name), rel=noise), name
        assert abs(float(ours.mean())) < rule(name) * 5 / sqrt(ours.numel()), name
    # 4 matrices a layer and 2 tables; 7 matrices a layer, the table and the head.
    assert drawn == (34 if build is small_gpt2 else 16)


def large() -> nn.Module:
    """8 layers of 12.6 million parameters and a tied table of 4.1 million: 419 MB."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=8,
            n_embd=1024,
            n_head=16,
            vocab_size=4000,
            n_positions=SEQ,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def large_example(samples: int) -> Batch:
    return {name: torch.zeros(samples, SEQ, dtype=torch.long) for name in ("input_ids", "labels")}


def resident_bytes(line: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{line}:")[1].split()[0]) * 1024


def building(layout: Layout) -> tuple[int, int]:
    """(bytes of this rank's parameters, growth of the peak of resident memory) of making an engine."""
    from partita.adapters.deepspeed.initialize import initialize
    from partita.plugins.capture_torch import capture_module

    captured = capture_module(large, large_example(1), name="large")
    planned = replace(plan(captured.graph, layout), target="deepspeed")
    # What earlier tests have freed would be used again, and no growth: the system gets it back first.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    # The peak is counted from now on.
    Path("/proc/self/clear_refs").write_text("5")
    before = resident_bytes("VmRSS")
    lowered = lower_model(planned, large, large_example)
    engine = initialize(planned, lowered, optimizer=lambda parameters: torch.optim.Adam(parameters.values()), config={})
    growth = resident_bytes("VmHWM") - before
    held = sum(parameter.numel() * parameter.element_size() for parameter in engine.module.parameters())
    return held, growth


@pytest.mark.slow
def test_no_rank_builds_the_whole_model(pool: Pool) -> None:
    with torch.device("meta"):
        whole = sum(parameter.numel() * 4 for parameter in large().parameters())
    assert whole > 400e6
    layout = Layout(pp=2)
    (first, first_growth), (second, second_growth) = pool.run(building, 2, layout, timeout=120)
    table = 4000 * 1024 * 4
    # The table is on both: the first stage looks words up in it, the last multiplies by it.
    assert first + second == whole + table
    assert abs(first - second) < 0.1 * whole
    for held, growth in ((first, first_growth), (second, second_growth)):
        assert held < 0.6 * whole
        # Its own part, and some 100 MB of code that is loaded and of parameters on their way; never all of them.
        assert held < growth < 0.9 * whole


def test_a_weight_of_another_shape_is_refused() -> None:
    given = StateDict({"weight": torch.ones(1)})
    with pytest.raises(ModelError, match=r'"weight" has shape \[1\].* needs \[4, 3\]'):
        fill({"weight": nn.Parameter(torch.zeros(4, 3))}, given, {"weight": None}, {}, set())


def test_a_model_without_a_loss_is_not_trained() -> None:
    def inputs(samples: int) -> Batch:
        return {"input": torch.zeros(samples, 3)}

    by_hand = plan(capture_module(lambda: nn.Linear(3, 3), inputs(1), name="linear").graph, Layout())
    with pytest.raises(ModelError, match=r'"linear" can\'t be trained: none of its outputs is a scalar'):
        lower_model(by_hand, lambda: nn.Linear(3, 3), inputs)


def with_too_many_ranks() -> str:
    captured = capture("tied scalar", None)
    by_hand = plan(captured.graph, Layout(pp=2, micro_batches=1))
    try:
        prepare(Lowered(captured, lower(captured.graph, by_hand)))
    except PlanError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_every_rank_refuses_a_rank_without_a_place(pool: Pool) -> None:
    message = "rank 2 of 4 has no place in the plan, which uses devices [0, 1]"
    assert pool.run(with_too_many_ranks, 4) == [message] * 4
