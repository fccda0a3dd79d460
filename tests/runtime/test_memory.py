"""What a stage keeps between forward and backward, measured: the bytes of all storages that are alive in between."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from partita.adapters.torch.stage import StageModule
from partita.adapters.torch.weights import Initialised, fill
from partita.cluster import parse_cluster
from partita.cost.saved import saved_tensors
from partita.plan import Recompute
from partita.plugins.capture_torch import capture_module
from partita.simulate.costs import costs
from tests.runtime.models import SEQ, gpt2
from tests.runtime.programs import Layout, plan, program

pytestmark = pytest.mark.slow

SAMPLES = 4


class Storages(TorchDispatchMode):
    """Remembers every storage that an operator makes, without keeping it."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.made[storage.data_ptr()] = (StorageWeakRef(storage), storage.nbytes())
        return result

    def alive_bytes(self) -> int:
        return sum(size for reference, size in self.made.values() if not reference.expired())


@functools.cache
def kept_bytes(attention: str, recompute: Recompute) -> tuple[int, int]:
    """Bytes alive after the forward pass of the whole model in one stage, and what is simulated; also runs the backward
    pass."""
    batch = {name: torch.zeros(SAMPLES, SEQ, dtype=torch.long) for name in ("input_ids", "labels", "attention_mask")}
    captured = capture_module(lambda: gpt2(attention=attention), batch, name="gpt2", dtype=torch.float32)
    layout = Layout(micro_batches=1, recompute=recompute)
    piece = program(captured.graph, layout).pieces[0]
    stage = StageModule(captured.graph, piece, buffers=captured.buffers, device=torch.device("cpu"))
    fill(stage.parameters_by_name, Initialised(captured.skeleton, 0), piece.parameters, {}, stage.flipped)
    batch["attention_mask"] = torch.ones(SAMPLES, SEQ, dtype=torch.long)
    with Storages() as storages:
        outputs = stage(batch, {}, (0,))
        kept = storages.alive_bytes()
    sum(outputs.values()).backward()
    assert all(parameter.grad is not None for parameter in stage.parameters())
    (memory,) = costs(captured.graph, plan(captured.graph, layout), parse_cluster("cpu", 1)).memory
    return kept, memory.activations


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_recomputation_keeps_block_inputs_and_little_more(attention: str) -> None:
    hidden = SAMPLES * SEQ * 32 * 4
    # Five blocks after the embedding read the hidden values; masks and labels of this size add less than one more.
    assert 5 * hidden <= kept_bytes(attention, "full")[0] <= 6 * hidden + 4 * SAMPLES * SEQ * SEQ * 8


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_what_is_kept_is_what_is_simulated(attention: str, recompute: Recompute) -> None:
    kept, simulated = kept_bytes(attention, recompute)
    assert abs(kept - simulated) < 0.02 * kept
    assert kept > 10 * kept_bytes(attention, "full")[0]


def test_selective_recomputation_keeps_no_scores() -> None:
    """Four layers of scores of 4 heads: softmax's results, less the mask that is kept to compute them again."""
    scores, mask = 4 * SAMPLES * 4 * SEQ * SEQ * 4, SAMPLES * SEQ * SEQ * 4
    assert kept_bytes("eager", "none")[0] - kept_bytes("eager", "selective")[0] == scores - mask


def test_without_recomputation_the_cost_model_counts_what_is_kept() -> None:
    batch = {name: torch.zeros(SAMPLES, SEQ, dtype=torch.long) for name in ("input_ids", "labels", "attention_mask")}
    graph = capture_module(gpt2, batch, name="gpt2", dtype=torch.float32).graph
    counted = saved_tensors(graph, graph.ops, lambda name: 1.0)
    bytes_ = sum(graph.tensor[name].bytes for name in counted.tensors) + sum(counted.extra_bytes.values())
    assert abs(kept_bytes("sdpa", "none")[0] - bytes_) < 0.01 * bytes_
