"""Layouts as JAX writes them: ``P('x', None, ('y', 'z'))``, one entry a tensor dim, sums as ``unreduced={'w'}``."""

from __future__ import annotations

import re

from partita.errors import InputError
from partita.redistribution.layout import Layout


def read_partition_spec(text: str, dims: int) -> Layout:
    """The layout that a PartitionSpec spells; dims left out at the end aren't sharded. InputError quotes an entry."""
    inside = re.sub(r"\s", "", text).partition("(")[2].removesuffix(")")
    entries = re.split(r",(?![^({]*[)}])", inside.removesuffix(",")) if inside else []
    cuts = [_axes(text, entry) for entry in entries if not entry.startswith("unreduced=")]
    sums = [_axes(text, entry.partition("=")[2]) for entry in entries if entry.startswith("unreduced=")]
    left_out = [()] * (dims - len(cuts))
    return Layout((*cuts, *left_out), tuple(axis for axes in sums for axis in axes))


def as_partition_spec(layout: Layout) -> str:
    """The layout as a PartitionSpec, every dim with an entry."""
    entries = ["None" if not axes else repr(axes[0]) if len(axes) == 1 else repr(axes) for axes in layout.dims]
    if layout.partial:
        entries.append(f"unreduced={{{', '.join(map(repr, layout.partial))}}}")
    return f"P({', '.join(entries)})"


def _axes(text: str, entry: str) -> tuple[str, ...]:
    if entry in ("None", "()", "{}"):
        return ()
    names = entry[1:-1].removesuffix(",").split(",") if entry.startswith(("(", "{")) else [entry]
    found = []
    for name in names:
        quoted = re.fullmatch(r"(['\"])([A-Za-z_]\w*)\1", name)
        if quoted is None:
            raise InputError(f'layout "{text}": "{name}" is neither None nor a mesh axis in quotes, such as \'x\'')
        found.append(quoted[2])
    return tuple(found)
