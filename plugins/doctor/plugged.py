"""The hooks that are on: every plugin of Partita that is installed, and what torch loads for Partita."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from partita.hooks import NAME
from partita.noticing import noticing

# torch loads what stands in this group whenever it is imported, unless this variable is set to anything but 1.
TORCH = "torch.backends"
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
# The one of Partita's own: what looks for the key in DeepSpeed's configuration.
NOTICE = "partita.adapters.notice:install"


@dataclass(frozen=True)
class Plugged:
    """An entry point: where it stands, which ``package`` brings it, the hooks it implements, why it can't be loaded.

    ``on`` is whether it takes part: all of Partita's own do, those of torch unless its loading is turned off, and the
    notice unless it is turned off itself.
    """

    group: str
    name: str
    value: str
    package: str
    on: bool
    hooks: tuple[str, ...]
    error: str | None


def plugged(environment: Mapping[str, str]) -> list[Plugged]:
    """All entry points for Partita; loading one that is broken is reported, not raised."""
    torch_loads = environment.get(AUTOLOAD, "1") == "1"
    notices = noticing(environment) is not False
    found = [_loaded(entry) for entry in entry_points(group=NAME)]
    for entry in entry_points(group=TORCH):
        if entry.value.split(".")[0].split(":")[0] == NAME:
            # Not loaded here: it may change what an import of a framework does in this process.
            on = torch_loads and (notices or entry.value != NOTICE)
            found.append(Plugged(TORCH, entry.name, entry.value, _package(entry), on, (), None))
    return sorted(found, key=lambda one: (one.group, one.package, one.name))


def _loaded(entry: EntryPoint) -> Plugged:
    error, names = None, ()
    try:
        names = tuple(sorted(_hooks(entry.load())))
    # A plugin is anybody's code: leaving the process is one of the things that it may do.
    except (Exception, SystemExit) as problem:
        error = f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"
    return Plugged(NAME, entry.name, entry.value, _package(entry), True, names, error)


def _hooks(plugin: object) -> Iterator[str]:
    """Names of the hooks that it implements, by the mark that ``hookimpl`` leaves."""
    for name in dir(plugin):
        if hasattr(getattr(plugin, name, None), f"{NAME}_impl"):
            yield name


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "unknown"


def script() -> tuple[str | None, bool]:
    """The ``partita`` on the PATH, and whether it is the one of this interpreter."""
    path = shutil.which(NAME)
    return path, path is not None and Path(path).resolve().parent == Path(sys.executable).parent.resolve()
