"""What this machine offers to processes that train together: cores, memory, devices, tools."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from partita.cluster.cores import usable_cores
from partita.gpus import driver_gpus

SHARED = Path("/dev/shm")


@dataclass(frozen=True)
class Machine:
    """``shared_memory_bytes`` is the size of /dev/shm, None where there is none; ``driver_gpus`` are nvidia-smi's.

    ``tools`` are found on the PATH or not. ``stale_locks`` are left by compilations of DeepSpeed's operators that ended
    before their time: the next process that wants the operator waits for them for ever.
    """

    cores: int
    memory_bytes: int
    shared_memory_bytes: int | None
    driver_gpus: tuple[str, ...]
    tools: dict[str, bool]
    stale_locks: tuple[str, ...]


def machine() -> Machine:
    """Look at this machine; what can't be found out counts as absent."""
    return Machine(
        cores=usable_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        shared_memory_bytes=shutil.disk_usage(SHARED).total if SHARED.is_dir() else None,
        driver_gpus=driver_gpus(),
        tools={name: shutil.which(name) is not None for name in ("torchrun", "numactl", "ninja", "c++", "nvcc")},
        stale_locks=stale_locks(),
    )


def stale_locks(minutes: float = 15) -> tuple[str, ...]:
    """Locks of compilations in torch's folder of extensions that are older than any compilation takes."""
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions")
    try:
        # TORCH_EXTENSIONS_DIR holds the extensions themselves; the default folder has one more level, by version.
        locks = [*folder.glob("*/lock"), *folder.glob("*/*/lock")]
        return tuple(sorted(str(lock) for lock in locks if time.time() - lock.stat().st_mtime > 60 * minutes))
    except OSError:
        return ()
