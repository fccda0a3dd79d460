"""DeepSpeed's checkpoints, saved whole or not at all, and read before anything is changed.

DeepSpeed writes a checkpoint's files in place, each rank its own. A rank that can't leaves a folder that looks like a
checkpoint, and the others waiting. Here the files are written into a hidden folder, which gets its name when every
rank has written; and whatever goes wrong on one rank is said on all of them, in the same words.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.engine import DeepSpeedEngine

from partita.adapters.deepspeed.layout import require_same_parts
from partita.adapters.torch.begin import agree
from partita.adapters.torch.resharded import LAYOUT, LAYOUT_FILE, REST_FILE, TENSORS_FILES
from partita.adapters.torch.whole import unwritten
from partita.adapters.torch.wires import ProcessGroup
from partita.errors import InputError, PartitaError
from partita.files import read_text, write_text

# Names the tag of the checkpoint that is loaded where none is asked for.
LATEST = "latest"


class _Files:
    """A checkpoint engine that notes the first file that can't be written, and goes on without writing.

    So every rank comes to the end of the save, and to the question whether all could. What was ``read`` already isn't
    read again.
    """

    def __init__(self, engine: Any, read: Mapping[str, Any]):
        self.engine = engine
        self.read = read
        self.failure: PartitaError | None = None
        self.shown: Callable[[str], str] = str

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def attempt(self, path: str, write: Callable[[], object]) -> None:
        if self.failure is None:
            try:
                write()
            except Exception as error:
                self.failure = unwritten(self.shown(path), error, path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.attempt(path, lambda: self.engine.makedirs(path, exist_ok=exist_ok))

    def save(self, state_dict: Any, path: str) -> None:
        self.attempt(path, lambda: self.engine.save(state_dict, path))

    def load(self, path: str, map_location: Any = None) -> Any:
        return self.read[path] if path in self.read else self.engine.load(path, map_location=map_location)


@contextmanager
def _through(engine: DeepSpeedEngine, read: Mapping[str, Any]) -> Iterator[_Files]:
    """Inside, the engine's files go through ``_Files``, also the script that DeepSpeed puts beside its checkpoints."""
    own, copy = engine.checkpoint_engine, engine._copy_recovery_script
    files = _Files(own, read)
    engine.checkpoint_engine = files
    engine._copy_recovery_script = lambda folder: files.attempt(folder, lambda: copy(folder))
    try:
        yield files
    finally:
        engine.checkpoint_engine = own
        del engine._copy_recovery_script


def save_whole(
    engine: DeepSpeedEngine, save: Callable[[str], object], folder: str, tag: object, save_latest: bool
) -> None:
    """Save under the tag (None: the number of steps) and name it in ``latest``. Collective over all ranks.

    ``save(tag)`` is DeepSpeed's own, which leaves ``latest`` alone. InputError on every rank where one can't write;
    what was saved before, under this tag or another, is still there then, and ``latest`` names what it named.
    """
    tag = f"global_step{engine.global_steps}" if tag is None else str(tag)
    _same_everywhere(tag)
    first = (engine.local_rank if engine.use_node_local_storage() else engine.global_rank) == 0
    hidden = str(Path(tag).with_name(f".{Path(tag).name}.partial"))
    partial, final = Path(folder, hidden), Path(folder, tag)
    if first:
        # What a run that was killed in the middle left.
        shutil.rmtree(partial, ignore_errors=True)
    with _through(engine, {}) as files:
        files.shown = lambda path: str(Path(path)).replace(str(partial), str(final))
        save(hidden)
    failure = files.failure
    try:
        agree_on(engine, failure)
        if first:
            named = save_latest and engine.global_rank == 0
            failure = _publish(partial, final, Path(folder, LATEST) if named else None)
        agree_on(engine, failure)
    finally:
        if first:
            shutil.rmtree(partial, ignore_errors=True)


