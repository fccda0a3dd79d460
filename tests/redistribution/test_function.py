"""``partita.redistribute`` as a user calls it: spellings, shapes, meshes, gradients, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ranks.pool import Pool
from tests.ranks.script import script

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "redistribute_tensors.py"


@pytest.mark.slow
def test_the_package_loads_torch_only_for_a_function() -> None:
    code = (
        "import partita, sys; assert 'torch' not in sys.modules; assert not hasattr(partita, 'distribute'); "
        "partita.redistribute; print('torch' in sys.modules, partita.redistribute is partita.redistribute)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "True True\n", ran.stderr


@pytest.mark.slow
def test_spellings_of_one_redistribution(pool: Pool) -> None:
    assert pool.run(spellings, 4) == [7] * 4


def spellings() -> int:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    import partita
    from partita.redistribution import Layout, Mesh

    rank = dist.get_rank()
    whole = torch.arange(48).reshape(8, 6)
    x, y = divmod(rank, 2)
    mine, wanted = whole[4 * x : 4 * x + 4, 3 * y : 3 * y + 3], whole[4 * y + 2 * x : 4 * y + 2 * x + 2]
    named = init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "y"))
    cases = [
        ("x,y", "y.x,-", "x=2,y=2"),
        ("S(0),S(1)", "_S(0, 2),S(0)", "x=2,y=2"),
        ("P('x','y')", "P(('y','x'))", "x=2,y=2"),
        ("x,y", "y.x,-", Mesh.of(x=2, y=2)),
        ("x,y", "y.x,-", named),
        ("axis0,axis1", "axis1.axis0,-", init_device_mesh("cpu", (2, 2))),
        (Layout.parse("x,y"), Layout.parse("y.x,-"), "x=2,y=2"),
    ]
    for before, after, mesh in cases:
        assert torch.equal(partita.redistribute(mine, before, after, mesh), wanted), (before, after)
        assert torch.equal(partita.redistribute(mine, before, after, mesh, shape=(8, 6)), wanted), (before, after)
    return len(cases)


@pytest.mark.slow
def test_the_example_runs(pool: Pool, tmp_path: Path) -> None:
    shapes = ["(2, 8) -> (5, 2)", "(2, 8) -> (5, 2)", "(1, 8) -> (5, 2)", "(0, 8) -> (5, 2)"]
    for rank, ended in enumerate(pool.run(script, 4, str(EXAMPLE), [], str(tmp_path))):
        assert (ended.status, ended.out) == (0, f"rank {rank}: {shapes[rank]}\n"), ended.err


@pytest.mark.slow
def test_uneven_pieces_are_not_padded(pool: Pool) -> None:
    for rank, (rows, gathered, columns) in enumerate(pool.run(five_rows, 4)):
        assert rows == [2, 2, 1, 0][rank]
        assert gathered == [float(number) for number in range(50)]
        width = [3, 3, 3, 1][rank]
        assert columns == [[float(10 * row + 3 * rank + at) for at in range(width)] for row in range(5)]


def five_rows() -> tuple[int, list[float], list[list[float]]]:
    import torch
    import torch.distributed as dist

    import partita

    whole = torch.arange(50.0).reshape(5, 10)
    mine = whole[2 * dist.get_rank() : 2 * dist.get_rank() + 2]
    gathered = partita.redistribute(mine, "a,-", "-,-", "a=4")
    return len(mine), gathered.flatten().tolist(), partita.redistribute(mine, "a,-", "-,a", "a=4").tolist()


@pytest.mark.slow
def test_gradients_of_copies_are_parts_of_a_sum(pool: Pool) -> None:
    """A tower cut by images gives to a model that wants all images everywhere: backward, a reduce-scatter."""
    for rank, (whole, again) in enumerate(pool.run(tower, 4)):
        assert whole == [10.0 * (rank + 1)] * 3
        assert again == [6.0 * 10.0 * (rank + 1)] * 3


def tower() -> tuple[list[float], list[float]]:
    import torch
    import torch.distributed as dist

    import partita

    rank = dist.get_rank()
    images = torch.full((1, 3), 1.0 + rank, requires_grad=True)
    given = partita.redistribute(images, "d,-", "-,-", "d=4")
    # Each rank's own weight, 1 … 4, whose sum is 10; and the image's number.
    weight = (1.0 + rank) * torch.arange(1.0, 5.0).unsqueeze(1)
    (first,) = torch.autograd.grad((given * weight).sum(), images, create_graph=True)
    (third,) = torch.autograd.grad((given**3 * weight).sum(), images, create_graph=True)
    # The derivative of 3 x² w is 6 x w.
    (second,) = torch.autograd.grad(third.sum(), images)
    return first.flatten().tolist(), (second / images.detach()).flatten().tolist()


@pytest.mark.slow
def test_between_meshes_and_ranks_outside(pool: Pool) -> None:
    first, second, third, fourth = pool.run(to_another_mesh, 4)
    assert first == ([], [0.0, 10.0])
    assert second == ([0.0, 2.0], [1.0, 11.0])
    assert third == ([1.0, 3.0], [])
    # Nobody waits for the rank that is on neither mesh.
    assert fourth == ([], None)


def to_another_mesh() -> tuple[list[float], list[float] | None]:
    import torch
    import torch.distributed as dist

    import partita
    from partita.redistribution import Mesh

    rank = dist.get_rank()
    meshes = Mesh.of([0, 1], a=2), Mesh.of([1, 2], b=2)
    mine = torch.arange(2.0 * rank, 2.0 * rank + 2).reshape(1, 2) if rank < 2 else torch.empty(0)
    mine.requires_grad_()
    if rank == 3:
        return partita.redistribute(mine, "a,-", "-,b", meshes[0], to_mesh=meshes[1]).tolist(), None
    found = partita.redistribute(mine, "a,-", "-,b", meshes[0], to_mesh=meshes[1])
    column = rank - 1
    found.backward(torch.tensor([[10.0 * column], [10.0 * column + 1]]) if rank else torch.empty(0))
    return found.flatten().tolist(), None if mine.grad is None else mine.grad.flatten().tolist()


REFUSED = {
    "shapes": "no array has these in the layout",
    "given shape": 'shape [2, 2]; of [6, 2] in the layout "a,-" on the mesh "a=2" it holds [3, 2]',
    "mesh": 'the mesh "a=4" has device 3, but this job has 2 ranks, numbered from 0',
    "axis": 'has no axis "b"',
}


@pytest.mark.slow
@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(pool: Pool, what: str) -> None:
    assert REFUSED[what] in pool.run(refused, 2, what)[0]


def refused(what: str) -> str:
    import torch
    import torch.distributed as dist

    import partita
    from partita.errors import InputError

    mine = torch.zeros(2 + dist.get_rank(), 2) if what == "shapes" else torch.zeros(2, 2)
    mesh = "a=4" if what == "mesh" else "a=2"
    with pytest.raises(InputError) as caught:
        partita.redistribute(
            mine, "b,-" if what == "axis" else "a,-", "-,a", mesh, shape=(6, 2) if what == "given shape" else None
        )
    return str(caught.value)
