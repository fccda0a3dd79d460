"""One block in one stage: seconds and bytes that are put together, against the formulas they are put together from."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from partita.cluster import Link, parse_cluster
from partita.cost import all_gather_seconds, all_reduce_seconds, reduce_scatter_seconds
from partita.cost.block import divided_cost
from partita.cost.division import ClassCut, Division
from partita.cost.ending import update_seconds, update_start_seconds
from partita.cost.precision import item_bytes
from partita.cost.samples import shared_values
from partita.cost.stage import (
    Computed,
    Ending,
    Group,
    held_bytes,
    sent,
    state_bytes_of,
    temporary_bytes,
    turn,
    weight_seconds,
)
from partita.cost.state import state_bytes
from partita.graph.cuts import block_cuts
from partita.plugins.capture_huggingface import capture_config
from partita.profile.measured import Measured
from partita.profile.rates import Rates

LINK = Link(2e9, 3e-6, 0.5)
PER = state_bytes("bf16", "adam", 0, 1)  # 2, 2 and 12 bytes an element


def group(size: int) -> Group:
    return Group(size, LINK.latency_seconds, LINK.reached_bytes_per_second)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 48])
def test_a_group_takes_what_its_collectives_take(size):
    assert group(size).seconds(1, 7e6) == pytest.approx(all_gather_seconds(7e6, size, LINK), rel=1e-15)
    assert group(size).seconds(2, 2 * 7e6) == pytest.approx(all_reduce_seconds(7e6, size, LINK), rel=1e-15)


def test_numbers_and_arrays_come_to_the_same():
    sizes = [1, 2, 3, 8]
    many = Group(np.array(sizes), 3e-6, 1e9).seconds(np.array([1, 2, 3, 4]), np.array([1e6, 2e6, 3e6, 4e6]))
    assert many.tolist() == [group(n).seconds(k, k * 1e6) for k, n in enumerate(sizes, 1)]


@pytest.mark.parametrize("division", [
    Division((ClassCut("heads", 4), ClassCut("hidden", 4))),
    Division((ClassCut("heads", 4), ClassCut("hidden", 4)), sequence=4),
    Division(context=2, context_axis="tensor"),
])  # fmt: skip
def test_what_a_block_sends_is_what_its_collectives_are(division):
    config = {"model_type": "gpt2", "vocab_size": 512, "n_positions": 64, "n_embd": 96, "n_layer": 2, "n_head": 8}
    graph = capture_config(config, seq=64, samples=2, dtype="float16")
    cost = divided_cost(
        graph, "transformer.h.1", block_cuts(graph, "transformer.h.1"), division, item_bytes(graph, "fp16")
    )
    found, tensor, groups = sent(cost, "tensor"), group(4), {"tensor": (4, LINK)}
    forward = cost.reduction_seconds(4, LINK, 3.0) + cost.exchange_seconds("forward", groups, 3.0)
    backward = cost.entry_seconds(4, LINK, 3.0) + cost.exchange_seconds("backward", groups, 3.0)
    assert forward > 0
    assert tensor.seconds(found.forward_rounds, found.forward_bytes * 3) == pytest.approx(forward, rel=1e-12)
    assert tensor.seconds(found.backward_rounds, found.backward_bytes * 3) == pytest.approx(backward, rel=1e-12)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("trains", [1.0, 0.0])
def test_turns_by_hand(full, trains):
    found = turn(Computed(10.0, 21.0, 1.0, 5.0), 2.0, 3.0, 0.5, 0.25, trains, full)
    assert found.forward == 10 + 2 + 0.5
    assert found.forward_collective == 2.5
    again = 1 + (10 if full else 0)
    repeated = 2 if full else 0
    assert found.backward == trains * (21 + again + 3 + repeated + 0.5 + 0.25)
    assert found.backward_collective == trains * (3 + repeated + 0.5 + 0.25)
    assert (found.again, found.weight) == (trains * again, trains * 5)


@pytest.mark.parametrize(
    ("zero", "wanted"),
    [
        # 10 trained and 3 frozen elements over 4 copies: a shard is 3 of the one, 1 of the other.
        (0, (13 * 2, 10 * 2, 10 * 12)),
        (1, (13 * 2, 10 * 2, 3 * 12)),
        (2, (13 * 2, 3 * 2, 3 * 12)),
        (3, (4 * 2, 3 * 2, 3 * 12)),
    ],
)
def test_state_of_a_block_is_rounded_up_by_itself(zero, wanted):
    assert tuple(float(item) for item in state_bytes_of(10, 3, PER, zero, 4)) == wanted
    both = state_bytes_of(np.array([10.0, 7.0]), np.array([3.0, 0.0]), PER, np.array([zero, 0]), 4)
    assert tuple(float(item[0]) for item in both) == wanted


@pytest.mark.parametrize("zero", range(4))
def test_weights_and_gradients_go_over_the_copies(zero):
    gathered, scattered = weight_seconds(1000, 200, 2, zero, group(8))
    assert gathered == pytest.approx(all_gather_seconds(2400, 8, LINK) if zero == 3 else 0.0)
    assert scattered == pytest.approx(reduce_scatter_seconds(2000, 8, LINK) if zero >= 2 else 0.0)
    assert weight_seconds(0, 0, 2, zero, group(8)) == (0, 0)  # no latency for nothing


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("inner", [1, 2])
def test_the_end_of_a_step_adds_up_over_blocks(zero, inner):
    ending = Ending(group(4), group(4 * inner), group(inner))
    blocks = np.array([1000.0, 5.0, 123456.0])
    start = [float(part) for part in ending.seconds(0.0, zero, rounds=1)]
    reduced, gathered = (
        float(part.sum()) + once for part, once in zip(ending.seconds(blocks, zero), start, strict=True)
    )
    size = float(blocks.sum())
    wanted = {
        0: all_reduce_seconds(size, 4 * inner, LINK),
        1: reduce_scatter_seconds(size, 4 * inner, LINK),
        # The backward turns have added up over the copies: the chunks along the other axis are left.
        2: all_reduce_seconds(size / 4, inner, LINK),
    }
    assert reduced == pytest.approx(wanted[min(zero, 2)], rel=1e-12)
    assert gathered == pytest.approx(all_gather_seconds(size, 4, LINK) if zero in (1, 2) else 0.0, rel=1e-12)


def measured(adam) -> Measured:
    return Measured("a file", (), Rates((), (), (), 1e12, 1e12, 1e12, tuple(adam)))


def test_an_update_adds_up_over_blocks_on_the_line_of_what_was_measured():
    device = replace(parse_cluster("1xh200").device, measured=measured([(1e6, 1e-4), (1e7, 1.5e-4), (1e8, 9.6e-4)]))
    start, parts = update_start_seconds(device, "adam"), [3e6, 4e7, 1e3]
    seconds = [float(update_seconds(device, "fp32", "adam", n, 1, 0, 1)) for n in parts]
    # (9.6 − 1.5)·10⁻⁴ over 9·10⁷ elements is 9·10⁻¹² each, which leaves 0.6·10⁻⁴; fp32 moves 28 bytes, as measured.
    assert start == pytest.approx(6e-5)
    assert start + sum(seconds) == pytest.approx(6e-5 + 9e-12 * sum(parts))
    assert seconds[0] == pytest.approx(4 * float(update_seconds(device, "fp32", "adam", 3e6, 1, 1, 4)))
    assert update_start_seconds(device, "sgd") == update_start_seconds(replace(device, measured=None), "adam") == 0


def test_kept_and_temporary_bytes_by_hand():
    assert held_bytes(100.2, 30.5, 1.0, full=False) == 101
    assert held_bytes(100.2, 30.5, 1.0, full=True) == 31
    assert held_bytes(0.0, 30.5, 0.0, full=True) == 0
    plain = [float(temporary_bytes(10.0, 100.0, 7.0, 50, 5, 2, zero, 1.0, back=False)) for zero in range(4)]
    assert plain == [10, 10, 10 + 100, 10 + 100 + 110]
    assert temporary_bytes(10.0, 100.0, 7.0, 50, 5, 2, 0, 1.0, back=True) == 110
    # Nothing flows back: what the largest op touches is there while it runs.
    assert temporary_bytes(0.0, 0.0, 7.5, 50, 5, 2, 0, 0.0, back=False) == ceil(7.5)


def test_what_all_samples_share_is_summed_over_those_who_divide_them():
    config = {"model_type": "gpt2", "vocab_size": 512, "n_positions": 64, "n_embd": 96, "n_layer": 2, "n_head": 8}
    graph = capture_config(config, seq=64, samples=2, dtype="float16")
    item = item_bytes(graph, "fp16")
    names = [block.name for block in graph.blocks]
    found = {name: shared_values(graph, name, item) for name in names}
    # Positions, backward; the loss, forward.
    assert (found[names[0]].backward, found[names[0]].backward_bytes) == (1, 64 * 96 * 2)
    assert found[names[-1]].forward == 1
    assert found[names[-1]].forward_bytes == item(graph.tensor[graph.loss.tensor].dtype)
    for name in names[1:-1]:
        assert vars(found[name]) == {"forward": 0, "forward_bytes": 0, "backward": 0, "backward_bytes": 0}
