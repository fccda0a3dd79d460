"""Galvatron's files: what a layer takes and keeps by them, and what in them can't be."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from partita.cli.options import problem
from partita.cost.alike import alike
from partita.cost.precision import peak_flops
from partita.errors import InputError
from partita.planner import plan
from partita.planner.joint.kinds import BlockCut
from partita.planner.joint.price import Pricing
from partita.planner.joint.uniform import Uniform, Way

FOLDER = Path(__file__).parents[1] / "data/published/galvatron"
COMPUTATION = "computation_profiling_bf16_llama2-7b_all.json"
MEMORY = "memory_profiling_bf16_llama2-7b_all.json"
MIB = 2**20


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps({
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048,
    }))  # fmt: skip
    return str(path)


def stated(model, folder=FOLDER, seq=2048, precision="bf16", memory=None, batch=64):
    words = (model, "1x8xa100-80gb", None, batch, seq, precision, "adam", memory, "partita", ())
    return problem(*words, str(folder))


def test_a_layer_takes_and_keeps_what_the_files_say(llama):
    question = stated(llama)
    pricing = Pricing(question, alike(question.graph))
    times, memory = (json.loads((FOLDER / name).read_text()) for name in (COMPUTATION, MEMORY))
    for tp, micro in ((1, 1), (2, 4), (8, 12)):
        held = Way(pricing, Uniform(tp=tp, dp=8 // tp, micro=micro)).table.prices.held_bytes[0, :, 0]
        costs, device = pricing.kinds.costs(BlockCut(tp)), question.cluster.device
        peak = peak_flops(device, question.precision)
        layer = times[f"layertype_0_bsz{micro}_seq2048"] * 1e-3 * micro / tp
        assert costs[1].passes(device, peak, float(micro)) == pytest.approx((layer, 2 * layer))
        rest = times[f"layertype_other_bsz{micro}_seq2048"] * 1e-3 * micro / tp
        assert costs[-1].passes(device, peak, float(micro))[0] == pytest.approx(rest)
        kept = memory["layertype_0_sp"]["2048"]["tp_activation_per_bsz_dict"][str(tp)]
        assert held[1:33] == pytest.approx([kept * MIB * micro] * 32)
        last = memory["other_memory_pp_on_last_sp"]["2048"]["activation"][str(tp)]
        assert held[-1] == pytest.approx(last * MIB * micro)
    # 154.203 MiB a millisecond between 8 GPUs.
    assert question.cluster.kind.intra_node.reached_bytes_per_second == pytest.approx(154.203 * MIB * 1e3)


@pytest.mark.slow
def test_less_memory_takes_longer(llama):
    plans = [plan(stated(llama, memory=gib * 2**30)) for gib in (36, 24, 16)]
    steps = [found.predicted.step_seconds for found in plans]
    assert steps == sorted(steps)
    for gib, found in zip((36, 24, 16), plans, strict=True):
        assert max(found.predicted.peak_bytes.values()) <= gib * 2**30
        assert found.search.optimal
        # Of stages with each tp.
        said = [re.search(r"\(Galvatron\): (\d+) of (\d+) blocks are measured", reason) for reason in found.reasons]
        counts = [(int(one[1]), int(one[2])) for one in said if one]
        assert [sum(each) for each in zip(*counts, strict=True)] == [34, 34]
    # All 64 samples by the layers' own times, without anything else: 64 · 32 · 3 · 3.9 ms over 8 GPUs.
    assert 64 * 32 * 3 * 3.9e-3 / 8 < steps[0] < 1.5 * 64 * 32 * 3 * 3.9e-3 / 8


def changed(folder: Path, name: str, **values: object) -> Path:
    copy = folder / "profile"
    shutil.copytree(FOLDER, copy)
    (copy / name).write_text(json.dumps(json.loads((copy / name).read_text()) | values))
    return copy


def test_what_cant_be(llama, tmp_path):
    folder = changed(tmp_path, COMPUTATION, layertype_0_bsz3_seq2048=-4.1)
    with pytest.raises(InputError) as error:
        stated(llama, folder)
    assert f"{folder / COMPUTATION}: layertype_0_bsz3_seq2048 = -4.1" in str(error.value)


def test_what_is_missing(llama, tmp_path):
    with pytest.raises(InputError, match="no computation_profiling"):
        stated(llama, tmp_path)
    with pytest.raises(InputError, match=r"measured for a sequence of \[2048\], not 1024; --seq 2048 works"):
        stated(llama, seq=1024)
    with pytest.raises(InputError, match='no file of precision "fp16"'):
        stated(llama, precision="fp16")
    with pytest.raises(InputError, match="it has 2 kinds of layers"):
        stated(llama, changed(tmp_path, COMPUTATION, layertype_1_bsz1_seq2048=4.0))
