"""Errors are the same on every rank, the engine goes on after them, and nobody waits for ever."""

from __future__ import annotations

import pytest

from tests.loop.misuse import MISUSES, alone_in, at_initialize, at_the_engine, misused, uneven_iterators
from tests.ranks.pool import Pool

pytestmark = pytest.mark.slow

# What is said of the last rank's batch. Where it is a copy's as a whole that can't be read, all of its ranks say so.
ON_ONE = {
    "wrong_dtype": ["torch.export can't capture GPT2LMHeadModel", "(called with input_ids [", "24] float64"],
    "no_samples": ["rank 1: GPT2LMHeadModel was called with no samples: [0, 24]"],
    "nested": ["rank 1: GPT2LMHeadModel was called with input_ids=dict: tensors, numbers, words and None"],
    "samples_that_differ": ["batch_size", "24] int64, labels [3, 24] int64)"],
}


@pytest.mark.parametrize("plan", ["dp2", "pp2", "zero3"])
def test_one_rank_is_wrong(pool: Pool, plan: str) -> None:
    first, second = pool.run(misused, 2, plan, list(ON_ONE), False, timeout=120)
    assert first == second
    if plan != "pp2":
        assert all(words.startswith("rank 1: ") for _, words, _ in first)
    for (kind, words, loss), wanted in zip(first, ON_ONE.values(), strict=True):
        assert kind == "InputError"
        assert [word for word in wanted if word not in words] == []
        assert loss == first[0][2]


@pytest.mark.parametrize("plan", ["dp2", "pp2"])
def test_all_are_wrong(pool: Pool, plan: str) -> None:
    first, second = pool.run(misused, 2, plan, list(MISUSES), True, timeout=120)
    assert first == second
    told = dict(zip(MISUSES, first, strict=True))
    assert {kind for kind, _, _ in first} == {"InputError"}
    # Said once and not by rank, where all say the same.
    assert told["no_samples"][1] == "GPT2LMHeadModel was called with no samples: [0, 24]"
    assert told["nothing_to_learn"][1] == "every label of all ranks' batches is -100: no token to learn from"


@pytest.mark.parametrize("plan", ["dp2", "pp2"])
def test_what_an_engine_refuses(pool: Pool, plan: str) -> None:
    first, second = pool.run(at_the_engine, 2, plan, timeout=120)
    assert first == second
    assert first["short iterator"] == "InputError: the iterator ended after 1 batches, a step takes 2"
    assert first["no loss"].startswith('ModelError: "GPT2LMHeadModel" returns no loss for these inputs')
    assert first["compile"].startswith("FacadeError: torch.compile and the key partita don't go together")
    assert "engine.load_checkpoint after it" in first["load_state_dict"]
    assert "GPT2LMHeadModel.generate: this rank holds a part" in first["generate"]
    assert "has been given to deepspeed.initialize before" in first["again"]
    assert first["twice"].startswith("RuntimeError: ")
    if plan == "pp2":
        assert '"logits" is not returned in training' in first["logits in training"]
    else:
        assert first["logits in training"] == "nothing was raised"


@pytest.mark.parametrize("plan", ["dp2", "zero2", "pp2"])
def test_iterators_that_differ(pool: Pool, plan: str) -> None:
    first, second = pool.run(uneven_iterators, 2, plan, timeout=120)
    assert first == second
    assert first[0] == [
        "InputError: rank 1: the iterator ended after 1 batches, a step takes 2",
        "InputError: rank 1: OSError: the disk is gone",
    ]


@pytest.mark.parametrize("plan", ["dp2", "pp2"])
def test_what_initialize_refuses(pool: Pool, plan: str) -> None:
    first, second = pool.run(at_initialize, 2, plan, timeout=120)
    assert first == second
    assert first["used"].startswith("InputError: the SGD has been used before deepspeed.initialize")
    shape = "a parameter of shape [2, 2] is not one of the model's"
    assert first["foreign"] == f"InputError: group 0 of the SGD: {shape}"
    assert first["foreign_groups"] == f"InputError: group 0: {shape}"
    assert 'the module "transformer.wte" has the forward hook <lambda>' in first["hooked"]
    assert first["misspelt"] == 'InputError: "partita" has no option "clustr". Did you mean \'cluster\'?'
    assert first["unfit"].startswith("PlanError: ZeRO stage 2 with tp=2")
    assert first["silent"].startswith("ModelError: nothing says what Sequential is called with. Give ")


def test_a_state_that_one_rank_asks_for(pool: Pool) -> None:
    first, second = pool.run(alone_in, 2, "state_dict", 3.0, timeout=120)
    # The one that comes when the other has given up doesn't wait in its turn.
    assert second == (
        "FacadeError: GPT2LMHeadModel.state_dict() gathers from all ranks; ranks [1] didn't call it within 6 s. Call "
        "it on every rank, and use what it returns on rank 0"
    )
    notice = "partita: rank 0 has waited 3 s in GPT2LMHeadModel.state_dict() for ranks [1]: every rank has to call it\n"
    assert first == notice + second


def test_a_call_that_one_rank_makes(pool: Pool) -> None:
    told, nothing = pool.run(alone_in, 2, "call", 3.0, timeout=120)
    assert "partita: rank 0 has waited 3 s in a call of the model for ranks [1]:" in told
    assert "or is still reading the model for a new shape of batch" in told
    assert told.count("has waited") == 1
    assert "has waited" not in nothing
