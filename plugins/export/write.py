"""Where exported files go: one file as it is named, several into a folder. All are written or none."""

from __future__ import annotations

from pathlib import Path

from partita.errors import InputError
from partita.files import write_text
from partita.plugins.export.exported import Exported


def write(exported: Exported, output: Path, folder: bool) -> list[Path]:
    """The paths written. ``folder``: the user wrote the path as a folder's, with a slash at the end.

    InputError where the path can't hold the files: a file where several must go, a parent that doesn't exist.
    """
    names = list(exported.files)
    if len(names) == 1 and not folder and not output.is_dir():
        write_text(output, exported.text(names[0]))
        return [output]
    if output.exists() and not output.is_dir():
        raise InputError(f"{output}: is a file; {' and '.join(names)} need a folder")
    try:
        output.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"{output}: can't be made: {error.strerror}") from None
    paths = [output / name for name in names]
    taken = [path for path in paths if path.is_dir()]
    if taken:
        raise InputError(f"{taken[0]}: is a folder, and a file of that name must be written")
    for path, name in zip(paths, names, strict=True):
        write_text(path, exported.text(name))
    return paths
