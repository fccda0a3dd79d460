"""``partita run``: hands a recipe's name and the rest of the command line to the recipe, or runs a user's own script.

A known recipe's name is that recipe; what ends in ``.py``, or is a file, is a script (``./gpt3-tiny`` is a file of that
name). The script is run by ``partita.adapters.notice.script``, in another process: nothing of this one is in its way.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """\b
Examples:
  partita run gpt3-tiny
  partita run gpt3-tiny --help
  partita run train.py --epochs 3
  partita run --devices 4 train.py --epochs 3
  torchrun --nproc_per_node 4 --no-python partita run train.py --epochs 3
"""


def run(
    what: Annotated[
        str, typer.Argument(metavar="RECIPE|SCRIPT", show_default=False, help="Such as gpt3-tiny, or train.py.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ITS ARGUMENTS]...", show_default=False, help="Handed on as they are."),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1, show_default=False, help="Of a script: processes to start. Default: the GPUs there are, otherwise 1."
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", hidden=True)] = False,
) -> int:
    """Train a recipe with its plan, or run a script of your own with the key "partita" noticed.

    What stands after the name is the recipe's or the script's own: `partita run gpt3-tiny --help` says what it takes.
    Under torchrun the script runs in each process that torchrun started; otherwise one process a device is started.
    """
    from partita.errors import InputError, ModelError, nearest
    from partita.hooks import recipes

    given = list(arguments or ())
    known = recipes()
    if what in known:
        if devices is not None:
            raise InputError(
                f"--devices {devices} before the recipe {what}: it is the recipe's own option; "
                f"write partita run {what} --devices {devices}"
            )
        return known[what].run(what, [word for word in given if word != "--debug"])
    near = _near(what, known)
    if what.endswith(".py") or Path(what).is_file():
        _check(what, near)
        return _script(what, given, devices)
    raise ModelError(f'there is no recipe "{what}", and no file of that name.{nearest(what, {*known, *near})}')


def _script(script: str, arguments: Sequence[str], devices: int | None) -> int:
    from partita.cluster.cores import usable_cores
    from partita.errors import InputError
    from partita.gpus import usable_gpus
    from partita.launch import run_ranks

    # -P: a file torch.py in the current folder is not torch.
    command = [sys.executable, "-P", "-m", "partita.adapters.notice.script", script, *arguments]
    if "RANK" in os.environ:
        if devices is not None:
            raise InputError(
                f"--devices {devices} in a process that is rank {os.environ['RANK']} already: whoever started it says "
                "how many there are; leave out --devices, or start partita run by itself"
            )
        sys.stdout.flush()
        os.execv(sys.executable, command)
    ranks = devices or usable_gpus() or 1
    threads = max(1, usable_cores() // ranks)
    return run_ranks(command, ranks, {"OMP_NUM_THREADS": str(threads), **os.environ})


def _check(script: str, near: Sequence[str]) -> None:
    """InputError for what isn't a script, before one process a device says so."""
    from partita.errors import InputError, nearest

    path = Path(script)
    try:
        compile(path.read_bytes(), script, "exec", dont_inherit=True)
    except FileNotFoundError:
        raise InputError(f"{script}: no such file.{nearest(script, near)}") from None
    except IsADirectoryError:
        raise InputError(f"{script}: is a folder, a script is needed") from None
    except OSError as error:
        raise InputError(f"{script}: can't be read: {error.strerror}") from None
    except SyntaxError as error:
        line = f"line {error.lineno}: " if error.lineno else ""
        raise InputError(f"{script}: {line}is not Python: {error.msg}") from None
    except ValueError as error:
        raise InputError(f"{script}: is not Python: {error}") from None


def _near(what: str, recipes: Iterable[str]) -> list[str]:
    """Recipes, and scripts beside it, whose names are like it: no recipe of what names a folder too."""
    path = Path(what)
    scripts = [str(script) for script in path.parent.glob("*.py")]
    return difflib.get_close_matches(what, scripts if path.name != what else [*recipes, *scripts], cutoff=0.5)