def _publish(partial: Path, final: Path, latest: Path | None) -> PartitaError | None:
    """Give a checkpoint that is complete its name, and write it down; why that can't be."""
    try:
        if not final.exists():
            os.rename(partial, final)
        else:
            # Files of the user's own may stand there: what was saved before is replaced, and nothing else.
            for path, _, names in os.walk(partial):
                place = final / Path(path).relative_to(partial)
                place.mkdir(exist_ok=True)
                for name in names:
                    os.replace(Path(path, name), place / name)
            # What partita reshard wrote there would otherwise be loaded in place of it.
            for name in (LAYOUT_FILE, REST_FILE, TENSORS_FILES):
                for old in final.glob(name):
                    old.unlink()
        if latest is not None:
            write_text(latest, str(final.relative_to(latest.parent)))
    except OSError as error:
        return InputError(f"{final}: can't be written: {error.strerror or error}")
    except PartitaError as error:
        return error
    return None


@contextmanager
def read_first(engine: DeepSpeedEngine, folder: str, tag: object, optimizer: bool) -> Iterator[None]:
    """Inside, the rank's files of a checkpoint have been read, and are not read again. Collective over all ranks.

    InputError on every rank where one's is missing or broken, or where another plan saved it: the engine is as it was.
    ``optimizer`` says whether the optimizer's state is wanted.
    """
    names = [engine._get_ckpt_name(folder, tag)]
    if optimizer and engine.zero_optimization():
        names.append(engine._get_zero_ckpt_name(folder, tag))
    read: dict[str, Any] = {}
    failure: Exception | None = None
    try:
        for name in names:
            read[name] = _read(engine, Path(name), Path(folder), str(tag))
        _same_plan(engine, read[names[0]], Path(folder, str(tag)))
    except PartitaError as error:
        failure = error
    agree_on(engine, failure)
    with _through(engine, read):
        yield


def named_by_latest(folder: str) -> str | None:
    """The tag that is loaded where none is asked for; None where there is none. InputError for an empty file."""
    path = Path(folder, LATEST)
    if not path.is_file():
        return None
    tag = read_text(path).strip()
    if not tag:
        raise InputError(f"{path}: is empty; {_others(Path(folder), '')}")
    return tag


def _read(engine: DeepSpeedEngine, path: Path, folder: Path, tag: str) -> Any:
    if not path.is_file():
        what = f"{path}: no such file" if path.parent.is_dir() else f"{path.parent}: there is no such checkpoint"
        raise InputError(f"{what}; {_others(folder, tag)}")
    try:
        return engine.checkpoint_engine.load(str(path), map_location="cpu")
    except Exception as error:  # each way of writing has its own for a file that ends too early
        size = path.stat().st_size
        raise InputError(
            f"{path}: can't be read, it is truncated or broken ({size} bytes); {_others(folder, tag)}"
        ) from error


def _others(folder: Path, tag: str) -> str:
    """What else could be loaded."""
    found = sorted(path.parent for path in folder.glob("*/*model_states.pt") if path.parent.name != tag)
    names = list(dict.fromkeys(path.name for path in found if not path.name.startswith(".")))
    return f"other checkpoints there, to be loaded by their tag: {', '.join(names)}" if names else "there is no other"


def _same_plan(engine: DeepSpeedEngine, state: Mapping[str, Any], path: Path) -> None:
    saved, own = state.get("mp_world_size"), engine.mp_world_size
    if saved != own:
        raise InputError(
            f"{path}: was saved by a plan that lays a copy of the model on {saved} devices, this one on {own}; partita "
            "reshard writes it for this plan; or hold the plan (fix pp and tp)"
        )
    if LAYOUT in state:
        stage = engine.runtime.stage
        require_same_parts(path, state[LAYOUT]["parameters"], stage, dict(stage.context.coordinates))


def _same_everywhere(tag: str) -> None:
    tags: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(tags, tag)
    if len(set(tags)) > 1:
        words = ", ".join(f'"{one}" on rank {rank}' for rank, one in enumerate(tags))
        raise InputError(f"save_checkpoint was given different tags: {words}; all ranks save one checkpoint")


def agree_on(engine: DeepSpeedEngine, failure: Exception | None) -> None:
    """Raise the failure of the first rank that has one, on every rank. Collective."""
    agree(ProcessGroup(dist.group.WORLD), failure, torch.zeros((), dtype=torch.float64, device=engine.device))
