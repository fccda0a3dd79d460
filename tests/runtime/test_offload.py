"""What is kept of an offloaded block leaves the device, its parameters don't, and the gradients are the same."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from partita.adapters.torch import offload
from partita.adapters.torch.offload import in_host_memory
from partita.adapters.verify.planned import verify_plan
from partita.cluster import parse_cluster
from partita.draft import Draft, drafted, op_assign, op_order, op_trans
from partita.draft import offload as offload_blocks
from partita.plan import Axis
from partita.problem import Problem
from tests.runtime.models import MODELS
from tests.runtime.training import capture


def test_values_are_moved_and_parameters_stay(monkeypatch) -> None:
    moved: list[tuple[int, ...]] = []
    pack = offload._pack

    def look(tensor: torch.Tensor) -> offload.Packed:
        packed = pack(tensor)
        assert (packed[1].data_ptr() == tensor.data_ptr()) == (not packed[0])
        if packed[0]:
            moved.append(tuple(tensor.shape))
        return packed

    monkeypatch.setattr(offload, "_pack", look)
    weight = torch.randn(5, 3, requires_grad=True)
    value = torch.randn(2, 3, requires_grad=True).tanh()
    with in_host_memory():
        result = linear(value, weight).exp() @ weight
    gradients = torch.autograd.grad(result.sum(), weight)
    again = torch.autograd.grad((linear(value, weight).exp() @ weight).sum(), weight)
    # Of linear its input, of exp its result, of the product the same result; never the weight.
    assert sorted(moved) == [(2, 3), (2, 5), (2, 5)]
    assert torch.equal(gradients[0], again[0])


@pytest.mark.slow
def test_a_plan_with_offloaded_blocks_is_equal() -> None:
    kind = MODELS["gpt2"]

    def offloaded(draft: Draft) -> None:
        half = len(draft.blocks) // 2
        for blocks, device in zip((draft.blocks[:half], draft.blocks[half:]), draft.devices, strict=True):
            op_assign(draft, blocks, [device])
        op_trans(draft, draft.blocks, "batch", Axis("micro", 2, "turns"))
        offload_blocks(draft, draft.blocks[1:4])
        op_order(draft, "1f1b")

    graph = capture("gpt2", "float64").graph
    problem = Problem(graph, parse_cluster("cpu", 2), 2 * kind.samples, "fp64", target="partita")
    plan = drafted(offloaded, "offloaded", problem, {})
    assert [s.offload for stage in plan.stages for s in stage.strategies] == [False, True, True, True, False, False]
    found = verify_plan(plan, kind.build, lambda n: kind.batch(n, torch.Generator().manual_seed(0), False), "offloaded")
    assert found.equal
