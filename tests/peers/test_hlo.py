"""Reading the bytes of a compiled XLA program out of its text: lines as XLA writes them, with counts made by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from peers.hlo import traffic

KIB = 2**10
# f32[512,256] is 512 KiB.
PROGRAM = """HloModule jit__lambda, is_scheduled=true, num_partitions=8

%fused (param_0: f32[512,256]) -> f32[1,256,256] {{
  ROOT %slice.3 = f32[1,256,256]{{2,1,0}} slice(%param_0), slice={{[1:2], [0:256], [0:256]}}
}}

ENTRY %main.0_spmd (param: f32[512,256]) -> f32[256,512] {{
  %param = f32[512,256]{{1,0}} parameter(0), sharding={{devices=[2,4]<=[8]}}
{}
}}
"""
SENT = "  ROOT %sent = f32[512,256]{1,0} "
HALVES = """\
  %one = f32[1,256,256]{2,1,0} fusion(%param), kind=kLoop, calls=%fused
  %two = f32[1,256,256]{2,1,0} fusion(%param), kind=kLoop, calls=%fused
  ROOT %swap = (f32[1,256,256]{2,1,0}, /*index=1*/f32[1,256,256]{2,1,0}) all-to-all(%one, /*index=1*/%two), """


@pytest.mark.parametrize(
    ("lines", "sent", "received", "largest"),
    [
        ("  ROOT %whole = f32[2048,256]{1,0} all-gather(%param), replica_groups=[2,4]<=[8], dimensions={0}",
         [1536] * 8, [1536] * 8, 2048),
        (SENT + "all-reduce(%param), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add",
         [768] * 8, [768] * 8, 512),
        ("  ROOT %part = f32[128,256]{1,0} reduce-scatter(%param), replica_groups=[2,4]<=[4,2]T(1,0), to_apply=%add",
         [384] * 8, [384] * 8, 512),
        # Some devices keep what they have, one gives to another and gets nothing.
        (SENT + "collective-permute(%param), source_target_pairs={{0,0},{1,4},{2,1},{4,2},{7,5}}",
         [0, 512, 512, 0, 512, 0, 0, 512], [0, 512, 512, 0, 512, 512, 0, 0], 512),
        # Groups of two in the three ways to write them: explicit, as a mesh with a factor of an axis, as whole axes.
        (HALVES + "replica_groups={{0,1},{2,3},{4,5},{6,7}}", [256] * 8, [256] * 8, 512),
        (HALVES + "replica_groups=mesh['axis_0'=4,'axis_1'=2], device_ids=([2,2,2]T(0,2,1)) {'axis_0':(2)2}",
         [256] * 8, [256] * 8, 512),
        (HALVES + "replica_groups=mesh['axis_0'=2,'axis_1'=1,'axis_2'=4] {'axis_0','axis_1'}",
         [256] * 8, [256] * 8, 512),
        # An all-to-all of one array that is split, over 2 · 4 devices.
        (SENT + "all-to-all(%param), replica_groups=mesh['a'=2,'b'=4] {'a','b'}, dimensions={0}",
         [448] * 8, [448] * 8, 512),
        # Two collectives add up; what is made in between counts as memory.
        ("  %whole = f32[2048,256]{1,0} all-gather(%param), replica_groups=[2,4]<=[8], dimensions={0}\n"
         "  %cut = f32[512,256]{1,0} fusion(%whole), kind=kLoop, calls=%fused\n"
         "  ROOT %move = f32[512,256]{1,0} collective-permute(%cut), source_target_pairs={{0,1},{1,0}}",
         [2048] * 2 + [1536] * 6, [2048] * 2 + [1536] * 6, 2048),
        (SENT + "copy(%param)", [0] * 8, [0] * 8, 512),
    ],
)  # fmt: skip
def test_bytes(lines: str, sent: list[int], received: list[int], largest: int) -> None:
    found = traffic(PROGRAM.format(lines), 8)
    assert [size / KIB for size in found.sent] == sent
    assert [size / KIB for size in found.received] == received
    assert found.largest_bytes == largest * KIB


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (SENT + "ragged-all-to-all(%param), replica_groups={{0,1}}", "ragged-all-to-all is not known"),
        (SENT + "all-gather-start(%param), replica_groups={{0,1}}", "all-gather-start is not known"),
        (SENT + "while(%param), body=%b", "while is not known"),
        (SENT + "all-to-all(%param), replica_groups=all, dimensions={0}", "no groups"),
        ("  what is this", "can't be read"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(lines: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        traffic(PROGRAM.format(lines), 8)


def test_a_collective_in_another_computation_is_refused() -> None:
    hidden = PROGRAM.format(SENT + "copy(%param)").replace(" slice(%param_0)", " all-reduce(%param_0)")
    with pytest.raises(ValueError, match="outside of the entry"):
        traffic(hidden, 8)
