"""DTensor's planners: their known answers, and DTensor itself beside the steps that we take them for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from math import factorial, prod

import numpy as np
import pytest

from partita.hooks import plugins
from partita.plugins.peers.dtensor import MOST_LAYOUTS, layouts, planned, specified
from partita.redistribution import ArrayType, Layout, Mesh, Step
from partita.redistribution.exchange import Exchange
from partita.redistribution.virtual import collect, distribute, run

# Arrays so large that bytes decide, not latency; and what is small enough to be carried out, even and uneven.
LARGE = {1: (2**28,), 2: (2**14, 2**14), 3: (2**10, 2**9, 2**9)}
SMALL = {1: [(64,), (11,)], 2: [(16, 16), (11, 5)], 3: [(16, 16, 16), (9, 2, 5)]}
GREEDY, SEARCH = "DTensor greedy", "DTensor graph search"

# Mesh, source, target, the steps and the part of the array that each device receives in them: greedy, graph search.
KNOWN = [
    ("x=8", "x", "-", "all-gather x 0", 7 / 8, "all-gather x 0", 7 / 8),
    ("x=8", "x,-", "-,x", "all-to-all x 0 1", 7 / 64, "all-to-all x 0 1", 7 / 64),
    ("x=4,y=2", "x,-", "-,x", "all-to-all x 0 1", 3 / 16, "all-to-all x 0 1", 3 / 16),
    ("x=2,y=4", "-,x", "x,y", "all-to-all x 1 0; slice y 1", 1 / 4, "all-to-all x 1 0; slice y 1", 1 / 4),
    # The case with the known bound of 448 of 16³ elements; collectives alone have 640.
    ("x=4,y=2", "y,-,x", "-,x.y,-",
     "all-gather y 0; all-to-all x 2 1; slice y 1", 1280 / 16**3, "all-to-all x 2 1; all-to-all y 0 1", 640 / 16**3),
    # The one with 512 of 64²; collectives have 768, these planners 2,560 and 1,280.
    ("x=2,y=4", "x,y", "y,x",
     "all-gather y 1; all-to-all x 0 1; slice y 0", 2560 / 64**2,
     "all-gather x 0; all-to-all y 1 0; slice x 1", 1280 / 64**2),
    ("x=2,y=4", "x.y,-", "-,x.y",
     "all-gather y 0; all-to-all x 0 1; slice y 1", 5 / 8,
     "all-to-all y 0 1; all-gather x 0; all-to-all y 1 0; slice x 1; all-to-all y 0 1", 1 / 2),
    ("x=2,y=4", "x.y,-", "y,-",
     "all-gather y 0; all-gather x 0; slice y 0", 7 / 8,
     "all-to-all y 0 1; all-gather x 0; all-to-all y 1 0", 13 / 32),
    ("x=2,y=2,z=2", "-,y.z", "x.y.z,-",
     "all-gather z 1; all-gather y 1; slice x 0; slice y 0; slice z 0", 3 / 4,
     "slice x 0; all-gather z 1; all-to-all y 1 0; slice z 0", 1 / 4),
    # An order that isn't the mesh's: only the graph search knows it.
    ("x=2,y=4", "x.y", "y.x", None, None, "all-gather y 0; all-gather x 0; slice y 0; slice x 0", 7 / 8),
    # Sums.
    ("x=2,y=4", "-,-+x", "x,-", "reduce-scatter x 0", 1 / 2, "reduce-scatter x 0", 1 / 2),
    ("x=2,y=4", "-,-+x.y", "y.x,-", None, None, "reduce-scatter y 0; reduce-scatter x 0", 7 / 8),
    ("x=2,y=4", "-,-+x", "-,-+y", "all-reduce x; mask y", 1, "mask y; all-reduce x", 1),
    # DTensor has no operation from a shard to a sum, and its greedy planner no way around that.
    ("x=2,y=4", "x,-", "-,y+x", None, None, "slice y 1; all-gather x 0; mask x", 1 / 8),
    # Along an axis of size 1 nothing has to happen, but the greedy planner clears away what stands inside of it.
    ("x=1,y=4", "y,-", "x.y,-", "all-gather y 0; slice y 0", 3 / 4, "all-to-all y 0 1; all-to-all y 1 0", 3 / 8),
    ("x=2,y=1,z=4", "x.y,-", "-,z", "slice z 1; all-gather x 0", 1 / 8, "slice z 1; all-gather x 0", 1 / 8),
]  # fmt: skip


def types(mesh: str, shape: tuple[int, ...], *layouts: str) -> list[ArrayType]:
    return [ArrayType(shape, Layout.parse(layout), Mesh.parse(mesh)) for layout in layouts]


def rank(layout: str) -> int:
    return len(Layout.parse(layout).dims)


def spelled(steps: tuple[Step, ...]) -> str:
    words = [(step.op, *step.axes, *(dim for dim in (step.dim, step.to_dim) if dim is not None)) for step in steps]
    return "; ".join(" ".join(map(str, entry)) for entry in words)


def received(step: Step) -> int:
    """Elements that come in at the first device; of an all-reduce in a ring, not in the literal exchange."""
    if step.op == "all-reduce":
        return 2 * step.before.largest * (step.group_size - 1) // step.group_size
    device = step.after.mesh.devices[0]
    return sum(copy.elements for copy in Exchange(step).takes(device) if copy.source != device)


@pytest.mark.parametrize(("mesh", "before", "after", "greedy", "greedily", "search", "searched"), KNOWN)
def test_known_answers(
    mesh: str, before: str, after: str, greedy: str | None, greedily: float, search: str, searched: float
) -> None:
    source, target = types(mesh, LARGE[rank(before)], before, after)
    found = dict(planned(source, target, 4))
    parts = {name: sum(map(received, steps)) / 2**28 for name, steps in found.items()}
    wanted = {SEARCH: search} if greedy is None else {GREEDY: greedy, SEARCH: search}
    assert {name: spelled(steps) for name, steps in found.items()} == wanted
    assert parts == ({SEARCH: searched} if greedy is None else {GREEDY: greedily, SEARCH: searched})


@pytest.fixture(scope="module")
def eight_ranks() -> Iterator[None]:
    """Eight ranks of torch in this process: every collective is carried out on what each of them holds."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("eight_ranks")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "before", "after", "shape", "name"),
    [(mesh, before, after, shape, name) for mesh, before, after, greedy, *_ in KNOWN if "=1" not in mesh
     for shape in SMALL[rank(before)] for name in (GREEDY, SEARCH) if greedy or name == SEARCH],
)  # fmt: skip
def test_dtensor_does_what_we_take_it_for(
    mesh: str, before: str, after: str, shape: tuple[int, ...], name: str
) -> None:
    """Its own redistribution, run: as many collectives of each kind as steps, and on each rank the same values."""
    import torch
    from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor._redistribute import redistribute_local_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    source, target = types(mesh, shape, before, after)
    plans = dict(planned(source, target, 8))
    array = np.random.default_rng(0).integers(-99, 99, shape).astype(np.float64)
    here = distribute(array, source)
    with LocalTensorMode(8), CommDebugMode() as counted:
        on = init_device_mesh("cpu", list(source.mesh.sizes.values()), mesh_dim_names=tuple(source.mesh.sizes))
        locals_ = LocalTensor({device: torch.from_numpy(part.copy()) for device, part in here.items()})
        specs = [specified(kind, on, 8) for kind in (source, target)]
        made = redistribute_local_tensor(locals_, *specs, use_graph_based_transform=name == SEARCH)
        theirs = {device: part.numpy() for device, part in made._local_tensors.items()}
    ours = run(plans[name], here)
    np.testing.assert_array_equal(collect(ours, target), array)
    np.testing.assert_array_equal(collect(theirs, target), array)
    assert {device: part.shape for device, part in ours.items()} == {
        device: part.shape for device, part in theirs.items()
    }
    kinds = {
        "all_gather_into_tensor": "all-gather", "shard_dim_alltoall": "all-to-all", "all_reduce": "all-reduce",
        "reduce_scatter_tensor": "reduce-scatter",
    }  # fmt: skip
    ran = Counter({kinds[op._qualified_op_name.split("::")[-1].split(".")[-1]]: count
                   for op, count in counted.get_comm_counts().items() if count})  # fmt: skip
    assert ran == Counter(step.op for step in plans[name] if step.op not in ("slice", "mask"))


