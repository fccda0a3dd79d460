"""A configuration and the exported model must plan alike: blocks, parameters, FLOPs, cuts, bytes between blocks.

Only the parameters' order inside a block may differ (an exported ``addmm`` reads the bias before the weight), and
names of values, which the two can't share.
"""

from __future__ import annotations

import pytest

from partita.cost.crossing import crossing
from partita.cost.flops import block_flops
from partita.errors import ModelError
from partita.graph import Graph, load_graph, save_graph
from partita.graph.cuts import CutClass, block_cuts, unknown_kinds
from partita.graph.model import ITEM_BYTES

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from partita.plugins.capture_torch import capture_module
from tests.capture.models import NAMES, SAMPLES, SEQ, build, exported, from_config

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", NAMES)
def test_blocks_and_parameters_are_the_same_and_the_models(name: str) -> None:
    config, export = from_config(name), exported(name)
    assert [block.name for block in config.blocks] == [block.name for block in export.blocks]
    for one, other in zip(config.blocks, export.blocks, strict=True):
        assert set(one.parameters) == set(other.parameters), one.name
        assert len(other.parameters) == len(set(other.parameters))
        assert config.block_parameter_count(one.name) == export.block_parameter_count(one.name)
    with torch.device("meta"):
        model = build(name)
    shapes = {key: tuple(parameter.shape) for key, parameter in model.named_parameters()}
    for graph in (config, export):
        assert {t.name: t.shape for t in graph.tensors if t.role == "parameter"} == shapes
        assert graph.parameter_count == sum(parameter.numel() for parameter in model.parameters())
        assert graph.aliases == config.aliases
        assert graph.shared_parameters == config.shared_parameters


@pytest.mark.parametrize("name", NAMES)
def test_inputs_and_loss_are_the_same(name: str) -> None:
    config, export = from_config(name), exported(name)
    assert config.inputs == export.inputs
    assert [config.tensor[key] for key in config.inputs] == [export.tensor[key] for key in config.inputs]
    assert (config.samples, config.seq) == (export.samples, export.seq)
    losses = config.loss, export.loss
    assert None not in losses
    assert (losses[0].weighting, losses[0].ignore_index) == (losses[1].weighting, losses[1].ignore_index)
    for graph in (config, export):
        # What is counted is what the op reads: in causal models the labels are shifted, one target less a sample.
        loss = graph.producer[graph.loss.tensor]
        assert loss.kind == "cross_entropy"
        assert graph.loss.targets == loss.inputs[1]
        assert graph.tensor[graph.loss.targets].elements == (SAMPLES if graph.seq is None else SAMPLES * SEQ)
        if name.startswith(("gpt", "llama")):
            assert graph.loss.targets in graph.producer


@pytest.mark.parametrize("name", NAMES)
def test_flops_of_each_block_are_the_same(name: str) -> None:
    config, export = from_config(name), exported(name)
    found = {block.name: block_flops(config, block.name) for block in config.blocks}
    assert found == {block.name: block_flops(export, block.name) for block in export.blocks}
    assert all(flops > 0 for block, flops in found.items() if block not in ("embedding", "between.0"))


@pytest.mark.parametrize("name", NAMES)
def test_bytes_between_blocks_are_the_same(name: str) -> None:
    ours, theirs = (crossing(graph, ITEM_BYTES.__getitem__) for graph in (from_config(name), exported(name)))
    assert ours.forward_bytes.tolist() == theirs.forward_bytes.tolist()
    assert ours.backward_bytes.tolist() == theirs.backward_bytes.tolist()
    assert (ours.forward_bytes[1:-1] > 0).all()


def described(graph: Graph, cut: CutClass) -> tuple[object, ...]:
    """A class without the names of its values: what is cut, by what limits, and how much is all-reduced."""
    parameters = {name: dim for name, dim in cut.dims.items() if graph.tensor[name].role == "parameter"}
    summed = [graph.tensor[name].elements for name in cut.reductions]
    entered = [graph.tensor[name].elements for name in cut.entries]
    return cut.name, cut.size, cut.pads, cut.limits, parameters, summed, entered


@pytest.mark.parametrize("name", NAMES)
def test_cuts_of_each_block_are_the_same(name: str) -> None:
    config, export = from_config(name), exported(name)
    for block in config.blocks:
        ours, theirs = ([described(graph, cut) for cut in block_cuts(graph, block.name)] for graph in (config, export))
        assert ours == theirs, block.name
        assert unknown_kinds(config, block.name) == unknown_kinds(export, block.name) == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_graph_is_loaded_equal(name: str, tmp_path) -> None:
    for graph in (from_config(name), exported(name)):
        save_graph(graph, tmp_path / "graph.json")
        assert load_graph(tmp_path / "graph.json") == graph


def test_t5_position_biases_keep_the_heads_whole() -> None:
    # One tensor [.., heads, s, t] is made in a stack's first block and read by all: neighbours would have to cut alike.
    for graph in (from_config("t5-gated-tiny"), exported("t5-gated-tiny")):
        for block in graph.blocks:
            assert "heads" not in {cut.name for cut in block_cuts(graph, block.name)}, block.name


def test_an_unread_bias_is_counted_from_a_configuration_and_refused_at_export() -> None:
    graph = from_config("bert-tiny")
    unread = "cls.predictions.bias"
    assert unread in graph.blocks[-1].parameters
    assert unread not in graph.parameter_users
    with pytest.raises(ModelError, match=f"loss does not depend on: {unread}; freeze or remove"):
        exported("bert-tiny")

    def frozen() -> torch.nn.Module:
        model = build("bert-tiny")
        model.get_parameter(unread).requires_grad_(False)
        return model

    ids = torch.zeros(SAMPLES, SEQ, dtype=torch.int64)
    export = capture_module(frozen, {"input_ids": ids, "labels": ids}, name="bert-tiny").graph
    assert [block.name for block in export.blocks] == [block.name for block in graph.blocks]
    for one, other in zip(graph.blocks, export.blocks, strict=True):
        assert set(one.parameters) - {unread} == set(other.parameters)
        assert block_flops(graph, one.name) == block_flops(export, one.name)


def test_dropout_is_in_both_at_the_same_places() -> None:
    for name, count in {"gpt2-dropout": 1 + 2 * 3, "gpt2-tiny": 0, "bert-tied": 1 + 2 * 2}.items():
        for graph in (from_config(name), exported(name)):
            drops = [op for op in graph.ops if op.kind in ("dropout", "native_dropout")]
            dropping = [op for op in drops if op.attributes.get("p") or op.attributes.get("args", [0, 0])[1]]
            assert len(dropping) == count, name
