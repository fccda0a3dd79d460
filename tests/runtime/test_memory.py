"""What a stage keeps between forward and backward, measured: the bytes of all storages that are alive in between."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from partita.adapters.torch.stage import StageModule
from partita.adapters.torch.weights import Initialised, fill
from partita.cost.saved import saved_tensors
from partita.plugins.capture_torch import capture_module
from tests.runtime.models import SEQ, gpt2
from tests.runtime.programs import Layout, program

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
def kept_bytes(recompute: bool) -> int:
    """Bytes alive after the forward pass of the whole model in one stage; also runs the backward pass."""
    batch = {name: torch.zeros(SAMPLES, SEQ, dtype=torch.long) for name in ("input_ids", "labels", "attention_mask")}
    captured = capture_module(gpt2, batch, name="gpt2", dtype=torch.float32)
    piece = program(captured.graph, Layout(micro_batches=1, recompute=recompute)).pieces[0]
    stage = StageModule(captured.graph, piece, buffers=captured.buffers, device=torch.device("cpu"))
    fill(stage.parameters_by_name, Initialised(captured.skeleton, 0), piece.parameters, {}, stage.flipped)
    batch["attention_mask"] = torch.ones(SAMPLES, SEQ, dtype=torch.long)
    with Storages() as storages:
        outputs = stage(batch, {}, (0,))
        kept = storages.alive_bytes()
    sum(outputs.values()).backward()
    assert all(parameter.grad is not None for parameter in stage.parameters())
    return kept


def test_recomputation_keeps_block_inputs_and_little_more() -> None:
    hidden = SAMPLES * SEQ * 32 * 4
    # Five blocks after the embedding read the hidden values; masks and labels of this size add less than one more.
    assert 5 * hidden <= kept_bytes(True) <= 6 * hidden + 4 * SAMPLES * SEQ * SEQ * 8


def test_without_recomputation_the_cost_model_counts_what_is_kept() -> None:
    batch = {name: torch.zeros(SAMPLES, SEQ, dtype=torch.long) for name in ("input_ids", "labels", "attention_mask")}
    graph = capture_module(gpt2, batch, name="gpt2", dtype=torch.float32).graph
    counted = saved_tensors(graph, graph.ops, lambda name: 1.0)
    bytes_ = sum(graph.tensor[name].bytes for name in counted.tensors) + sum(counted.extra_bytes.values())
    assert abs(kept_bytes(False) - bytes_) < 0.01 * bytes_
    assert kept_bytes(False) > 10 * kept_bytes(True)
