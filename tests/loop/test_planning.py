"""The plan that a key and a DeepSpeed configuration ask for: what is held stays held, what it costs is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from partita.adapters.deepspeed.planning import chosen, this_cluster, unfit, words_of
from partita.adapters.deepspeed.request import read_request
from partita.errors import Infeasible, InputError, PlanError
from partita.graph import Graph
from partita.key import parse_key
from partita.plan import Plan, save_plan
from partita.plugins.capture_huggingface import capture_config

CONFIG = Path(__file__).parent.parent / "data" / "configs" / "gpt2-tiny.json"
A100 = ("NVIDIA A100-SXM4-80GB", 80 * 10**9)
H100 = ("NVIDIA H100 80GB HBM3", 80 * 10**9)


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Three layers of four heads, two samples of 16 tokens."""
    return capture_config(json.loads(CONFIG.read_text()), samples=2, seq=16, name="gpt2")


def plan(
    graph: Graph, key: dict[str, Any] | None = None, config: dict[str, Any] | None = None, ranks: int = 4,
    recompute: bool = False,
) -> tuple[Plan, list[str]]:  # fmt: skip
    """For processes of this machine, each of which calls the model with two samples."""
    found = parse_key(key or {})
    cluster = this_cluster(found, [None] * ranks, ranks)
    config = {"train_micro_batch_size_per_gpu": 2, **(config or {})}
    return chosen(graph, cluster, found, read_request(config, cluster.devices, None, recompute))


def zero(stage: int) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage}}


@pytest.mark.parametrize(
    ("key", "config", "wanted"),
    [
        # pp, tp, dp, ZeRO; None is the planner's to choose.
        ({"pipeline": "off", "tensor_parallel": "off"}, {}, (1, 1, 4, None)),
        ({"pipeline": "off", "fix": {"tp": 4}}, {}, (1, 4, 1, None)),
        ({"fix": {"pp": 2, "tp": 2}}, {}, (2, 2, 1, 0)),
        ({"fix": {"pp": 2, "dp": 2}}, zero(1), (2, 1, 2, 1)),
        ({}, zero(2), (1, 1, 4, 2)),
        ({}, zero(3), (1, 1, 4, 3)),
        ({"fix": {"zero": 3}}, {}, (1, 1, 4, 3)),
        ({"fix": {"zero": 3}}, zero(3), (1, 1, 4, 3)),
        ({}, zero(0), (None, None, None, 0)),
        ({"fix": {"dp": 4}}, zero(0), (1, 1, 4, 0)),
    ],
)
def test_what_is_held(
    graph: Graph, key: dict[str, Any], config: dict[str, Any], wanted: tuple[int | None, ...]
) -> None:
    found, _ = plan(graph, key, config)
    stage = found.stages[0]
    numbers = (len(found.stages), stage.tp, stage.dp, stage.strategies[0].zero)
    assert [want for want, number in zip(wanted, numbers, strict=True) if want not in (None, number)] == []
    assert found.global_batch == 8
    assert sorted(found.devices) == [0, 1, 2, 3]
    assert unfit(found) is None


def test_switches(graph: Graph) -> None:
    assert len(plan(graph, {"pipeline": "on"})[0].stages) > 1
    assert plan(graph, {"tensor_parallel": "on"})[0].stages[0].tp > 1
    both = plan(graph, {"pipeline": True, "tensor_parallel": True})[0]
    assert (len(both.stages), both.stages[0].tp) == (2, 2)
    alone = plan(graph, {"pipeline": "off", "tensor_parallel": "off"})[0]
    assert (len(alone.stages), alone.stages[0].tp) == (1, 1)


def test_what_the_users_settings_cost(graph: Graph) -> None:
    free, nothing = plan(graph)
    held, sentences = plan(graph, {}, zero(3))
    assert nothing == []
    (sentence,) = sentences
    costs = held.predicted.step_seconds / free.predicted.step_seconds
    assert sentence.startswith(f'"zero_optimization.stage": 3 is kept and costs {100 * (costs - 1):.0f}%')
    assert words_of(free) in sentence
    recomputed, (sentence,) = plan(graph, {}, {}, recompute=True)
    assert all(strategy.recompute == "full" for stage in recomputed.stages for strategy in stage.strategies)
    assert sentence.startswith("recomputing all activations is kept and costs ")
    # What the key holds is no surprise to who wrote it.
    assert plan(graph, {"fix": {"zero": 3}}, zero(3))[1] == []


@pytest.mark.parametrize(
    ("key", "config", "error", "words"),
    [
        ({"fix": {"zero": 1}}, zero(2), InputError, ['"zero_optimization.stage" is 2', "zero=1", "remove one"]),
        ({"pipeline": "on"}, zero(3), PlanError, ["zero=3", "pp=2", "zero=0 and 1"]),
        ({"tensor_parallel": "on"}, zero(2), PlanError, ["ZeRO stage 2 with tp=2", "go with tp=1"]),
        ({"fix": {"tp": 2, "zero": 2}}, {}, PlanError, ["ZeRO stage 2 with tp=2"]),
        ({"fix": {"zero": 3, "dp": 4, "micro_batches": 2}}, {}, PlanError, ["ZeRO stage 3", "2 micro-batches"]),
        ({"fix": {"dp": 2, "pp": 1, "tp": 1}}, {}, PlanError, ["devices [2, 3] idle", "every rank"]),
        ({"fix": {"tp": 3}}, {}, PlanError, ["tp=3", "heads=4", "1, 2 and 4 do"]),
        ({"fix": {"dp": 3}}, {}, PlanError, ["dp=3", "8"]),
        ({"memory_gib": 1e-4}, {}, Infeasible, ["nothing fits 107,374 bytes", "the least is"]),
    ],
)
def test_conflicts(graph: Graph, key: dict[str, Any], config: dict[str, Any], error: type, words: list[str]) -> None:
    with pytest.raises(error) as caught:
        plan(graph, key, config)
    assert [word for word in words if word not in str(caught.value)] == []


