"""How people spell a layout: our own notation, DTensor's placements, JAX's PartitionSpec. Which of them a text is.

==============  =========================================  ====================================================
notation        ``x.y,-+z`` on the mesh ``x,y,z``          one entry
==============  =========================================  ====================================================
ours            ``x.y,-+z``                                a tensor dim; sums after ``+``
placements      ``S(0),S(0),P(sum)``                       a mesh axis
partition spec  ``P(('x', 'y'), None, unreduced={'z'})``   a tensor dim; those left out at the end aren't sharded
==============  =========================================  ====================================================
"""

from __future__ import annotations

import re

from partita.errors import InputError, nearest
from partita.redistribution.layout import Layout
from partita.redistribution.mesh import Mesh
from partita.redistribution.partition_spec import read_partition_spec
from partita.redistribution.placements import read_placements


def read_layout(text: str, mesh: Mesh, dims: int) -> Layout:
    """The layout of a tensor of that many dims on a mesh, in any of the notations; its sums in the order of the mesh.

    InputError quotes the entry that can't be read, names an axis that isn't one of the mesh, or says that there are
    too many entries or too few. Where axes of the mesh are named like placements (``R``), they are meant.
    """
    plain = re.sub(r"\s", "", text)
    if _is_partition_spec(plain):
        layout = read_partition_spec(text, dims)
    elif _is_placements(plain, mesh):
        layout = read_placements(text, mesh, dims)
    else:
        layout = Layout.parse(text)
    for axis in (*layout.cutting, *layout.partial):
        if axis not in mesh.sizes:
            raise InputError(f'layout "{text}": the mesh "{mesh}" has no axis "{axis}".{nearest(axis, mesh.sizes)}')
    if len(layout.dims) != dims:
        raise InputError(f'layout "{text}" has {len(layout.dims)} entries, the tensor {dims} dims; each dim needs one')
    return Layout(layout.dims, tuple(axis for axis in mesh.sizes if axis in layout.partial))


def _is_partition_spec(plain: str) -> bool:
    """``P(…)`` around all of it, with names in quotes, None or nothing; ``P(sum)`` is a placement."""
    found = re.fullmatch(r"(?:P|PartitionSpec)\((.*)\)", plain)
    if found is None or (re.fullmatch(r"\w+", found[1]) and found[1] != "None"):
        return False
    depths = [0]
    for letter in found[1]:
        depths.append(depths[-1] + (letter == "(") - (letter == ")"))
    return min(depths) == 0


def _is_placements(plain: str, mesh: Mesh) -> bool:
    """Brackets, or words that stand for a placement and not for an axis."""
    words = set(re.findall(r"\w+", plain))
    return bool(set("([") & set(plain)) or bool({"R", "P", "Replicate", "Partial"} & words - set(mesh.sizes))
