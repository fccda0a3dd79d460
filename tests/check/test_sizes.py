"""Divisibility by tp, by context parallelism and by devices; nodes that differ; sizes against the model."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from partita.cluster import parse_cluster
from partita.plugins.check.divide import sequence_factor
from tests.check.command import Check, paths, problems

DS = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4}


def gpt2(heads: int, layers: int = 2, width: int = 8) -> dict[str, Any]:
    return {"model_type": "gpt2", "n_embd": heads * width, "n_layer": layers, "n_head": heads, "vocab_size": 96,
            "n_positions": 32}  # fmt: skip


HEADS = [
    (52, 8, [1, 2, 4, 13, 26, 52], "remainder 4); nearest: 4 and 13"),
    (12, 8, [1, 2, 3, 4, 6, 12], "remainder 4); nearest: 6 and 12"),
    (40, 3, [1, 2, 4, 5, 8, 10, 20, 40], "remainder 1); nearest: 2 and 4"),
    (28, 8, [1, 2, 4, 7, 14, 28], "remainder 4); nearest: 7 and 14"),
]


@pytest.mark.parametrize(("heads", "tp", "works", "facts"), HEADS)
def test_c10_heads_and_tp(check: Check, heads: int, tp: int, works: list[int], facts: str) -> None:
    check.write("model.json", gpt2(heads))
    found = check({"ds.json": DS}, "--devices", str(tp), "--tp", str(tp), "--model", "model.json", status=1)
    (finding,) = [finding for finding in problems(found) if "heads" in finding["message"]]
    assert f"tp {tp} does not divide heads {heads}" in finding["message"]
    assert 'block "transformer.h.0"' in finding["message"]
    assert facts in finding["message"]
    assert finding["works"] == [f"tp {size}" for size in works]


@pytest.mark.parametrize(("heads", "tp", "works", "facts"), HEADS)
def test_c10_heads_in_megatrons_arguments(check: Check, heads: int, tp: int, works: list[int], facts: str) -> None:
    text = f"--num-attention-heads {heads}\n--tensor-model-parallel-size {tp}\n"
    (finding,) = problems(check({"args.txt": text}, status=1))
    assert (finding["path"], finding["line"]) == ("--tensor-model-parallel-size", 2)
    assert facts in finding["message"]
    assert finding["works"] == [f"tp {size}" for size in works]


def test_groups_of_keys_that_megatron_copies(check: Check) -> None:
    """Two groups on four ranks are copied; three on four can't be."""
    text = "--num-attention-heads 12 --group-query-attention --num-query-groups {} --tensor-model-parallel-size 4"
    assert problems(check({"args.txt": text.format(2)})) == []
    (finding,) = problems(check({"args.txt": text.format(3)}))
    assert finding["works"] == ["tp 1", "tp 3", "tp 6", "tp 12"]


