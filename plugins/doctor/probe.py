"""Runs in a process of its own: imports the modules that it is told to, and says how it went, one JSON line each.

After torch it also looks at devices and process groups, after DeepSpeed at what DeepSpeed found. Whoever reads the
lines knows by the last one which import ended the process.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def main(modules: list[str]) -> None:
    """Import one after another. Only these lines go to stdout: what the frameworks print there goes to stderr."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for module in modules:
        start = time.perf_counter()
        answer: dict[str, Any] = {"module": module, "error": None, "facts": {}}
        try:
            importlib.import_module(module)
            answer["facts"] = FACTS.get(module, dict)()
        except (Exception, SystemExit) as error:
            words = " ".join(str(error).split())
            answer["error"] = f"{type(error).__name__}: {words[:300]}".rstrip(": ")
        answer["seconds"] = round(time.perf_counter() - start, 2)
        print(json.dumps(answer), file=lines, flush=True)
    lines.flush()
    # What frameworks do when the interpreter ends is not asked for, and can crash.
    os._exit(0)


def torch_facts() -> dict[str, Any]:
    """Devices, and for each kind of process group whether it works: true, false where it isn't built in, or why not."""
    import torch
    import torch.distributed as dist

    facts: dict[str, Any] = {"cuda": torch.version.cuda, "devices": [], "devices_error": None}
    facts |= {"distributed": dist.is_available(), "gloo": False, "nccl": False}
    try:
        facts["devices"] = [
            {"name": found.name, "memory_bytes": found.total_memory}
            for found in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        ]
    except Exception as error:
        facts["devices_error"] = f"{type(error).__name__}: {error}"
    if facts["distributed"]:
        if dist.is_gloo_available():
            facts["gloo"] = _adds("gloo", "cpu")
        if dist.is_nccl_available():
            facts["nccl"] = _adds("nccl", "cuda") if facts["devices"] else True
    return facts


def _adds(backend: str, device: str) -> bool | str:
    """Whether a group of this process alone reduces a tensor; it looks for a network address as any group does."""
    import torch
    import torch.distributed as dist

    try:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        value = torch.ones(1, device=device)
        dist.all_reduce(value)
        dist.destroy_process_group()
        return bool(value.item() == 1)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def deepspeed_facts() -> dict[str, Any]:
    """What DeepSpeed takes this machine's devices for, the precisions that it says they can train in, the notice.

    ``noticed`` is whether Partita stands before ``deepspeed.initialize``, as it should where the notice is on.
    """
    # Imported by name: each framework belongs to its adapter, and this looks at the installation only.
    accelerator = importlib.import_module("deepspeed.accelerator").get_accelerator()
    return {
        "noticed": _partitas(sys.modules["deepspeed"].initialize),
        "accelerator": accelerator.device_name(),
        "fp16": bool(accelerator.is_fp16_supported()),
        "bf16": bool(accelerator.is_bf16_supported()),
    }


def _partitas(function: Any) -> bool:
    """Whether the function, or one that it wraps, is Partita's: a wrapper may show the name of what it wraps."""
    while function is not None:
        if getattr(function, "__globals__", {}).get("__name__", "").startswith("partita."):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


FACTS: dict[str, Callable[[], dict[str, Any]]] = {"torch": torch_facts, "deepspeed": deepspeed_facts}

if __name__ == "__main__":
    main(sys.argv[1:])
