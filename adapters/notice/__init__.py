"""How the key ``"partita"`` in a DeepSpeed configuration is noticed in a script that doesn't know of Partita.

torch calls ``install`` whenever it is imported (the entry point ``partita`` of the group ``torch.backends``). All that
happens then is that the import of DeepSpeed is watched; when it has ended, ``deepspeed.initialize`` is wrapped
(``partita.adapters.deepspeed.wrap``), which changes nothing where the key is absent. Nothing else is imported here:
every process that uses torch pays for it. And nothing is raised here: torch's or DeepSpeed's import would fail by it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from partita.noticing import KEY, VARIABLE, noticing

FRAMEWORK = "deepspeed"
# By name: what knows DeepSpeed is imported after DeepSpeed and not before, nor where there is none.
WRAP = "partita.adapters.deepspeed.wrap"


def install() -> None:
    """Watch for DeepSpeed, unless ``PARTITA_NOTICE`` is off. A word that is neither on nor off is said and means on."""
    on = noticing(os.environ)
    if on is None:
        _say(f'{VARIABLE} is "{os.environ[VARIABLE]}", which is neither off (or 0) nor on (or 1); it is taken for on')
    if on is not False:
        watch()


def watch() -> None:
    """See to it that ``deepspeed.initialize`` is wrapped as soon as DeepSpeed is imported, whatever the variable says.

    Also where it was imported before, and where its import is under way: DeepSpeed itself imports torch.
    """
    if not any(isinstance(finder, Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, Watch())
    module = sys.modules.get(FRAMEWORK)
    spec = getattr(module, "__spec__", None)
    if spec is not None and getattr(spec, "_initializing", False):
        _watched(spec)
    elif module is not None:
        _wrap()


class Watch:
    """Stands first among the finders of modules, and passes every name on to those behind it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != FRAMEWORK:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                return _watched(spec)
        return None


def _watched(spec: ModuleSpec) -> ModuleSpec:
    """The same object, which wraps when the import that it describes has ended.

    The interpreter marks a spec for as long as its module is being imported. Wrapping the loader would not do: in an
    import that is under way it has been called already.
    """
    kind = type(spec)

    class Watched(kind):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "_initializing" and not value:
                self.__class__ = kind
                # An import that failed has left no module, and may be tried again. While the mark is there, other
                # threads wait for the module.
                if FRAMEWORK in sys.modules:
                    _wrap()
            kind.__setattr__(self, name, value)

    try:
        spec.__class__ = Watched
    except TypeError as error:
        _failed(error)
    return spec


def _wrap() -> None:
    try:
        importlib.import_module(WRAP).install()
    except Exception as error:
        _failed(error)


def _failed(error: Exception) -> None:
    words = " ".join(str(error).split())
    _say(
        f'the key "{KEY}" is not noticed in DeepSpeed\'s configuration: {type(error).__name__}: {words}. '
        f"Look at: partita doctor. {VARIABLE}=off turns the notice off"
    )


def _say(message: str) -> None:
    """On stderr and not as a Python warning, which may be turned into an error or off."""
    try:
        sys.stderr.write(f"partita: {message}\n")
    except Exception:
        # It is closed, so there is nobody to tell; and what is being imported is not ours.
        pass
