"""What the search finds: known cases, limits that it keeps, ways that beat simpler ones, the same answer each time."""

from __future__ import annotations

import time
from random import Random
from statistics import geometric_mean

import pytest

from partita.cluster import Cluster, Link, load_preset, parse_cluster
from partita.errors import Infeasible, InputError
from partita.redistribution import ArrayType, Layout, Mesh
from partita.redistribution.answer import Redistribution
from partita.redistribution.price import Network, load
from partita.redistribution.search import ALL, redistribution
from partita.redistribution.steps import Op, direct
from tests.redistribution.problems import any_layout, pair

COLLECTIVES: frozenset[Op] = frozenset(("slice", "all-gather", "all-to-all", "reduce-scatter", "all-reduce"))
LINKS = Link(250e9, 5e-6), Link(25e9, 10e-6)


def nodes(count: int, devices: int = 8) -> Cluster:
    return Cluster.of("two tiers", (devices,) * count, load_preset("h100-80gb").device(), *LINKS)


def ops(answer: Redistribution) -> list[str]:
    return [priced.step.op for priced in answer.steps]


@pytest.mark.parametrize(
    ("mesh", "shape", "source", "target", "expected", "elements"),
    [
        # An all-to-all cuts a dim last; here axes get between others, or change places.
        ("x=4,y=2", (16, 16, 16), "y,-,x", "-,x.y,-", ["direct"], 448),
        ("x=2,y=4", (64, 64), "x,y", "y,x", ["direct"], 512),
        ("x=2,y=2,z=2", (8, 8, 8), "x,y,z", "z,y,x", ["all-permute"], 64),
        ("dp=2,tp=2", (4, 1), "tp.dp,-", "dp.tp,-", ["all-permute"], 1),
        # Of equal bytes a collective is preferred.
        ("x=2,y=2,z=2", (8, 8, 8), "x.y.z,-,-", "-,x.y.z,-", ["all-to-all"], 56),
        ("a=2,b=2", (8, 8, 8), "-,a.b,-", "-,a,b", ["all-to-all"], 64),
        ("a=4", (4, 16, 8), "a,-,-", "-,a,-", ["all-to-all"], 96),
        ("a=4", (4, 16, 8), "a,-,-", "-,-,-", ["all-gather"], 384),
        ("a=4", (8, 8), "-,-", "a,-", ["slice"], 0),
        ("a=4", (8, 8), "a,-", "a,-", [], 0),
        ("a=4", (8, 8), "-,-+a", "a,-", ["reduce-scatter"], 48),
        ("a=4", (8, 8), "-,-+a", "-,-", ["all-reduce"], 96),
        ("a=4", (8, 8), "a,-", "-,-+a", ["pad"], 0),
        ("a=4", (8, 8), "-,-", "-,-+a", ["mask"], 0),
        # Axes of one device are nothing.
        ("a=4,b=1", (8, 8), "a.b,-", "a,b", [], 0),
        ("a=4", (), "", "+a", ["mask"], 0),
    ],
)
def test_known(mesh: str, shape: tuple[int, ...], source: str, target: str, expected: list[str], elements: int) -> None:
    answer = redistribution(*pair(mesh, shape, source, target), 2, objective="bytes")
    assert ops(answer) == expected
    assert answer.bytes_per_device == 2 * elements
    assert answer.peak_bytes <= answer.memory_bound_bytes


def test_the_answer_says_the_memory_in_sizes() -> None:
    source, target = pair("x=4,y=2", (16, 16, 16), "y,-,x", "-,x.y,-")
    assert redistribution(source, target, 4, objective="bytes").peak == "n0/2·n1·n2/4"


def test_from_one_device_to_many_over_pieces() -> None:
    """The one that has it sends each piece once, and those who want it put them together."""
    source = ArrayType((64, 64), Layout.parse("-,-"), Mesh.of(a=1))
    target = ArrayType((64, 64), Layout.parse("-,-"), Mesh.of((1, 2, 3, 4), b=4))
    answer = redistribution(source, target, 2, objective="bytes")
    assert ops(answer) == ["direct", "all-gather"]
    assert answer.bytes_per_device == answer.lower_bound_bytes == 2 * 64 * 64
    assert load(direct(source, target), 2, Network.of(parse_cluster("8xh100-80gb"))).sent.max() == 4 * 64 * 64


def test_replicas_of_a_node_get_pieces_from_other_nodes() -> None:
    """Between nodes each piece goes once, inside they are put together."""
    source, target = pair("n=2,d=8", (4096, 4096), "n,-", "-,-")
    cluster = nodes(2)
    answer = redistribution(source, target, 2, cluster)
    half = 4096 * 4096
    assert ops(answer) == ["slice", "all-gather", "all-gather"]
    between, inside = (priced.seconds for priced in answer.steps[1:])
    assert between == pytest.approx(half / 8 / 25e9 + 10e-6)
    assert inside == pytest.approx(7 / 8 * 2 * half / 250e9 + 3 * 5e-6)
    once = load(direct(source, target, cluster.node_of), 2, Network.of(cluster)).seconds
    assert once == pytest.approx(half / 25e9 + 10e-6)


def test_two_shapes_of_mesh_with_the_same_devices_are_one() -> None:
    source = ArrayType((16, 16), Layout.parse("x.y,-"), Mesh.of(x=2, y=4))
    for layout, expected in (("u.v,-", []), ("u,v", ["all-to-all"]), ("u,-", ["all-gather"])):
        target = ArrayType((16, 16), Layout.parse(layout), Mesh.of(u=4, v=2))
        answer = redistribution(source, target, 2)
        assert ops(answer) == expected
        assert answer.bytes_per_device == answer.lower_bound_bytes


