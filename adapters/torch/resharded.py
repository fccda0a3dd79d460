"""What ``partita reshard`` and DeepSpeed's engine agree on: the names of files, and of a key in DeepSpeed's own.

``reshard`` writes a folder with three kinds of files: the layout, which says of every tensor of every rank which part
of the model it is; the rest, which is steps, groups of the optimizer with their options, the schedule and the client's
own state; and each rank's tensors. In a checkpoint that DeepSpeed saves, a rank's file says the same of its tensors
under a key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from partita.errors import InputError
from partita.files import read_json

LAYOUT = "partita"
LAYOUT_FILE, REST_FILE = "partita_layout.json", "partita_rest.pt"
VERSION = 1


def tensors_file(rank: int) -> str:
    """The name of a rank's tensors, as DeepSpeed numbers the devices of a copy."""
    return f"mp_rank_{rank:02d}.safetensors"


# A pattern for all of these.
TENSORS_FILES = "mp_rank_*.safetensors"


def read_layout(folder: Path) -> dict[str, Any]:
    """The layout of a folder. InputError where it can't be read or is of another version."""
    path = folder / LAYOUT_FILE
    layout: Any = read_json(path)
    if not isinstance(layout, dict) or layout.get("version") != VERSION:
        raise InputError(f"{path}: isn't of version {VERSION}, which is the one known here")
    return layout
