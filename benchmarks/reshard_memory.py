"""Memory and time of ``partita reshard`` on a checkpoint of about 1 GiB: what the process holds beyond its code.

A GPT-2 of 90 million parameters, its weights and Adam's two moments as DeepSpeed saves them with ZeRO 1 over 4 copies,
is written for a plan of 2 stages of 2 devices each, and as a dense model. Each run is a process of its own; seconds
include its start.

    python benchmarks/reshard_memory.py [LAYERS]
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

from machine import machine

CONFIG = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 1024, "n_head": 16, "n_positions": 256}
COPIES, STATES = 4, ("exp_avg", "exp_avg_sq")
MIB = 2**20
PARTITA = str(Path(sys.executable).with_name("partita"))


def made(folder: Path, layers: int) -> int:
    """A configuration, a plan and a checkpoint; the bytes of its tensors."""
    import torch

    from partita.cli.main import main
    from partita.cli.model import load_model

    config = folder / "config.json"
    config.write_text(json.dumps({**CONFIG, "n_layer": layers}))
    plan = ["plan", str(config), "--cluster", "cpu", "--devices", "4", "--global-batch", "4", "--precision", "fp32"]
    with redirect_stdout(io.StringIO()):
        assert main([*plan, "--fix", "pp=2", "--fix", "tp=2", "-o", str(folder / "plan.json")]) == 0
    graph = load_model(str(config), None, "float32")
    shapes = {tensor.name: tensor.shape for tensor in graph.tensors if tensor.role == "parameter"}
    path = folder / "saved/global_step1"
    path.mkdir(parents=True)
    elements = sum(torch.Size(shape).numel() for shape in shapes.values())
    each = -(-elements // COPIES)
    for copy in range(COPIES):
        count = min(each, elements - copy * each)
        state = {"step": torch.tensor(1.0), **{word: torch.randn(count) for word in STATES}}
        base = {"state": {0: state}, "param_groups": [{"lr": 0.1, "params": [0]}]}
        inner = {"base_optimizer_state": base, "single_partition_of_fp32_groups": [torch.randn(count)], "zero_stage": 1}
        torch.save({"optimizer_state_dict": inner}, path / f"zero_pp_rank_{copy}_mp_rank_00_optim_states.pt")
    head = {
        "module": {}, "param_shapes": [{name: torch.Size(shape) for name, shape in shapes.items()}],
        "global_steps": 1, "dp_world_size": COPIES, "mp_world_size": 1,
    }  # fmt: skip
    torch.save(head, path / "mp_rank_00_model_states.pt")
    return 4 * elements * (1 + len(STATES))


def measured(folder: Path, to: str) -> tuple[int, float]:
    """In a process of its own: bytes that it held at most beyond what it had before it read, and seconds."""
    target = ["--to", str(folder / "plan.json"), "--model", str(folder)] if to == "plan" else ["--to", to]
    began = time.perf_counter()
    command = [
        PARTITA,
        "reshard",
        str(folder / "saved/global_step1"),
        *target,
        "-o",
        str(folder / f"for {to}"),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    found = json.loads(done.stdout)
    return found["peak_bytes"] - found["before_bytes"], time.perf_counter() - began


def main() -> None:
    layers = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = made(folder, layers)
        print(machine())
        print(f"{'written':>12} {'checkpoint':>12} {'memory beyond the code':>24} {'seconds':>8}")
        for to in ("plan", "safetensors"):
            more_bytes, seconds = measured(folder, to)
            print(f"{to:>12} {size / MIB:>8.0f} MiB {more_bytes / MIB:>20.1f} MiB {seconds:>8.1f}")


if __name__ == "__main__":
    main()
