"""Graphs as files: what is written is read back equal, and a damaged file is an error that names the place."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from partita.errors import InputError
from partita.graph import Graph, load_graph, save_graph
from partita.plugins.capture_huggingface import capture_config


@pytest.fixture(scope="module")
def graph() -> Graph:
    values = {"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 11}
    return capture_config(values, samples=2, seq=4, name="small")


def test_written_and_read_again(graph, tmp_path):
    path = tmp_path / "graph.json"
    save_graph(graph, path)
    assert load_graph(path) == graph
    text = path.read_text()
    save_graph(load_graph(path), path)
    assert path.read_text() == text


def at(*keys: Any, value: Any) -> Callable[[dict], None]:
    def damage(content: dict) -> None:
        place: Any = content
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return damage


def without(*keys: Any) -> Callable[[dict], None]:
    def damage(content: dict) -> None:
        place: Any = content
        for key in keys[:-1]:
            place = place[key]
        del place[keys[-1]]

    return damage


def swap_blocks(content: dict) -> None:
    content["blocks"][1:3] = content["blocks"][2:0:-1]


def repeat(key: str, index: int) -> Callable[[dict], None]:
    return lambda content: content[key].append(content[key][index])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (without("ops"), ["ops", "required"]),
        (without("ops", 3, "kind"), ["ops.3.kind", "required"]),
        (without("tensors", 0, "shape"), ["tensors.0.shape", "required"]),
        (at("speed", value=3), ["speed", "unexpected keyword"]),
        (at("ops", 2, "color", value="red"), ["ops.2.color", "unexpected keyword", "red"]),
        (at("tensors", 1, "shape", value="3x4"), ["tensors.1.shape", "'3x4'"]),
        (at("tensors", 1, "shape", value=[3, 4.5]), ["tensors.1.shape.1", "4.5"]),
        (at("samples", value="two"), ["samples", "'two'"]),
        (at("version", value=2), ["version", "found 2"]),
        (at("tensors", 0, "role", value="weight"), ["tensors.0.role", "'parameter'", "'weight'"]),
        (at("loss", "weighting", value="words"), ["loss.weighting", "'words'"]),
        (at("tensors", 2, "dtype", value="float8"), ['dtype "float8"', "transformer.wte.weight", "bfloat16"]),
        (at("tensors", 2, "shape", value=[-1, 8]), ['"transformer.wte.weight"', "[-1, 8]"]),
        (at("ops", 1, "inputs", 0, value="nowhere"), ['op "transformer.wpe" reads "nowhere"', 'graph "small"']),
        (at("ops", 0, "inputs", 0, value="transformer.add"), ['"transformer.wte" reads "transformer.add" before']),
        (at("ops", 0, "outputs", 0, value="nothing"), ['op "transformer.wte" makes "nothing"', "unknown"]),
        (at("ops", 1, "outputs", 0, value="transformer.wte"), ['"transformer.wpe" makes "transformer.wte"', "before"]),
        (at("ops", 1, "name", value="transformer.wte"), ['op "transformer.wte" occurs twice']),
        (at("ops", 0, "block", value="start"), ['op "transformer.wte"', 'block "start"', "'embedding'"]),
        (at("ops", 1, "block", value="head"), ['block "embedding" comes after', 'block "head"']),
        (swap_blocks, ['"transformer.h.0"', "comes after", '"transformer.h.1"']),
        (at("blocks", 2, "name", value="transformer.h.0"), ['block "transformer.h.0" occurs twice']),
        (repeat("blocks", 1), ['block "transformer.h.0" occurs twice']),
        (repeat("tensors", 0), ['tensor "input_ids" is defined twice']),
        (at("blocks", 0, "parameters", value=[]), ["belong to one block", "transformer.wpe.weight"]),
        (lambda c: c["blocks"][1]["parameters"].append("transformer.wte.weight"), ["belong", "transformer.wte.weight"]),
        (lambda c: c["tensors"].append({"name": "loose", "shape": [2]}), ['no op makes the tensor "loose"']),
        (at("inputs", 0, value="transformer.wte.weight"), ['"transformer.wte.weight"', "role parameter"]),
        (at("outputs", 0, value="logits"), ['"logits"', "no op makes it"]),
        (at("loss", "tensor", value="loss"), ['"loss"', "no op makes it"]),
        (at("loss", "targets", value="targets"), ['"targets"', "no op makes it"]),
        (at("aliases", "lm_head.weight", value="lm_head.bias"), ['"lm_head.weight"', '"lm_head.bias"']),
    ],
)
def test_a_damaged_file_names_the_place(damage, words, graph, tmp_path):
    path = tmp_path / "graph.json"
    save_graph(graph, path)
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError) as error:
        load_graph(path)
    for word in [str(path), *words]:
        assert word in str(error.value), f"{word!r} is not in: {error.value}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["no such file"]),
        ("", ["empty"]),
        ('{"name": "a",\n "samples": }', ["line 2", "column 13"]),
        ('{"name": "a", "name": "b"}', ['"name" occurs twice']),
        ("[]", ["the whole value"]),
    ],
)
def test_what_is_no_graph_at_all(content, words, tmp_path):
    path = tmp_path / "graph.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError) as error:
        load_graph(path)
    for word in [str(path), *words]:
        assert word in str(error.value), f"{word!r} is not in: {error.value}"
