"""Seconds and kept bytes of one block on this device: the median of repeated runs after a warm-up, and their spread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, quantiles

import torch
from torch import Tensor

from partita.adapters.profile.pieces import Runnable

WARM_UP, LEAST, MOST = 3, 7, 30
# Repeated until so much time has gone by, at most MOST and at least LEAST times.
SECONDS = 0.4


@dataclass(frozen=True)
class Figures:
    """Medians; ``spread`` is half the range of the middle half of the runs, as a part of the median of both passes."""

    forward_seconds: float
    backward_seconds: float
    kept_bytes: int
    peak_bytes: int | None
    spread: float


def measure(block: Runnable, device: torch.device) -> Figures:
    """Run the block forward and backward again and again."""
    kept, peak = _kept_bytes(block, device)
    times: list[tuple[float, float]] = []
    for _ in range(WARM_UP):
        _once(block, device)
    start = time.perf_counter()
    while len(times) < LEAST or (len(times) < MOST and time.perf_counter() - start < SECONDS):
        times.append(_once(block, device))
    both = [forward + backward for forward, backward in times]
    low, _, high = quantiles(both, n=4)
    return Figures(
        median(forward for forward, _ in times), median(backward for _, backward in times), kept, peak,
        (high - low) / 2 / median(both),
    )  # fmt: skip


def _once(block: Runnable, device: torch.device) -> tuple[float, float]:
    """Seconds of one forward and one backward pass."""
    for leaf in block.leaves:
        leaf.grad = None
    if device.type == "cuda":
        begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        torch.cuda.synchronize()
        begin.record()
        outputs = _differentiable(block.run())
        middle.record()
        _backward(outputs)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(middle) * 1e-3, middle.elapsed_time(end) * 1e-3
    begin_at = time.perf_counter()
    outputs = _differentiable(block.run())
    middle_at = time.perf_counter()
    _backward(outputs)
    return middle_at - begin_at, time.perf_counter() - middle_at


def _differentiable(outputs: dict[str, Tensor]) -> list[Tensor]:
    return [value for value in outputs.values() if value.requires_grad]


def _backward(outputs: list[Tensor]) -> None:
    if outputs:
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])


def _kept_bytes(block: Runnable, device: torch.device) -> tuple[int, int | None]:
    """Bytes that exist between the passes, by the allocator; on a host, those that automatic differentiation keeps."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        outputs = block.run()
        torch.cuda.synchronize()
        kept = torch.cuda.memory_allocated(device) - before
        peak = torch.cuda.max_memory_allocated(device) - before
        del outputs
        return kept, peak
    kept_storages: dict[int, int] = {}
    # Those of parameters and of constants exist anyway; what comes from other blocks counts where it is kept.
    standing = {p.untyped_storage().data_ptr() for p in block.leaves if isinstance(p, torch.nn.Parameter)}
    with _watched(kept_storages):
        outputs = block.run()
    del outputs
    return sum(size for pointer, size in kept_storages.items() if pointer not in standing), None


@contextmanager
def _watched(found: dict[int, int]) -> Iterator[None]:
    """Storages of what is saved for the backward pass, with their bytes."""

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield
