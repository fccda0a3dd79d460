"""What co-shard takes off a step's memory, measured: the most bytes of tensors that are alive at once in a real step.

A GPT-2 is trained for a step on one rank of a process group: without recomputation, with it (one shard), and with heads
and hidden units in 2, 4 and 8 shards that are computed one after another. Every storage that an operator makes is
followed until it is freed; parameters were made before. Twice: with attention that keeps a matrix of tokens × tokens
for each head, which shards divide, and with torch's fused kernel, which keeps none. Inputs, norms, residuals and
gradients are not divided, so that the peak falls by somewhat less than the number of shards.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from machine import machine
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from partita.adapters.torch.engine import TorchEngine, optimizers
from partita.adapters.torch.prepare import Lowered, prepare
from partita.cluster import parse_cluster
from partita.draft import drafted
from partita.drafted import library
from partita.plugins.capture_torch import Captured, capture_module
from partita.problem import Problem
from partita.spacetime.lower import lower

SEQ, WIDTH, HEADS, LAYERS, VOCABULARY, SAMPLES = 1024, 64, 8, 2, 128, 1
KERNELS = {"attention with a matrix for each head": SDPBackend.MATH, "fused attention": SDPBackend.FLASH_ATTENTION}
ROWS: list[tuple[str, dict[str, int]]] = [("1f1b", {}), *(("co-shard", {"shards": shards}) for shards in (1, 2, 4, 8))]


class Alive(TorchDispatchMode):
    """The bytes of all storages that operators made and nobody has freed, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.made[storage.data_ptr()] = (StorageWeakRef(storage), storage.nbytes())
        self.made = {at: found for at, found in self.made.items() if not found[0].expired()}
        self.most = max(self.most, sum(size for _, size in self.made.values()))
        return result


def gpt() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=LAYERS, n_embd=WIDTH, n_head=HEADS, n_positions=SEQ, vocab_size=VOCABULARY, use_cache=False,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def batch() -> dict[str, torch.Tensor]:
    ids = torch.randint(VOCABULARY, (SAMPLES, SEQ), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids}


def measured(captured: Captured, name: str, numbers: dict[str, int], kernel: SDPBackend) -> tuple[int, float]:
    """The peak in bytes of a step under a plan of the library, and its loss."""
    problem = Problem(captured.graph, parse_cluster("cpu", 1), SAMPLES, precision="fp32", target="partita")
    plan = drafted(library()[name], name, problem, {**numbers, "micro_batches": 1})
    prepared = prepare(Lowered(captured, lower(captured.graph, plan)))
    engine = TorchEngine(
        prepared.stages, prepared.groups,
        optimizers(prepared.stages, lambda parameters: torch.optim.SGD(parameters.values(), lr=1e-3)),
    )  # fmt: skip
    with sdpa_kernel(kernel), Alive() as alive:
        loss = prepared.runtime.step(iter([batch()]), engine)
    return alive.most, loss


def main() -> None:
    print(machine())
    print(f"GPT-2, {LAYERS} layers, {WIDTH} wide, {HEADS} heads, {SAMPLES} × {SEQ} tokens, fp32; one step on one rank")
    torch.set_num_threads(1)
    captured = capture_module(gpt, batch(), name="gpt2")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        for words, kernel in KERNELS.items():
            table(words, [(name, numbers, *measured(captured, name, numbers, kernel)) for name, numbers in ROWS])
        dist.destroy_process_group()


def table(words: str, rows: list[tuple[str, dict[str, int], int, float]]) -> None:
    one_shard = rows[1][2]
    print(f"{words:40}{'peak MiB':>10}{'one shard ÷ it':>16}{'loss':>11}")
    for name, numbers, peak, loss in rows:
        plan = f"co-shard, shards={numbers['shards']}" if numbers else f"{name}, nothing recomputed"
        print(f"  {plan:38}{peak / 2**20:10.2f}{one_shard / peak:16.2f}{loss:11.6f}")


if __name__ == "__main__":
    main()
