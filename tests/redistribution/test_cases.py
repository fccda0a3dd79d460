"""Cases with known answers, asked as a user asks them: ``partita redistribute --json``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from partita.cli.main import main

Ask = dict[str, str]


def asked(capsys: pytest.CaptureFixture[str], mesh: str, shape: str, source: str, target: str, **more: str) -> Any:
    options = {"mesh": mesh, "shape": shape, "from": source, "to": target, "objective": "bytes", **more}
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    status = main(["redistribute", *words, "--json"])
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    return json.loads(out)


def bytes_of(found: Any) -> tuple[int, int, int, int]:
    """What the device moves that moves most, the bound on it, the largest array and what that was to stay under."""
    return tuple(found[key] for key in ("bytes_per_device", "lower_bound_bytes", "peak_bytes", "memory_bound_bytes"))


@pytest.mark.parametrize("notation", ["tp.dp,- -> dp.tp,-", "_S(0, 2),S(0) -> S(0),S(0)",
                                      "P(('tp', 'dp')) -> P(('dp', 'tp'))"])  # fmt: skip
def test_c15_two_axes_on_one_dim(capsys: pytest.CaptureFixture[str], notation: str) -> None:
    source, target = notation.split(" -> ")
    found = asked(capsys, "dp=2,tp=2", "4,1", source, target)
    assert bytes_of(found) == (4, 4, 4, 4)
    assert found["source"]["layout"] == "tp.dp,-"
    assert found["target"]["layout"] == "dp.tp,-"
    # Gathering would receive three rows.
    assert found["peers"][0]["bytes_per_device"] == 12


def test_c15_another_order_of_unequal_axes(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "x=2,y=4", "8", "x.y", "y.x")
    assert bytes_of(found) == (4, 4, 4, 4)


def test_c16_empty_shards(capsys: pytest.CaptureFixture[str]) -> None:
    gathered = asked(capsys, "a=4", "5,10", "a,-", "-,-", objective="time")
    # The device without rows receives all 50 elements, and nobody receives padding; a device with two rows sends each
    # of the three others 20.
    assert [(step["op"], step["sent_bytes"], step["received_bytes"]) for step in gathered["steps"]] == [
        ("all-gather", 240, 200)
    ]
    assert bytes_of(gathered)[1:] == (200, 200, 200)
    moved = asked(capsys, "a=4", "5,10", "a,-", "-,a")
    assert bytes_of(moved) == (56, 56, 80, 80)
    assert max(step["received_bytes"] for step in moved["steps"]) == 48


def test_c17_a_sum_is_no_average(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, "a=2", "4", "-+a", "a")
    assert bytes_of(found) == (8, 8, 16, 16)
    assert [step["op"] for step in found["steps"]] == ["reduce-scatter"]
    assert found["peers"][0]["bytes_per_device"] == 16
    status = main(["redistribute", "--mesh", "a=2", "--shape", "1", "--from", "P(sum)", "--to", "P(avg)"])
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert '"P(avg)"' in err
    assert "divide what each device has by 2" in err


@pytest.mark.parametrize(("shape", "elements", "held"), [("16,16,16", 448, 512), ("8,16,8", 112, 128)])
def test_c18_never_the_whole_tensor(capsys: pytest.CaptureFixture[str], shape: str, elements: int, held: int) -> None:
    found = asked(capsys, "x=4,y=2", shape, "y,-,x", "-,x.y,-")
    assert bytes_of(found) == (4 * elements, 4 * elements, 4 * held, 4 * held)
    rebuilt = found["peers"][0]
    assert (rebuilt["bytes_per_device"], rebuilt["peak_bytes"]) == (4 * 7 * held, 4 * 8 * held)


@pytest.mark.parametrize("objective", ["bytes", "time"])
def test_c18_one_all_to_all_over_one_axis(capsys: pytest.CaptureFixture[str], objective: str) -> None:
    found = asked(capsys, "a=2,b=2", "8,8,8", "-,a.b,-", "-,a,b", objective=objective)
    assert bytes_of(found) == (256, 256, 512, 512)
    if objective == "time":
        keys = ("op", "axis", "dim", "group_size", "bytes_per_device")
        assert [tuple(step[key] for key in keys) for step in found["steps"]] == [("all-to-all", "b", 1, 2, 256)]


def test_c19_from_one_mesh_to_another(capsys: pytest.CaptureFixture[str]) -> None:
    apart = asked(capsys, "a=4", "8,8", "a,-", "-,b", to_mesh="b=2", to_devices="4-5")
    assert bytes_of(apart) == (128, 128, 128, 128)
    assert [(step["sent_bytes"], step["received_bytes"]) for step in apart["steps"]] == [(64, 128)]
    within = asked(capsys, "a=4", "8,8", "a,-", "-,b", to_mesh="b=2", to_devices="0-1")
    assert bytes_of(within) == (96, 96, 128, 128)


@pytest.mark.parametrize(("target", "moved", "op"), [("-,-,-", 768, "all-gather"), ("-,d,-", 192, "all-to-all")])
def test_c21_between_a_tower_and_a_language_model(
    capsys: pytest.CaptureFixture[str], target: str, moved: int, op: str
) -> None:
    found = asked(capsys, "d=4", "4,16,8", "d,-,-", target, dtype="bf16", objective="time")
    held = 1024 if op == "all-gather" else 256
    assert bytes_of(found) == (moved, moved, held, held)
    assert [step["op"] for step in found["steps"]] == [op]


@pytest.mark.parametrize(
    ("mesh", "shape", "source", "target", "elements"),
    [
        ("x=4,y=2", "16,16,16", "y,-,x", "-,x.y,-", 448),
        ("x=2,y=4", "64,64", "x,y", "y,x", 512),
        # Axes with the dim that each shards, R for none.
        ("a=2,b=2,c=2", "8,8,8", "S(0),S(0),S(0)", "S(1),S(1),S(1)", 56),
        ("a=2,b=2,c=2", "8,8,8", "S(0),S(1),S(0)", "S(1),S(0),S(0)", 64),
        ("a=2,b=2,c=2", "8,8,8", "S(0),S(1),S(2)", "S(2),S(1),S(0)", 64),
        ("a=2,b=2,c=2", "8,8,8", "S(1),R,S(0)", "R,S(0),S(0)", 128),
    ],
)
def test_known_pairs_reach_the_bound(
    capsys: pytest.CaptureFixture[str], mesh: str, shape: str, source: str, target: str, elements: int
) -> None:
    found = asked(capsys, mesh, shape, source, target)
    assert (found["bytes_per_device"], found["lower_bound_bytes"]) == (4 * elements, 4 * elements)
    assert found["peak_bytes"] == found["memory_bound_bytes"]
