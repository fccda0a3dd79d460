"""Selective recomputation as a choice: of blocks whose attention is several ops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from partita.cluster import parse_cluster
from partita.cost.alike import alike
from partita.planner.joint.price import Pricing
from partita.planner.joint.space import Option
from partita.plugins.capture_torch import capture_module
from partita.problem import Problem
from partita.spacetime.lower import lower_to_time
from tests.planner.joint.test_price import answers, check
from tests.runtime.models import gpt2


@pytest.mark.slow
def test_attention_that_is_written_out_may_be_computed_again_alone():
    batch = {name: torch.zeros(4, 8, dtype=torch.long) for name in ("input_ids", "labels", "attention_mask")}
    whole = capture_module(lambda: gpt2(dropout=0.1, attention="eager"), batch, name="gpt2", dtype=torch.float32).graph
    prices = Pricing(Problem(whole, parse_cluster("1x4xa100-80gb"), 16, target="partita"), alike(whole))
    used = set()
    for answer in answers(prices, 10, 30):
        plan = check(prices, answer)
        used |= {strategy.recompute for stage in plan.stages for strategy in stage.strategies}
        assert lower_to_time(whole, plan).queues
    assert used == {"none", "selective", "full"}
    family = prices.families[0]
    prices_of = prices.prices(family, 1)
    none, selective, full = (family.options.index(Option(name)) for name in ("none", "selective", "full"))
    layer, ends = 1, [0, -1]
    held = prices_of.held_bytes[0, layer]
    assert held[full] < held[selective] < held[none]
    seconds = prices_of.backward[0, layer]
    assert seconds[none] < seconds[selective] < seconds[full]
    assert np.isinf(prices_of.forward[0, ends, selective]).all()
    # Other frameworks' runs aren't offered it.
    other = Pricing(Problem(whole, parse_cluster("1x4xa100-80gb"), 16, target="deepspeed"), alike(whole))
    assert {option.recompute for family in other.families for option in family.options} == {"none", "full"}
