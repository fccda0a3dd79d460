"""No process needs more than what it has, what it wants and 64 MiB."""

from __future__ import annotations

import pytest

from partita.redistribution import ArrayType, Layout, Mesh
from tests.ranks.pool import Pool
from tests.redistribution.memory_on_ranks import MIB, beyond_source, several_steps

pytestmark = pytest.mark.slow

MESH = Mesh.of(x=2, y=2)
# 512 MiB of float32.
SHAPE = (8192, 16384)
CASES = {
    "cut elsewhere": ("x.y,-", "-,x.y", MESH, SHAPE),
    "gathered": ("x.y,-", "x,-", MESH, SHAPE),
    "uneven": ("x.y,-", "-,y.x", MESH, (8191, 16383)),
    "one dim, uneven": ("x.y", "y.x", MESH, (2**27 - 1,)),
    "a sum": ("-,y+x", "-,y", MESH, (8192, 8192)),
    "a sum, cut": ("-,-+x.y", "x,y", MESH, (4096, 8192)),
    "to other ranks": ("a,-", "-,-", Mesh.of(a=2), (4096, 16384)),
}


@pytest.mark.parametrize("name", CASES)
def test_memory_is_source_and_target_and_little_more(pool: Pool, name: str) -> None:
    source, target, mesh, shape = CASES[name]
    there = Mesh.of([2, 3], b=2) if name == "to other ranks" else mesh
    types = ArrayType(shape, Layout.parse(source), mesh), ArrayType(shape, Layout.parse(target), there)
    for _, wanted, peak in pool.run(beyond_source, 4, *types, None, timeout=200):
        assert peak <= wanted + 64 * MIB, name


def test_arrays_between_do_not_add_up(pool: Pool) -> None:
    source, target = (ArrayType(SHAPE, Layout.parse(layout), MESH) for layout in ("x.y,-", "-,x.y"))
    for held, wanted, peak in pool.run(several_steps, 4, source, target, timeout=200):
        assert (held, wanted) == (128 * MIB, 128 * MIB)
        assert peak <= wanted + 64 * MIB