def test_steps_are_in_the_axes_that_the_user_knows() -> None:
    source, target = pair("x=8", (64, 64), "-,-", "x,-")
    (step,) = (priced.step for priced in redistribution(source, target, 2).steps)
    assert (step.before, step.after, step.axes) == (source, target, ("x",))


def test_memory() -> None:
    source, target = pair("x=2,y=2", (8, 8), "x,y", "y,x")
    with pytest.raises(Infeasible, match="31 bytes of memory are too few: source or target alone are 32 a device"):
        redistribution(source, target, 2, memory_bytes=31)
    assert redistribution(source, target, 2, memory_bytes=100).memory_bound_bytes == 100
    # Collectives can't change the order of two axes of the only dim without more memory: they get what they need.
    one, two = pair("x=2,y=2", (16,), "x.y", "y.x")
    found = redistribution(one, two, 2, allowed=COLLECTIVES)
    assert ops(found) == ["all-gather", "slice", "slice"]
    assert found.peak_bytes == found.memory_bound_bytes == 32
    with pytest.raises(Infeasible, match=r"no steps of all-gather, .* lead there within 8 bytes a device"):
        redistribution(one, two, 2, allowed=COLLECTIVES, memory_bytes=8)


def test_more_memory_can_save_time() -> None:
    """Gathered first, a small array is where it must be after fewer messages between nodes."""
    source, target = pair("a=4,b=4", (16, 32, 32), "b,a,-", "b,-,a")
    tight = redistribution(source, target, 2, nodes(2))
    loose = redistribution(source, target, 2, nodes(2), memory_bytes=2 * tight.memory_bound_bytes)
    assert tight.peak_bytes == tight.memory_bound_bytes == 2 * 16 * 32 * 32 // 16
    assert tight.peak_bytes < loose.peak_bytes <= loose.memory_bound_bytes
    assert loose.seconds < tight.seconds / 1.2


def test_what_cannot_be() -> None:
    source, target = pair("x=2,y=2", (8, 8), "x,y", "y,x")
    with pytest.raises(InputError, match=r"shape \[8, 8\] can't become one of shape \[8, 4\]"):
        redistribution(source, ArrayType((8, 4), target.layout, target.mesh), 2)
    with pytest.raises(InputError, match='device 3 is named; cluster "2xh100-80gb" has 2 devices'):
        redistribution(source, target, 2, parse_cluster("2xh100-80gb"))
    sums = pair("x=2", (8,), "-", "-+x")
    with pytest.raises(Infeasible, match=r"no steps of .* lead there"):
        redistribution(*sums, 2, allowed=COLLECTIVES)
    there = ArrayType((8, 8), Layout.parse("a,-"), Mesh.of((4, 5), a=2))
    with pytest.raises(Infeasible, match="no steps of"):
        redistribution(source, there, 2, allowed=COLLECTIVES)


@pytest.mark.slow
def test_a_time_limit_gives_the_best_so_far() -> None:
    source, target = pair("a=4,b=4,c=4,d=4", (256, 256, 256), "a.b,c,-", "d,b.a,c")
    cluster = nodes(32)
    began = time.process_time()
    hasty = redistribution(source, target, 2, cluster, seconds_limit=0.0)
    assert time.process_time() - began < 1
    assert hasty.steps
    assert not hasty.optimal
    assert redistribution(source, target, 2, cluster).seconds <= hasty.seconds


@pytest.mark.slow
def test_never_worse_than_simpler_ways() -> None:
    """On one tier and on two: than one direct step, than collectives, than the other objective's answer."""
    random = Random(12)
    once: list[float] = []
    alone: list[float] = []
    for number in range(24):
        mesh = Mesh.parse(("a=4,b=8", "a=2,b=4,c=4", "a=32", "a=8,b=4")[number % 4])
        shape = ((2048, 2048), (4096, 256, 64))[number % 2]
        source, target = (ArrayType(shape, any_layout(random, mesh, len(shape), False), mesh) for _ in range(2))
        cluster = nodes(4) if number % 3 else parse_cluster("32xh100-80gb")
        best = redistribution(source, target, 2, cluster)
        fewest = redistribution(source, target, 2, cluster, objective="bytes")
        assert fewest.bytes_per_device <= best.bytes_per_device
        assert best.seconds <= fewest.seconds * (1 + 1e-9)
        if best.seconds and number % 3:
            once.append(load(direct(source, target, cluster.node_of), 2, Network.of(cluster)).seconds / best.seconds)
            without = redistribution(source, target, 2, cluster, allowed=ALL - {"direct"})
            alone.append(without.seconds / best.seconds)
    assert min(once) >= 1 - 1e-9
    assert min(alone) >= 1 - 1e-9
    assert geometric_mean(once) > 1.2


def test_the_same_question_has_the_same_answer() -> None:
    source, target = pair("a=4,b=8", (64, 64, 64), "a,b,-", "b,-,a")
    first = redistribution(source, target, 2, nodes(4))
    # The same numbers, but not the same question: it isn't taken from the answers that are kept.
    again = redistribution(source, target, 2, nodes(4), memory_bytes=first.memory_bound_bytes)
    assert [priced.step for priced in first.steps] == [priced.step for priced in again.steps]
    assert redistribution(source, target, 2, nodes(4)) is first


def test_thousands_of_devices() -> None:
    mesh = Mesh.of(x=64, y=64)
    source, target = (ArrayType((8192, 8192), Layout.parse(text), mesh) for text in ("x,y", "y.x,-"))
    flat = redistribution(source, target, 2, parse_cluster("4096xh100-80gb"), objective="bytes")
    assert flat.bytes_per_device == flat.lower_bound_bytes
    tiers = redistribution(source, target, 2, parse_cluster("512x8xh100-80gb"))
    assert tiers.peak_bytes <= tiers.memory_bound_bytes
