"""Start one process a rank on this machine and wait for them. When one fails, all end: nobody waits for who is gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from partita.errors import PartitaError

# How long ranks that were asked to end may take, before they are made to.
END_SECONDS = 5.0


def run_ranks(command: Sequence[str], ranks: int, environment: Mapping[str, str]) -> int:
    """Run the command ``ranks`` times, with the variables by which torch.distributed finds the others.

    The exit status: 0, or that of the rank that failed first, which is named on stderr. No process is left behind.
    """
    shared = {**environment, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    shared["MASTER_PORT"] = str(_free_port())
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(subprocess.Popen(list(command), env=own))
        return _wait(processes)
    finally:
        _end(processes)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    while True:
        ended = {rank: status for rank, process in enumerate(processes) if (status := process.poll()) is not None}
        failed = {rank: status for rank, status in ended.items() if status}
        if failed:
            # A rank that was killed, or that says what is wrong, comes before those that lost their peer by it.
            rank = min(failed, key=lambda rank: (failed[rank] >= 0, failed[rank] != PartitaError.exit_status, rank))
            status = failed[rank]
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
            others = "" if len(processes) == 1 else "; the other ranks were stopped"
            print(f"partita: rank {rank} of {len(processes)} {how}{others}", file=sys.stderr, flush=True)
            return status if status > 0 else 1
        if len(ended) == len(processes):
            return 0
        time.sleep(0.1)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + END_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def quiet_environment() -> dict[str, str]:
    """Of children: one thread a rank unless told otherwise, no start-up chatter of the frameworks."""
    quiet = {"OMP_NUM_THREADS": "1", "DEEPSPEED_LOG_LEVEL": "error", "PYTHONWARNINGS": "ignore"}
    if not os.path.exists("/dev/nvidia0"):
        quiet["DS_ACCELERATOR"] = "cpu"
    return {**quiet, **os.environ}
