"""What may stand under the key "partita", and one message for everything else."""

from __future__ import annotations

from typing import Any

import pytest

from partita.errors import InputError
from partita.key import OPTIONS, Key, parse_key


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ({}, Key()),
        (dict.fromkeys(OPTIONS), Key()),
        ({"memory_gib": 1.5}, Key(memory_bytes=3 * 2**29)),
        ({"cluster": "8xa100-80gb", "dry_run": True}, Key(cluster="8xa100-80gb", dry_run=True)),
        ({"pipeline": True, "tensor_parallel": False}, Key(pipeline="on", tensor_parallel="off")),
        ({"pipeline": "off", "tensor_parallel": "auto"}, Key(pipeline="off")),
        ({"fix": {"tp": 2, "recompute": "full"}}, Key(fix={"tp": 2, "recompute": "full"})),
        ({"fix": ["tp=2", "pp=4"]}, Key(fix={"tp": 2, "pp": 4})),
        ({"fix": "zero=1"}, Key(fix={"zero": 1})),
        ({"fix": {"tp": 2}, "tensor_parallel": "auto"}, Key(fix={"tp": 2})),
        ({"plan": "p.json", "cluster": "cpu"}, Key(plan="p.json", cluster="cpu")),
        ({"seq": 128}, Key(seq=128)),
    ],
)
def test_options(value: Any, wanted: Key) -> None:
    assert parse_key(value) == wanted


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, ["None", "an object is needed", "{} will do"]),
        (True, ["True", "an object is needed"]),
        ("auto", ["'auto'", "an object is needed"]),
        ([], ["[]", "an object is needed"]),
        ({"pipelines": "on"}, ['"pipelines"', "Did you mean 'pipeline'"]),
        ({"zz": 1}, ['"zz"', "Known: cluster, dry_run, fix,"]),
        ({1: 2}, ['no option "1"']),
        ({"cluster": 8}, ['"partita.cluster": 8', "a word is needed"]),
        ({"cluster": ""}, ["\"partita.cluster\": ''"]),
        ({"plan": ["p.json"]}, ["\"partita.plan\": ['p.json']"]),
        ({"memory_gib": "80"}, ["\"partita.memory_gib\": '80'", "such as 80"]),
        ({"memory_gib": 0}, ['"partita.memory_gib": 0']),
        ({"memory_gib": -1}, ['"partita.memory_gib": -1']),
        ({"memory_gib": True}, ['"partita.memory_gib": True']),
        ({"memory_gib": float("nan")}, ['"partita.memory_gib": nan']),
        ({"memory_gib": float("inf")}, ['"partita.memory_gib": inf']),
        ({"memory_gib": 10**400}, ['"partita.memory_gib": 1', "a number of GiB is needed"]),
        ({"memory_gib": 1e-12}, ['"partita.memory_gib": 1e-12']),
        ({"pipeline": "yes"}, ["\"partita.pipeline\": 'yes'", '"on", "off" or "auto"']),
        ({"pipeline": 1}, ['"partita.pipeline": 1']),
        ({"pipeline": ["on"]}, ["\"partita.pipeline\": ['on']"]),
        ({"tensor_parallel": {}}, ['"partita.tensor_parallel": {}']),
        ({"seq": 0}, ['"partita.seq": 0', "such as 2048"]),
        ({"seq": 1.5}, ['"partita.seq": 1.5']),
        ({"seq": "2048"}, ["\"partita.seq\": '2048'"]),
        ({"seq": True}, ['"partita.seq": True']),
        ({"fix": 4}, ['"partita.fix": 4', '{"tp": 4']),
        ({"fix": [1]}, ['"partita.fix": [1]']),
        ({"fix": {"tpp": 2}}, ['"partita.fix"', '"tpp=2"', "Did you mean", "'tp'"]),
        ({"fix": {"tp": 0}}, ['"tp=0"', "at least 1"]),
        ({"fix": {"tp": None}}, ['"tp=None"', "a whole number"]),
        ({"fix": {"zero": 4}}, ['"zero=4"', "0, 1, 2 or 3"]),
        ({"fix": {"recompute": True}}, ['"recompute=True"', "none or full"]),
        ({"fix": ["tp=2", "tp=4"]}, ["held twice"]),
        ({"fix": {"stage:2.pp": 1}}, ["of one stage dp, tp, zero and recompute can be held"]),
        ({"dry_run": "yes"}, ["\"partita.dry_run\": 'yes'", "true or false"]),
        ({"dry_run": 1}, ['"partita.dry_run": 1']),
        ({"plan": "p.json", "fix": {"tp": 2}}, ["a finished plan", "fix would do nothing"]),
        ({"plan": "p.json", "memory_gib": 8, "seq": 4}, ["memory_gib and seq would do nothing"]),
        ({"pipeline": "off", "fix": {"pp": 2}}, ['pipeline is "off"', "pp=2", "remove one"]),
        ({"tensor_parallel": "on", "fix": ["tp=2"]}, ['tensor_parallel is "on"', "tp=2"]),
    ],
)
def test_what_cannot_stand_there(value: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse_key(value)
    message = str(caught.value)
    assert message.startswith('"partita')
    assert [word for word in words if word not in message] == []
    assert "\n" not in message
