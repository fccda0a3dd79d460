"""The GPUs of this machine as NVIDIA's driver tells them: without torch, which takes seconds to import."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence


def driver_gpus() -> tuple[str, ...]:
    """Names of all GPUs that the driver has; none where there is no driver, or where it doesn't answer."""
    if shutil.which("nvidia-smi") is None:
        return ()
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip()) if done.returncode == 0 else ()


def usable_gpus() -> int:
    """How many of them this process may use."""
    return visible(driver_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(gpus: Sequence[str], named: str | None) -> int:
    """How many of the GPUs ``CUDA_VISIBLE_DEVICES`` leaves: CUDA reads it up to the first that there isn't."""
    if named is None or not gpus:
        return len(gpus)
    count = 0
    for word in (part.strip() for part in named.split(",")):
        # Besides its number a GPU, or a part of one, has a name that begins so.
        if not word.startswith(("GPU-", "MIG-")) and not (word.isdecimal() and int(word) < len(gpus)):
            break
        count += 1
    return count
