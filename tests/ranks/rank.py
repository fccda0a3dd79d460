"""One process of the pool: waits for a function, runs it as a rank of a process group, sends back what it returned.

Imported by the pool in the process of the tests, which may never need torch: so torch is imported where it is used.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import signal
import sys
import threading
import traceback
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path


def serve(pipe: Connection, rank: int, stacks: Path, captures: Path) -> None:
    """Answer calls until the pipe closes. An answer is (True, result) or (False, traceback); the first means: ready."""
    # Ctrl-C reaches every process of the terminal; the pool decides when its ranks end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(stacks, "w") as file:
        faulthandler.enable(file)
        faulthandler.register(signal.SIGUSR1, file, all_threads=True)
        threading.Thread(target=_end_with_the_tests, daemon=True).start()
        import torch

        from tests.ranks.captures import share

        torch.set_num_threads(1)
        share(captures)
        # What the imports made stays: it needn't be looked through each time.
        gc.freeze()
        pipe.send_bytes(pickle.dumps((True, None)))
        while True:
            try:
                message = pipe.recv_bytes()
            except EOFError:
                return
            pipe.send_bytes(_answer(message, rank))


def _answer(message: bytes, rank: int) -> bytes:
    import torch
    import torch.distributed as dist

    try:
        # Unpickling imports the test's module, which may fail too.
        n, store, function, args = pickle.loads(message)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(n))
        torch.manual_seed(0)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=n)
        answer = pickle.dumps((True, function(*args)))
        # A script ends its group itself, as it would in a process of its own.
        if dist.is_initialized():
            # Nobody leaves while another still reads what he sent.
            dist.barrier()
            dist.destroy_process_group()
        return answer
    except Exception:
        return pickle.dumps((False, traceback.format_exc()))
    finally:
        # An engine and its groups hold one another. A group that is over asks the network a hundred times a second, by
        # a thread of its own, until it is freed.
        if (comm := sys.modules.get("deepspeed.comm.comm")) and comm.cdb is not None:
            from tests.runtime.engines import free_engines

            free_engines()
        gc.collect()
        sys.stdout.flush()
        sys.stderr.flush()


def _end_with_the_tests() -> None:
    """A rank that waits in a collective would never notice that the process of the tests is gone."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
