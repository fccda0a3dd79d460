"""Captures that all processes of a run of the tests share: hundreds of tests export the same tiny models for the same
shapes.

What ``capture_skeleton`` gives depends on its arguments alone. So it is kept in a folder, under a digest of all that
they are made of: who asks first runs torch.export, whoever comes next reads what it wrote. On ranks every capture goes
this way, in the process of the tests those by ``kept_capture``: tests of the capture itself are beside it.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import partita.adapters.deepspeed.front as front
import partita.adapters.torch.loop.codes as codes
import partita.plugins.capture_torch.capture as capturing
from partita.plugins.capture_torch import Captured, Skeleton, build_skeleton

# Names the folder, to all processes of a run.
FOLDER = "PARTITA_TESTS_CAPTURES"
# Wherever a rank calls it by this name.
CALLERS = (capturing, codes, front)
right = capturing.capture_skeleton


def share(folder: Path) -> None:
    """From now on this process captures by way of the folder."""

    def shared(skeleton: Skeleton, inputs: Any, **options: Any) -> Captured:
        return _by(folder, skeleton, inputs, options)

    for caller in CALLERS:
        caller.capture_skeleton = shared


def kept_capture(
    factory: Callable[[], torch.nn.Module], inputs: Any, *, name: str, dtype: torch.dtype | None = None
) -> Captured:
    """``capture_module``, for tests that need a graph and don't ask how it is made."""
    skeleton, folder = build_skeleton(factory, dtype), os.environ.get(FOLDER)
    return _by(Path(folder), skeleton, inputs, {"name": name}) if folder else right(skeleton, inputs, name=name)


def _by(folder: Path, skeleton: Skeleton, inputs: Any, options: dict[str, Any]) -> Captured:
    if (digest := _digest(skeleton, inputs, options)) is None:
        return right(skeleton, inputs, **options)
    return _kept(folder / digest, skeleton, inputs, options)


def _kept(path: Path, skeleton: Skeleton, inputs: Any, options: dict[str, Any]) -> Captured:
    # Ranks come at the same time: one exports, the others wait for it.
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            captured = right(skeleton, inputs, **options)
            part = path.with_suffix(".part")
            part.write_bytes(pickle.dumps(replace(captured, skeleton=None)))
            os.replace(part, path)
            return captured
    with warnings.catch_warnings():
        # torch's own, about how it reads its trees.
        warnings.simplefilter("ignore", FutureWarning)
        found = pickle.loads(path.read_bytes())
    buffers = {name: skeleton.buffers.get(name, value) for name, value in found.buffers.items()}
    return replace(found, skeleton=skeleton, buffers=buffers)


def _digest(skeleton: Skeleton, inputs: Any, options: dict[str, Any]) -> str | None:
    """Of the module with all its attributes, the values of its buffers, shapes of the inputs and the rest; None for a
    module that can't be told by that, such as one of a class inside a function."""
    _set_mode(skeleton.model, **options)
    around = torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
    made_of = skeleton.model, skeleton.buffers, _without_values(inputs), sorted(options.items()), around
    written = io.BytesIO()
    try:
        _Contents(written).dump(made_of)
    except (AttributeError, TypeError, pickle.PicklingError):
        return None
    # Two scripts may each have a class of the same name.
    return None if b"__main__" in written.getvalue() else hashlib.sha256(written.getvalue()).hexdigest()


class _Contents(pickle.Pickler):
    """Writes what is in a tensor: torch writes the address at which it lies too."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type == "meta":
            return NotImplemented
        held = value.detach().flatten().view(torch.uint8).numpy().tobytes()
        return tuple, ((str(value.dtype), *value.shape, held),)


def _set_mode(model: torch.nn.Module, training: bool = True, others: Sequence[str] = (), **_: object) -> None:
    """The mode that is captured, whatever was captured before."""
    model.train(training)
    for path in others:
        model.get_submodule(path).training = not training


def _without_values(inputs: Any) -> Any:
    def shape(value: Any) -> Any:
        return (tuple(value.shape), str(value.dtype)) if isinstance(value, torch.Tensor) else value

    if isinstance(inputs, Mapping):
        return [(name, shape(value)) for name, value in inputs.items()]
    return [shape(value) for value in inputs]
