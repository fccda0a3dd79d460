"""A user's script on ranks of the pool, started by its file as torchrun starts it, without new processes' imports.

What torchrun itself adds, processes of the script's own, is left to the tests that start it.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Ended(NamedTuple):
    """A rank's script: its exit status, and what it printed."""

    status: int | str
    out: str
    err: str


def script(path: str, arguments: list[str], folder: str) -> Ended:
    """``python PATH ARGUMENTS …`` in the folder, on every rank. An exception of the script fails the call."""
    status: int | str = 0
    out, err = io.StringIO(), io.StringIO()
    before = os.getcwd(), sys.argv
    with own_process(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        os.chdir(folder)
        sys.argv = [path, *arguments]
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            status = end.code or 0
        finally:
            os.chdir(before[0])
            sys.argv = before[1]
    return Ended(status, out.getvalue(), err.getvalue())


@contextmanager
def own_process() -> Iterator[None]:
    """transformers, accelerate and DeepSpeed keep much for as long as a process lives; a rank of the pool lives on."""
    import deepspeed.ops
    from accelerate.state import AcceleratorState, GradientState
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    from tests.runtime.engines import forget_earlier_engines

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    before = dict(os.environ)
    os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]
    forget_earlier_engines()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        # Otherwise a model is built divided over the ranks where the configuration has ZeRO-3.
        unset_hf_deepspeed_config()
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