def test_experts_hidden_size_and_vocabulary(check: Check) -> None:
    text = (
        "--hidden-size 100 --num-attention-heads 12 --vocab-size 50257 --tensor-model-parallel-size 2\n"
        "--num-experts 6 --expert-model-parallel-size 4\n"
    )
    found = check({"args.txt": text}, status=1)
    assert sorted(paths(found, "problem")) == ["--expert-model-parallel-size", "--num-attention-heads"]
    (note,) = [finding for finding in found["findings"] if finding["severity"] == "note"]
    assert "50257 is padded to 50432" in note["message"]
    assert 50432 == -(-50257 // 256) * 256


@pytest.mark.parametrize(
    ("sp", "tp", "parallel", "factor"),
    [(2, 4, True, 8), (3, 4, True, 12), (4, 3, True, 24), (2, 1, True, 4), (1, 4, True, 4), (1, 4, False, 1)],
)
def test_c11_factors(sp: int, tp: int, parallel: bool, factor: int) -> None:
    assert sequence_factor(tp, sp, parallel) == factor


def test_c11_the_two_cuts_one_after_the_other() -> None:
    for seq, sp, tp, parallel in product(range(1, 201), (1, 2, 3, 4), (1, 2, 3, 4), (False, True)):
        # Each context-parallel rank takes two chunks, and tp divides the tokens of a rank.
        first = sp == 1 or seq % (2 * sp) == 0
        second = not parallel or (seq / sp) % tp == 0
        assert (seq % sequence_factor(tp, sp, parallel) == 0) == (first and second), (seq, sp, tp, parallel)


def test_c11_sequence_length(check: Check) -> None:
    text = "--seq-length 4100 --context-parallel-size 2 --tensor-model-parallel-size 4 --sequence-parallel\n"
    (finding,) = problems(check({"args.txt": text}, status=1))
    assert finding["path"] == "--seq-length"
    assert "= 8" in finding["message"]
    assert "2050 mod 4 = 2" in finding["message"]
    assert finding["works"] == ["4096", "4104"]
    for seq in finding["works"]:
        check({"args.txt": text.replace("4100", seq)}, status=0)


LINKS = {
    name: {
        "bytes_per_second": {"value": rate, "source": "made up"},
        "latency_seconds": {"value": 0, "source": "made up"},
        "efficiency": {"value": 1, "source": "made up"},
    }
    for name, rate in (("intra_node", 1e11), ("inter_node", 1e10))
}
CLUSTER = {"nodes": [2, 4], "preset": "a100-80gb", **LINKS}


def test_c29_two_devices_here_four_there(check: Check) -> None:
    check.write("cluster.json", CLUSTER)
    found = check({"ds.json": DS}, "--cluster", "cluster.json", "--tp", "2", status=0)
    assert found["findings"] == []
    assert found["resolved"]["local_ranks"] == [0, 1, 0, 1, 2, 3]
    assert found["resolved"]["tp_groups"] == [[0, 1], [2, 3], [4, 5]]
    assert found["resolved"]["dp"] == 3


def test_c29_a_group_of_four(check: Check) -> None:
    check.write("cluster.json", CLUSTER)
    (finding,) = problems(check({"ds.json": DS}, "--cluster", "cluster.json", "--tp", "4", status=1))
    assert "(2, 3, 4, 5)" in finding["message"]
    assert "devices 0, 1 are idle" in finding["message"]
    assert finding["works"] == ["4 devices", "tp 1", "tp 2", "tp 3", "tp 6"]


def test_c29_the_first_four_ranks_cross_the_slow_link(check: Check) -> None:
    check.write("cluster.json", CLUSTER)
    found = check({"ds.json": DS}, "--cluster", "cluster.json", "--tp", "4", "--devices", "4", status=0)
    idle, crossing = found["findings"]
    assert "devices 4, 5 are idle" in idle["message"]
    assert "ranks 0, 1, 2, 3; the link between nodes is 10 times slower" in crossing["message"]
    assert crossing["works"] == ["tp 2"]


def test_c29_three_replicas_need_a_batch_that_three_divides(check: Check) -> None:
    check.write("cluster.json", CLUSTER)
    found = check({"ds.json": {"train_batch_size": 32}}, "--cluster", "cluster.json", "--tp", "2", status=1)
    assert problems(found)[0]["works"] == ["train_batch_size: 30", "train_batch_size: 33"]


def test_ranks_of_unlike_nodes(check: Check) -> None:
    found = check({"ds.json": DS}, "--cluster", "2xh100-80gb+2xa100-40gb", "--tp", "4", status=0)
    assert found["resolved"]["rank_devices"] == ["h100-80gb"] * 2 + ["a100-40gb"] * 2
    assert found["resolved"]["local_ranks"] == [0, 1, 0, 1]
    (crossing,) = found["findings"]
    # The slower of both nodes' links, inside and between.
    kinds = parse_cluster("2xh100-80gb+2xa100-40gb").kinds
    near = min(kind.intra_node.reached_bytes_per_second for kind in kinds)
    far = min(kind.inter_node.reached_bytes_per_second for kind in kinds)
    assert f"is {near / far:.3g} times slower" in crossing["message"]


def test_more_processes_than_devices(check: Check) -> None:
    found = check({"ds.json": DS}, "--cluster", "1x4xa100-80gb", "--devices", "8", "--model", "gpt3-125m", status=1)
    assert "8 processes, and 1x4xa100-80gb has 4 devices" in problems(found)[0]["message"]


@pytest.mark.parametrize(
    ("flag", "value", "own"), [("--num-layers", 6, 4), ("--num-attention-heads", 6, 12), ("--hidden-size", 48, 96)]
)
def test_arguments_that_describe_another_model(check: Check, flag: str, value: int, own: int) -> None:
    check.write("model.json", gpt2(12, layers=4))
    (finding,) = problems(check({"args.txt": f"{flag} {value}\n"}, "--model", "model.json", status=1))
    assert finding["path"] == flag
    assert f'{value}, and model "model" has {own}' in finding["message"]
    check({"args.txt": f"{flag} {own}\n"}, "--model", "model.json", status=0)


def test_more_stages_than_blocks(check: Check) -> None:
    check.write("model.json", gpt2(12, layers=2))
    found = check({"ds.json": DS}, "--devices", "8", "--pp", "8", "--model", "model.json", status=1)
    (finding,) = problems(found)
    assert "8 stages" in finding["message"]
    assert "some would be empty" in finding["message"]


def test_autotp_counts_its_ranks_as_replicas(check: Check) -> None:
    """As DeepSpeed's own reading of the batch does, which knows nothing of the groups yet."""
    config = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2}
    tp = {"tensor_parallel": {"autotp_size": 2}}
    (finding,) = problems(check({"ds.json": {**config, **tp}}, "--devices", "8", status=1))
    assert "dp 8 = 16" in finding["message"]
    assert "train_batch_size: 16" in finding["works"]
    found = check({"ds.json": {**config, **tp, "train_batch_size": 16}}, "--devices", "8", status=0)
    (note,) = found["findings"]
    assert "train_batch_size 16 is 8 samples" in note["message"]
    assert (found["resolved"]["dp"], found["resolved"]["samples"]) == (4, 8)
    check({"ds.json": config}, "--devices", "8", "--tp", "2", status=0)