def test_recomputation_that_is_held_off_and_on(graph: Graph) -> None:
    with pytest.raises(InputError, match=r"activation checkpointing is on and .* recompute=none; turn one"):
        plan(graph, {"fix": {"recompute": "none"}}, recompute=True)


def test_one_rank_has_no_pipeline(graph: Graph) -> None:
    with pytest.raises(PlanError, match="pp=2 needs 2 devices, the cluster has 1"):
        plan(graph, {"pipeline": "on"}, ranks=1)


@pytest.mark.parametrize(
    ("key", "ranks", "local", "gpu", "wanted"),
    [
        ({}, 4, 4, None, (4,)),
        ({"cluster": "cpu"}, 4, 4, None, (4,)),
        ({}, 8, 8, A100, (8,)),
        ({}, 8, 4, A100, (4, 4)),
        ({"cluster": "2x4xh100-80gb"}, 8, 8, A100, (4, 4)),
        ({"cluster": "h200"}, 8, 4, A100, (4, 4)),
    ],
)
def test_the_cluster(key: dict[str, Any], ranks: int, local: int, gpu: Any, wanted: tuple[int, ...]) -> None:
    found = this_cluster(parse_key(key), [gpu] * ranks, local)
    assert found.nodes == wanted
    assert found.devices == ranks


def test_nodes_of_unlike_gpus() -> None:
    found = this_cluster(parse_key({}), [H100, H100, A100, A100, A100, A100], 2)
    assert (found.name, found.nodes) == ("1x2xh100-80gb+2x2xa100-80gb", (2, 2, 2))
    named = this_cluster(parse_key({"cluster": "a100-80gb"}), [H100, A100], 2)
    assert (named.nodes, named.device.name) == ((2,), "a100-80gb")
    with pytest.raises(InputError, match="node 0 has devices of a100-80gb and h100-80gb; a node's devices must be"):
        this_cluster(parse_key({}), [H100, A100], 2)


@pytest.mark.parametrize(
    ("key", "gpu", "words"),
    [
        ({"cluster": "8xh200"}, A100, ['"partita.cluster": 8xh200 has 8 devices and the job 4', "start 8", "dry_run"]),
        ({}, ("GeForce 1060", 6 * 10**9), ['nothing is known of "GeForce 1060"', '"cluster"']),
        ({"cluster": "8xh2000"}, A100, ["h2000"]),
        ({"cluster": "no-such.json"}, A100, ["no-such.json"]),
    ],
)
def test_no_cluster(key: dict[str, Any], gpu: Any, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        this_cluster(parse_key(key), [gpu] * 4, 4)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_dry_run_may_be_for_more_devices_than_there_are(graph: Graph) -> None:
    assert this_cluster(parse_key({"cluster": "2x8xh200", "dry_run": True}), [None] * 2, 2).devices == 16


@pytest.fixture
def file(graph: Graph, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    save_plan(plan(graph, {"fix": {"pp": 2, "dp": 2, "zero": 1}})[0], path)
    return path


def test_a_plan_from_a_file(graph: Graph, file: Path) -> None:
    found, sentences = plan(graph, {"plan": str(file)})
    assert words_of(found).startswith("pp=2, tp=1, dp=2, ZeRO 1,")
    assert sentences == []
    assert plan(graph, {"plan": str(file)}, zero(1))[0] == found


@pytest.mark.parametrize(
    ("config", "ranks", "change", "words"),
    [
        ({"train_micro_batch_size_per_gpu": 4}, 4, {}, ["global batch is 8", "needs 16 (4 a rank and call, 4 ranks)"]),
        ({}, 2, {}, ["global batch is 8", "needs 4"]),
        ({"bf16": {"enabled": True}}, 4, {}, ["precision is fp32", "needs bf16"]),
        (zero(2), 4, {}, ['"zero_optimization.stage" is 2', "ZeRO stage 1", "remove the key"]),
        ({}, 4, {"target": "partita"}, ["target is partita", "needs deepspeed"]),
        ({}, 4, None, ["no such file"]),
    ],
)
def test_a_plan_that_is_not_for_this_job(
    graph: Graph, file: Path, config: dict[str, Any], ranks: int, change: dict[str, Any] | None, words: list[str]
) -> None:
    if change is None:
        file.unlink()
    elif change:
        save_plan(replace(plan(graph, {"plan": str(file)})[0], **change), file)
    with pytest.raises(InputError) as caught:
        plan(graph, {"plan": str(file)}, config, ranks)
    assert [word for word in [str(file), *words] if word not in str(caught.value)] == []


def test_words(graph: Graph) -> None:
    found, _ = plan(graph, {"fix": {"pp": 2, "dp": 2, "zero": 1, "micro_batches": 2, "recompute": "full"}})
    assert words_of(found) == "pp=2, tp=1, dp=2, ZeRO 1, 2 micro-batches of 2, activations recomputed"
