"""Writing an output folder file by file, so that a run that is killed loses nothing and shows nothing half done.

The files are made in a hidden folder beside the output, which gets its name when all of them are there. Beside them a
note says which checkpoint and plan they are of: a later run of the same keeps those that are finished. The checkpoint
that is read is never written to.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.adapters.checkpoint.catalogue import Catalogue
from partita.adapters.checkpoint.output import Output
from partita.adapters.torch.whole import write_whole
from partita.errors import InputError
from partita.files import read_json, write_text

NOTE, LOCK = ".partita_reshard.json", ".lock"


@dataclass(frozen=True)
class Done:
    """What was written: the files, and how many of them an earlier run had finished."""

    files: tuple[str, ...]
    bytes: int
    kept: int


def unfinished(out: Path) -> Path:
    """The folder in which an output is made. A training that saves under the same name meanwhile has another."""
    return out.parent / f".{out.name}.reshard"


def write_outputs(
    outputs: Sequence[Output], out: Path, identity: str, progress: Callable[[str], object] = lambda words: None
) -> Done:
    """Write the files, and give the folder its name. ``identity`` says of what they are made (``identity_of``).

    InputError where ``out`` exists, where another process is writing it, or where a file can't be written: what is
    finished stays for the next run.
    """
    # A path may lead to what exists by way of what doesn't: "new/..".
    if os.path.lexists(out) or os.path.lexists(os.path.realpath(out)):
        raise InputError(f"{out}: exists already; nothing of it is replaced: remove it, or give another -o")
    partial = unfinished(out)
    try:
        partial.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: can't be made: {partial}: {error.strerror}") from None
    with _alone(partial, out):
        finished = _finished(partial, identity, progress)
        _require_space(outputs, finished, partial, out)
        kept = 0
        for output in outputs:
            path = partial / output.name
            if output.name in finished and path.is_file() and path.stat().st_size == finished[output.name]:
                kept += 1
                continue
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, output.write)
            except InputError as error:
                # By the name that it would have had.
                raise InputError(str(error).replace(str(partial), str(out))) from error.__cause__
            except OSError as error:
                raise InputError(f"{out / output.name}: can't be written: {error.strerror}") from None
            finished[output.name] = path.stat().st_size
            _note(partial, out, identity, finished)
            progress(output.name)
        try:
            _only(partial, {output.name for output in outputs})
            os.rename(partial, out)
        except OSError as error:
            raise InputError(f"{out}: can't be given its name: {error.strerror}") from None
    return Done(tuple(o.name for o in outputs), sum(finished[o.name] for o in outputs), kept)


def _only(partial: Path, names: Set[str]) -> None:
    """Remove what isn't the output's: the note, the lock, and what a run that was killed was writing."""
    for path in partial.rglob("*"):
        if path.is_file() and str(path.relative_to(partial)) not in names:
            path.unlink()


def identity_of(catalogue: Catalogue, target: Any) -> str:
    """A digest of what is read and what it is written for: of the files name, size and time; of the plan all of it.

    Also of how the files were understood, since --from and --model have a say in that.
    """
    files = sorted({piece.stored.path for entry in catalogue.tensors.values() for piece in entry.pieces})
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    found = hashlib.sha256(json.dumps([stats, target], sort_keys=True).encode())
    number = {path: index for index, path in enumerate(files)}
    for key, entry in catalogue.tensors.items():
        pieces = [(p.box, number[p.stored.path], p.stored.start_bytes, p.stored.strides) for p in entry.pieces]
        found.update(repr((key, entry.shape, entry.dtype, pieces)).encode())
    return found.hexdigest()


@contextmanager
def _alone(partial: Path, out: Path) -> Iterator[None]:
    try:
        lock = os.open(partial / LOCK, os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise InputError(f"{out}: can't be written: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise InputError(f"{out}: another process is writing it ({partial})") from None
    finally:
        os.close(lock)


def _finished(partial: Path, identity: str, progress: Callable[[str], object]) -> dict[str, int]:
    """The files that an earlier run of the same has finished, with their sizes; what is of another is removed."""
    note = partial / NOTE
    if note.is_file():
        try:
            found = read_json(note)
            if found["identity"] == identity:
                return {str(name): int(size) for name, size in found["files"].items()}
        except (InputError, KeyError, TypeError, ValueError):
            pass
        progress(f"removed what another reshard had begun in {partial}")
    for item in partial.iterdir():
        if item.name != LOCK:
            shutil.rmtree(item) if item.is_dir() else item.unlink()
    return {}


def _note(partial: Path, out: Path, identity: str, finished: dict[str, int]) -> None:
    try:
        write_text(partial / NOTE, json.dumps({"identity": identity, "files": finished}))
    except InputError as error:
        raise InputError(str(error).replace(str(partial), str(out))) from None


def _require_space(outputs: Sequence[Output], finished: dict[str, int], partial: Path, out: Path) -> None:
    needed = sum(output.bytes or 0 for output in outputs if output.name not in finished)
    free = shutil.disk_usage(partial).free
    if needed > free:
        raise InputError(
            f"{out}: can't be written: {needed:,} bytes are needed, {free:,} are free there; another -o may have room"
        )