def test_what_dtensor_cannot_state() -> None:
    (source,) = types("x=2", (4,), "x")
    (elsewhere,) = types("y=2", (4,), "y")
    assert planned(source, elsewhere, 4) == []
    assert planned(source, source, 3) == []


def test_the_graph_search_is_not_asked_for_what_takes_it_minutes() -> None:
    """A count of all layouts beside the formula, and a tensor on either side of the limit."""
    for axes, dims in ((1, 1), (2, 3), (3, 3), (4, 2), (4, 0)):
        # Each axis cuts a dim or none; those of one dim stand in any order.
        ways = product(range(dims + 1), repeat=axes)
        assert layouts(axes, dims) == sum(prod(factorial(homes.count(dim)) for dim in range(dims)) for homes in ways)
    assert layouts(5, 3) <= MOST_LAYOUTS < layouts(5, 4)
    source, target = types("a=2,b=2,c=2,d=2,e=2", (64, 64, 64, 64), "a,b,-,-", "b,a,-,-")
    assert [name for name, _ in planned(source, target, 4)] == [GREEDY]


def test_nothing_to_do() -> None:
    (source,) = types("x=2,y=4", (16, 16), "x,y")
    assert planned(source, source, 4) == [(GREEDY, ()), (SEARCH, ())]


def test_the_hook_answers() -> None:
    source, target = types("x=2", (4,), "x", "-")
    answers = dict(entry for found in plugins().hook.partita_peer_redistribution(
        source=source, target=target, item_bytes=4) for entry in found)  # fmt: skip
    assert {name: spelled(steps) for name, steps in answers.items()} == {
        GREEDY: "all-gather x 0", SEARCH: "all-gather x 0",
    }  # fmt: skip
