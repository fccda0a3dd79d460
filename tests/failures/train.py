"""A training script that knows nothing of Partita, in which rank 1 fails where the last argument says.

``train.py CONFIG FOLDER STEPS FAILURE``: a checkpoint every two steps, and training goes on from the last one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import deepspeed
import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS, TOKENS, WIDTH, SAMPLES = 61, 12, 32, 4
# The first step of the second checkpoint's half.
FAILS_AT = 3


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(functional.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())

    def example_inputs(self, samples: int) -> dict[str, Tensor]:
        words = torch.zeros(samples, TOKENS, dtype=torch.long)
        return {"words": words, "labels": words.clone()}


def loader(rank: int, first: int, failure: str) -> Iterator[Tensor]:
    step = first
    while True:
        if failure == "loader" and rank == 1 and step == FAILS_AT:
            raise LookupError("sample 17 of shard 3 can't be decoded")
        words = torch.randint(0, WORDS, (SAMPLES, TOKENS), generator=torch.Generator().manual_seed(100 * step + rank))
        yield words.float() if failure == "dtype" and rank == 1 and step == FAILS_AT else words
        step += 1


def main(config: str, folder: str, steps: int, failure: str) -> None:
    # On ranks that are there already there is a group too.
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=int(os.environ.get("PATIENCE", "600"))))
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=json.loads(Path(config).read_text()))
    rank = torch.distributed.get_rank()
    engine.load_checkpoint(folder)
    batches = loader(rank, engine.global_steps, failure)
    for step in range(engine.global_steps, steps):
        words = next(batches)
        here = rank == 1 and step == FAILS_AT
        if here and failure == "wait":
            Path(folder, "waits").touch()
            time.sleep(600)
        loss = engine(words, words)
        if here and failure == "kill":
            Path(folder, "killed").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        if here and failure == "between":
            raise RuntimeError("the metrics' database is away")
        engine.backward(loss)
        engine.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.9f}", flush=True)
        if step % 2 == 1:
            engine.save_checkpoint(folder)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
