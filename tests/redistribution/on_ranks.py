"""What ranks do in the tests of redistributions on processes; each function is called on all of them alike."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
import torch
import torch.distributed as dist

from partita.adapters.torch.redistribute import carry, parts
from partita.adapters.torch.redistribute.execute import execute
from partita.adapters.torch.redistribute.function import Redistribute, adjoint
from partita.redistribution import ArrayType
from partita.redistribution.search import redistribution
from partita.redistribution.steps import (
    Step,
    all_gather,
    all_reduce,
    all_to_all,
    direct,
    mask,
    pad,
    reduce_scatter,
    slice_,
)
from partita.redistribution.virtual import run
from tests.redistribution.problems import Problem, any_problem, spread, whole

# Of those that process groups add up and those that they don't; whole numbers are exact in all of them.
MOVED = [
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int16, torch.uint8, torch.bool,
    torch.complex64, torch.complex128, torch.float8_e5m2, torch.uint32,
]  # fmt: skip
ADDED = [torch.float64, torch.float32, torch.int64, torch.int32, torch.int16, torch.complex64]


def problems(seed: int, count: int, ranks: int) -> Iterator[tuple[Problem, Random]]:
    """Of random problems, those on so many ranks, with more that is random for each."""
    random = Random(seed)
    while count:
        problem = any_problem(random, devices=random.choice([4, 8]))
        if max(*problem.source.mesh.devices, *problem.target.mesh.devices) < ranks:
            yield problem, Random(random.random())
            count -= 1


def one_after_another(seed: int, count: int) -> list[tuple[int, np.ndarray]]:
    """Every problem; AssertionError where this rank's array isn't NumPy's. What it has of sums is returned."""
    rank = dist.get_rank()
    found = []
    for number, (problem, random) in enumerate(problems(seed, count, dist.get_world_size())):
        source, target = problem.source, problem.target
        sums = bool(source.layout.partial or target.layout.partial)
        dtype, objective = random.choice(ADDED if sums else MOVED), random.choice(["bytes", "time"])
        array = whole(problem) if sums else whole(problem) % 16
        mine = spread(random, array, source).get(rank)
        tensor = (
            torch.empty(0, dtype=dtype)
            if mine is None
            else strided(torch.from_numpy(np.asarray(mine)).to(dtype), random)
        )
        before = tensor.clone()
        answer = redistribution(source, target, dtype.itemsize, objective=objective)
        result = execute([priced.step for priced in answer.steps], source, target, tensor)
        np.testing.assert_array_equal(plain(tensor), plain(before))
        if rank not in target.mesh.place:
            assert result is None
        elif target.layout.partial:
            assert result is not None
            found.append((number, result.contiguous().numpy()))
        else:
            assert result is not None
            assert result.dtype == dtype, problem
            wanted = torch.from_numpy(np.asarray(array[index(target, rank)])).to(dtype)
            np.testing.assert_array_equal(plain(result), plain(wanted), err_msg=f"{number}: {problem}")
    return found


def strided(tensor: torch.Tensor, random: Random) -> torch.Tensor:
    """The same elements, half of the time with other strides."""
    if random.random() < 0.5 or not tensor.dim():
        return tensor
    order = random.sample(range(tensor.dim()), tensor.dim())
    back = [order.index(dim) for dim in range(tensor.dim())]
    return tensor.permute(order).contiguous().permute(back)


def plain(tensor: torch.Tensor) -> np.ndarray:
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.to(dtype).numpy()


def index(kind: ArrayType, rank: int) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in kind.boxes[kind.mesh.place[rank]])


def adjoints(seed: int, count: int) -> int:
    """⟨Rx, y⟩ = ⟨x, Rᵀy⟩, and that the second derivative is R itself: exact, in whole numbers."""
    rank = dist.get_rank()
    for number, (problem, random) in enumerate(problems(seed, count, dist.get_world_size())):
        source, target = problem.source, problem.target
        values = np.random.default_rng(number).integers(-9, 9, (2, *source.shape)).astype(np.float64)
        x, y = (
            torch.from_numpy(np.asarray(spread(random, array, kind).get(rank, np.empty(0))))
            for array, kind in zip(values, (source, adjoint(target)), strict=True)
        )
        inner = torch.zeros(2, dtype=torch.float64)
        if rank in source.mesh.place or rank in target.mesh.place:
            x.requires_grad_()
            y.requires_grad_()
            moved = Redistribute.apply(x, source, target, None)
            (back,) = torch.autograd.grad(moved, x, y, create_graph=True)
            inner = torch.stack([(moved * y).sum(), (x * back).sum()]).detach()
            (again,) = torch.autograd.grad(back, y, x.detach())
            assert again.shape == y.shape
        dist.all_reduce(inner)
        assert inner[0] == inner[1], f"{number}: {problem}"
    return count


def walks(seed: int, count: int, part_bytes: int, collectives: bool) -> list[str]:
    """Any steps one after another, whether they make sense or not, against the same on NumPy's virtual devices.

    In parts of so many bytes; with the collectives that GPUs use, or by messages as CPUs do.
    """
    rank = dist.get_rank()
    parts.PART_BYTES, carry.BY_MESSAGES = part_bytes, set() if collectives else {"cpu"}
    ops: list[str] = []
    for number, (problem, random) in enumerate(problems(seed, count, dist.get_world_size())):
        steps = walk(problem, random)
        source, target = problem.source, steps[-1].after if steps else problem.source
        arrays = spread(random, whole(problem), source)
        mine = torch.from_numpy(np.asarray(arrays[rank])) if rank in arrays else torch.empty(0, dtype=torch.float64)
        result = execute(steps, source, target, mine)
        wanted = run(steps, arrays).get(rank)
        assert (result is None) == (wanted is None)
        if wanted is not None:
            assert result is not None
            np.testing.assert_array_equal(result.numpy(), wanted, err_msg=f"{number}: {steps}")
        ops += [step.op for step in steps]
    return ops


def walk(problem: Problem, random: Random) -> list[Step]:
    """Up to five steps from a problem's source, on its mesh and then perhaps on the target's."""
    here, steps = problem.source, []
    for _ in range(random.randint(1, 5)):
        choices = [
            *(slice_(here, axis, dim) for axis in here.replicated for dim in range(len(here.shape))),
            *(mask(here, axis) for axis in here.replicated),
            *(all_reduce(here, [axis]) for axis in here.layout.partial),
            *(reduce_scatter(here, [axis], dim) for axis in here.layout.partial for dim in range(len(here.shape))),
        ]
        for dim, axes in enumerate(here.layout.dims):
            choices += [pad(here, dim)] if axes else []
            for taken in range(1, len(axes) + 1):
                choices.append(all_gather(here, dim, taken))
                choices += [all_to_all(here, dim, other, taken) for other in range(len(here.shape)) if other != dim]
        sums = set(here.layout.partial)
        for other in (problem.source, problem.target):
            if set(other.layout.partial) == sums and not (sums and other.mesh != here.mesh):
                nodes = random.choice([None, tuple(index // 3 for index in range(8))])
                choices.append(direct(here, other, nodes))
        if choices:
            steps.append(random.choice(choices))
            here = steps[-1].after
    return steps
