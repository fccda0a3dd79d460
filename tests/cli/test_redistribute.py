"""``partita redistribute``: what it prints, for people and as JSON, and what it refuses."""

from __future__ import annotations

import json

import pytest

from partita.cli.main import main

PAIR = {"mesh": "x=4,y=2", "shape": "16,16,16", "from": "y,-,x", "to": "-,x.y,-"}


def words(**options: str | None) -> list[str]:
    """``partita redistribute`` with the options above, others put in or (None) left out."""
    changed = PAIR | {name.rstrip("_").replace("_", "-"): value for name, value in options.items()}
    return ["redistribute", *(word for name, value in changed.items() if value is not None
                              for word in (f"--{name}", value))]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"mesh": None}, ["Missing option '--mesh'", "partita redistribute --help"]),
        ({"mesh": "x4,y=2"}, ['mesh "x4,y=2"', '"x4" is no axis with its size, such as x=2']),
        ({"mesh": ""}, ['mesh ""', "such as x=2"]),
        ({"mesh": "x=0,y=2"}, ['"x" has size 0']),
        ({"mesh": "x=2,x=4"}, ['"x" occurs twice']),
        ({"mesh": "x=9999999,y=9999999"}, ["99,999,980,000,001 places", "1,000,000 at most"]),
        ({"shape": "16,b,16"}, ['--shape "16,b,16"', '"b" is no size']),
        ({"shape": "16,-1,16"}, ['"-1" is no size']),
        ({"shape": "16,,16"}, ['"" is no size']),
        ({"shape": "99999999999,99999,99999"}, ["999,980,000,090,000,199,999 elements", "35,184,372,088,832 at most"]),
        ({"from_": "y,-,w"}, ['"y,-,w"', 'no axis "w"', "Known: x, y"]),
        ({"from_": "y,-,y"}, ['"y,-,y"', '"y" occurs twice']),
        ({"to": "-,x.y"}, ['"-,x.y" has 2 entries, the tensor 3 dims']),
        ({"to": "S(0)"}, ['"S(0)": 1 entries', "has 2 axes"]),
        ({"to": "S(3),R"}, ['"S(3)"', "S(0) to S(2) work"]),
        ({"to": "S(0),P(avg)"}, ['"P(avg)"', "divide what each device has by 2"]),
        ({"devices": "0-3"}, ["has 8 places, but 4 devices are named"]),
        ({"devices": "0-3,0-3"}, ["device 0 is named twice"]),
        ({"devices": "7-0"}, ['--devices "7-0"', '"7-0" is neither a device such as 4 nor a range such as 0-3']),
        ({"to_mesh": "a=2", "to": "a,-,-", "to_devices": "3"}, ['mesh "a=2" has 2 places, but 1 devices are named']),
        ({"cluster": "4xh100-80gb"}, ['mesh "x=4,y=2"', "device 7", "has 4, 0 to 3"]),
        ({"cluster": "2x4xh100-80g"}, ['there is no preset "h100-80g"', "h100-80gb"]),
        ({"dtype": "fp23"}, ['there is no "fp23"', "'fp32'"]),
        ({"objective": "speed"}, ['"speed": time and bytes work']),
        ({"memory_bytes": "many"}, ['"many" is no whole number']),
        ({"memory_bytes": "-4"}, ["--memory-bytes -4", "whole numbers from 1 work"]),
        ({"memory_bytes": "0"}, ["--memory-bytes 0", "whole numbers from 1 work"]),
        ({"memory_bytes": "4096", "memory_gib": "1"}, ["--memory-bytes 4096 and --memory-gib", "leave one out"]),
        ({"seconds_limit": "-1"}, ["--seconds-limit", '"-1" is no number of seconds above 0']),
    ],
)
def test_what_is_refused(capsys: pytest.CaptureFixture[str], options: dict[str, str | None], facts: list[str]) -> None:
    status = main(words(**options))
    out, err = capsys.readouterr()
    assert [fact for fact in facts if fact not in err] == [], err
    assert (status, out) == (2, "")
    assert err.startswith("partita: ")
    assert err.count("\n") == 1, "one message is one line"
    assert "Traceback" not in err


def test_too_little_memory_is_the_answer_no(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(words(memory_bytes="2047"))
    out, err = capsys.readouterr()
    assert (status, out) == (1, "")
    assert "2,047 bytes" in err
    assert "2,048" in err


def test_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words(objective="bytes"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    promised = {"steps", "bytes_per_device", "lower_bound_bytes", "peak_bytes", "memory_bound_bytes", "seconds"}
    assert promised <= found.keys()
    assert all({"op", "axis", "dim", "group_size", "bytes_per_device", "seconds"} <= s.keys() for s in found["steps"])
    assert found["source"] == {
        "type": "[8{y}16, 16, 4{x}16]", "layout": "y,-,x", "placements": "S(2),S(0)",
        "partition_spec": "P('y', None, 'x')", "mesh": {"x": 4, "y": 2}, "devices": [0, 1, 2, 3, 4, 5, 6, 7],
        "local_shape": [8, 16, 4],
    }  # fmt: skip
    assert found["without_more_memory"] is None
    gathered = found["peers"][0]
    assert [step["op"] for step in gathered["steps"]] == ["all-gather", "all-gather", "slice", "slice"]
    assert sum(step["seconds"] for step in gathered["steps"]) == pytest.approx(gathered["seconds"])


def test_the_text_has_steps_bound_memory_and_what_others_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(objective="bytes")) == 0
    out = capsys.readouterr().out
    for fact in ("from [8{y}16, 16, 4{x}16]", "to   [16, 2{x,y}16, 16]", "1,792 bytes", "2,048 bytes (n0/2·n1·n2/4",
                 "gather, then slice", "14,336", "16,384"):  # fmt: skip
        assert fact in out


def test_where_no_other_library_has_a_way_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(to_mesh="a=3", to="a,-,-", to_devices="8-10")) == 0
    out = capsys.readouterr().out
    assert "to   [6{a}16, 16, 16]  mesh a=3, devices 8-10" in out
    assert "gather, then slice       2 all-gather, direct" in out
    assert "none that is installed can state this" in out


@pytest.mark.parametrize(
    ("options", "moved"),
    [
        ({"shape": "", "from_": "", "to": ""}, 0),
        ({"shape": "16", "from_": "P,P", "to": "R,R"}, 112),
        ({"shape": "0,16,16"}, 0),
        ({"to": "y,-,x"}, 0),
        ({"mesh": "x=4,y=1", "to": "y,-,x"}, 0),
        ({"to_devices": "7,6,5,4,3,2,1,0", "to": "y,-,x"}, 2048),
        ({"dtype": "bfloat16", "objective": "bytes"}, 896),
        ({"objective": "bytes", "seconds_limit": "60"}, 1792),
        ({"from_": "S(2),S(0)", "to": "P(None,('x','y'))", "objective": "bytes"}, 1792),
    ],
)
def test_what_is_ordinary(capsys: pytest.CaptureFixture[str], options: dict[str, str | None], moved: int) -> None:
    assert main([*words(**options), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bytes_per_device"] == moved
    assert main(words(**options)) == 0
    assert ("nothing to do" in capsys.readouterr().out) == (not found["steps"])


def test_more_memory_says_what_it_saves(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words(memory_bytes="16384"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["memory_bound_bytes"] == 16384
    assert found["without_more_memory"]["peak_bytes"] == 2048
    assert found["seconds"] <= found["without_more_memory"]["seconds"]
    assert main(words(memory_gib="1")) == 0
    assert "1,073,741,824 bytes for an array instead of 2,048" in capsys.readouterr().out
