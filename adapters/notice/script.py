"""``python -P -m partita.adapters.notice.script train.py …``: runs a script as python would, with the key noticed.

What ``partita run`` starts. The key is noticed here even where ``PARTITA_NOTICE`` or torch's loading of extensions is
off: whoever starts a script by Partita wants it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import open_code
from types import ModuleType

from partita.adapters import notice


def run(script: str, arguments: Sequence[str]) -> None:
    """Run the script in this process as ``__main__``; what it raises is raised, its exit is this process's."""
    notice.watch()
    # As python writes it, which leaves . and .. in it.
    path = os.path.join(os.getcwd(), script)
    sys.argv = [script, *arguments]
    # -P keeps the current folder out of the path, where python puts the script's own folder, links resolved.
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    with open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    # Put in the other's place for good: threads and functions called at exit look for their names in it too.
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = path
    exec(code, module.__dict__)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
