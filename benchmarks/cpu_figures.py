"""Measure the figures of the preset ``cpu`` on this machine: one core's arithmetic, memory and dispatch, gloo's links.

Every figure is the best of many repetitions, because other work on a shared machine only ever adds time; links between
more processes than there are cores are medians, because there waiting for a core is what is measured. The numbers go
into core/cluster/presets/cpu.json by hand, rounded.
"""

from __future__ import annotations

import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from machine import machine
from torch.nn import functional

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MESSAGES = (1, 4096, 65_536, 1 << 20, 4 << 20)


def seconds(call: Callable[[], object], at_most: float = 0.4) -> float:
    """The least time of a call, over as many repetitions as fit in the time."""
    call()
    found, end = [], time.perf_counter() + at_most
    while len(found) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def products() -> None:
    """Rates of linear layers [m, k] · [k, n] with their backward, by size and dtype: peaks and the curve under them."""
    print("linear layer, forward and backward, GFLOP/s of one thread")
    print(f"{'m x k x n':>18}  {'GFLOP':>7}  " + "  ".join(f"{str(dtype)[6:]:>9}" for dtype in DTYPES))
    for m, k, n in ((32, 128, 128), (128, 128, 128), (128, 128, 512), (512, 128, 512), (2048, 128, 512), (1024,) * 3):
        rates = []
        for dtype in DTYPES:
            x, w, g = (torch.randn(size).to(dtype) for size in ((m, k), (n, k), (m, n)))
            x, w = x.requires_grad_(), w.requires_grad_()
            took = seconds(lambda x=x, w=w, g=g: functional.linear(x, w).backward(g), 0.15)
            rates.append(6e-9 * m * k * n / took)
        print(f"{f'{m} x {k} x {n}':>18}  {2e-9 * m * k * n:7.4f}  " + "  ".join(f"{rate:9.1f}" for rate in rates))


def attention() -> None:
    """Causal attention's rate forward (executed FLOPs: half of 4·b·h·s·t·d)."""
    print("\ncausal attention, GFLOP/s that are carried out, float32, one thread: forward, forward and backward ÷ 3")
    for b, h, s, d in ((16, 4, 128, 32), (1, 12, 1024, 64)):
        q, k, v = (torch.randn(b, h, s, d, requires_grad=True) for _ in range(3))

        def forward(q=q, k=k, v=v) -> torch.Tensor:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        flops = 2e-9 * b * h * s * s * d
        both = seconds(lambda: forward().sum().backward())
        print(f"  [{b}, {h}, {s}, {d}]  {flops / seconds(forward):6.1f}  {3 * flops / both:6.1f}")


def memory() -> None:
    """Bytes a second of pointwise ops: two inputs, one output, in the caches and beyond; and of transcendental ones."""
    print("\npointwise, bytes read and written a second, float32, one thread")
    for elements in (1 << 18, 1 << 20, 1 << 24):
        x, y, z = (torch.randn(elements) for _ in range(3))
        add = 12 * elements / seconds(lambda x=x, y=y, z=z: torch.add(x, y, out=z))
        fresh = 12 * elements / seconds(lambda x=x, y=y: x + y)
        tanh = 8 * elements / seconds(lambda x=x, z=z: torch.tanh(x, out=z))
        gelu = 8 * elements / seconds(lambda x=x: functional.gelu(x))
        print(
            f"  {elements:9,} elements: add in place {add / 1e9:5.1f} GB/s, into new memory {fresh / 1e9:5.1f}, "
            f"tanh {tanh / 1e9:5.1f}, gelu {gelu / 1e9:5.1f}"
        )


def dispatch() -> None:
    """Seconds of an op on hardly any data: forward alone, and forward with backward."""
    x = torch.randn(4, 4, requires_grad=True)

    def chain(count: int = 200) -> torch.Tensor:
        y = x
        for _ in range(count):
            y = y * 1.0001
        return y

    both = seconds(lambda: chain().sum().backward()) / 200
    print(f"\ndispatch of one eager op: forward {seconds(chain) / 200 * 1e6:.1f} µs, with backward {both * 1e6:.1f} µs")


def turn() -> None:
    """Seconds of an op of the plan's graph: what the recipe's engine spends on a micro-batch with hardly any tokens."""
    from partita.adapters.deepspeed.initialize import initialize
    from partita.adapters.torch.prepare import lower_model
    from partita.cli.options import problem
    from partita.cost.kinds import VIEWS
    from partita.hooks import planned
    from partita.recipes.gpt3.model import example, factory

    seq, took = 4, {}
    for count in (1, 17):
        stated = problem(
            "gpt3-tiny", "cpu", 1, count, seq, "fp32", "adam", None, "deepspeed", [f"micro_batches={count}"]
        )
        plan = planned(stated)
        lowered = lower_model(plan, factory("gpt3-tiny"), example(seq))
        engine = initialize(
            plan, lowered, device=torch.device("cpu"), optimizer=lambda named: torch.optim.Adam(named.values())
        )
        batch = example(seq)(1)
        took[count] = seconds(lambda: engine.train_batch(iter([batch] * count)), 2.0)  # noqa: B023
        ops = sum(op.kind not in VIEWS for op in stated.graph.ops)
    each = (took[17] - took[1]) / 16
    print(
        f"a micro-batch of gpt3-tiny on {seq} tokens: {each * 1e3:.2f} ms for {ops} ops of the configuration's graph, "
        f"{each / ops / 3 * 1e6:.1f} µs an op and pass (backward counts two); a step's end "
        f"{(took[1] - each) * 1e3:.2f} ms"
    )


def link(rank: int, ranks: int, port: int, folder: str) -> None:
    """One process: all-reduces over all, then messages from the first to the second and back."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    lines = []
    for size in MESSAGES:
        data, found = torch.zeros(max(1, size // 4)), []
        for _ in range(40 if size < 1 << 20 else 20):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(data)
            found.append(time.perf_counter() - start)
        sent = []
        if rank < 2:
            for _ in range(40 if size < 1 << 20 else 20):
                start = time.perf_counter()
                for source in (0, 1):
                    (dist.send if rank == source else dist.recv)(data, 1 - rank)
                sent.append((time.perf_counter() - start) / 2)
        dist.barrier()
        if rank == 0:
            lines.append(
                f"  {ranks} processes, {size:9,} bytes: all-reduce {min(found) * 1e3:7.3f} ms (median "
                f"{statistics.median(found) * 1e3:7.3f}), message {min(sent) * 1e3:7.3f} ms (median "
                f"{statistics.median(sent) * 1e3:7.3f})"
            )
    if rank == 0:
        Path(folder, "lines").write_text("\n".join(lines))
    dist.barrier()
    dist.destroy_process_group()


def links() -> None:
    """gloo between 2 and 4 processes."""
    print("\ngloo between processes of one thread")
    for ranks in (2, 4):
        with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            probe.close()
            torch.multiprocessing.spawn(link, (ranks, port, folder), nprocs=ranks)
            print(Path(folder, "lines").read_text(), flush=True)


def main() -> None:
    os.environ.update(OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu", DEEPSPEED_LOG_LEVEL="error", PYTHONWARNINGS="ignore")
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29571")
    torch.set_num_threads(1)
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}\n")
    products()
    attention()
    memory()
    dispatch()
    links()
    dist.init_process_group("gloo")
    turn()


if __name__ == "__main__":
    main()
