"""Graphs read from HuggingFace configurations, held against the models that transformers builds from the same file."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from partita.errors import InputError, ModelError, PartitaError
from partita.graph import Graph, Op, check, load_graph, save_graph
from partita.plugins.capture_huggingface import FAMILIES, capture_config

CONFIGS = Path(__file__).parent.parent / "data" / "configs"
BIG = {
    "gpt2": 124_439_808,
    "gpt3-175b": 174_604_259_328,
    "gpt-neox-20b": 20_554_567_680,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "bert-base": 109_514_298,
    "t5-small": 60_506_624,
    "t5-large": 737_668_096,
    "vit-base": 86_567_656,
    "swin-tiny": 28_288_354,
}
TINY = [
    "gpt2-tiny", "gpt-neox-tiny", "llama-tiny", "bert-tiny", "bert-plain", "t5-gated-tiny", "vit-tiny", "swin-odd"
]  # fmt: skip


def numbered(path: str, count: int) -> list[str]:
    return [f"{path}.{index}" for index in range(count)]


BLOCKS = {
    "gpt2": ["embedding", *numbered("transformer.h", 12), "head"],
    "gpt-neox-20b": ["embedding", *numbered("gpt_neox.layers", 44), "head"],
    "llama-3-8b": ["embedding", *numbered("model.layers", 32), "head"],
    "bert-base": ["embedding", *numbered("bert.encoder.layer", 12), "head"],
    "bert-plain": ["embedding", *numbered("encoder.layer", 2), "head"],
    "t5-gated-tiny": ["embedding", *numbered("encoder.block", 2), "between.0", *numbered("decoder.block", 3), "head"],
    "vit-base": ["embedding", *numbered("vit.layers", 12), "head"],
    "swin-tiny": [
        "embedding",
        *numbered("swin.encoder.layers.0.blocks", 2),
        "swin.encoder.layers.0.downsample",
        *numbered("swin.encoder.layers.1.blocks", 2),
        "swin.encoder.layers.1.downsample",
        *numbered("swin.encoder.layers.2.blocks", 6),
        "swin.encoder.layers.2.downsample",
        *numbered("swin.encoder.layers.3.blocks", 2),
        "head",
    ],
}


def config(name: str) -> dict:
    return json.loads((CONFIGS / f"{name}.json").read_text())


def build(name: str, device: str):
    """The model that transformers builds from the same values."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    values = config(name)
    kind = FAMILIES[values["model_type"]]
    model_class = getattr(transformers, (values.get("architectures") or kind.classes)[0], None)
    model_class = model_class or getattr(transformers, kind.classes[0])
    with torch.device(device):
        return model_class(model_class.config_class.from_dict(values))


@cache
def on_meta(name: str):
    return build(name, "meta")


def parameters(graph: Graph) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tensor.shape for tensor in graph.tensors if tensor.role == "parameter"}


@pytest.mark.parametrize("name", [*BIG, *TINY])
def test_parameters_are_those_of_the_model(name):
    graph, model = capture_config(CONFIGS / f"{name}.json"), on_meta(name)
    assert parameters(graph) == {key: tuple(value.shape) for key, value in model.named_parameters()}
    if name in BIG:
        assert graph.parameter_count == BIG[name]
    first = {id(value): key for key, value in reversed(list(model.named_parameters()))}
    every = {key: first[id(value)] for key, value in model.named_parameters(remove_duplicate=False)}
    assert graph.aliases == {key: owner for key, owner in every.items() if key != owner}


@pytest.mark.parametrize("name", [*BIG, *TINY])
def test_parameters_of_each_block_are_those_of_its_module(name):
    graph, model = capture_config(CONFIGS / f"{name}.json"), on_meta(name)
    assert check(graph) is graph
    left = {key for key, _ in model.named_parameters()}
    for block in graph.blocks:
        if "." in block.name and block.name != "between.0":
            module = {f"{block.name}.{key}" for key, _ in model.get_submodule(block.name).named_parameters()}
            assert set(block.parameters) == module
            left -= module
    other = [b for b in graph.blocks if b.name in ("embedding", "between.0", "head")]
    assert sorted(left) == sorted(key for block in other for key in block.parameters)


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_and_their_order(name):
    graph = capture_config(CONFIGS / f"{name}.json")
    assert [block.name for block in graph.blocks] == BLOCKS[name]
    ran = list(dict.fromkeys(op.block for op in graph.ops))
    assert ran == BLOCKS[name]
    borders = sum(before.block != after.block for before, after in zip(graph.ops, graph.ops[1:], strict=False))
    assert borders == len(ran) - 1  # one run of ops each


def own_call(op: Op) -> bool:
    """Whether the op is the whole call of a module, not an operator between the calls of a module's children."""
    return bool(op.module) and op.module in (op.name, op.name.rpartition("_")[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TINY, "t5-small"])
def test_every_module_is_called_in_the_order_and_with_the_shape_of_the_running_model(name):
    torch = pytest.importorskip("torch")
    model = build(name, "cpu").train()
    image = "image_size" in config(name)
    graph = capture_config(CONFIGS / f"{name}.json", samples=2, seq=None if image else 16)
    calls: list[tuple[str, tuple[int, ...]]] = []
    for path, module in model.named_modules():
        silent = (isinstance(module, torch.nn.Dropout) and module.p == 0) or isinstance(module, torch.nn.Identity)
        # What a module computes from constants and its own table is several ops in the graph, or none.
        own = ("rotary_emb", "relative_position_bias", "swin.pooler")
        if not silent and not any(module.children()) and not path.endswith(own):
            module.register_forward_hook(lambda _m, _i, out, path=path: calls.append((path, tuple(out.shape))))
    batch = {
        key: torch.zeros(graph.tensor[key].shape, dtype=getattr(torch, graph.tensor[key].dtype)) for key in graph.inputs
    }
    found = model(**batch)
    made = [(op.module, graph.tensor[op.outputs[0]].shape) for op in graph.ops if own_call(op)]
    assert made == calls
    assert [op.kind for op in graph.ops if op.kind == "cross_entropy"] == ["cross_entropy"] * (name != "bert-plain")
    if graph.loss:
        logits = graph.tensor[graph.producer[graph.loss.tensor].inputs[0]]
        assert logits.shape == tuple(found.logits.shape)
        assert graph.tensor[graph.loss.tensor].shape == tuple(found.loss.shape) == ()
    else:
        assert [graph.tensor[key].shape for key in graph.outputs] == [
            tuple(found.last_hidden_state.shape), tuple(found.pooler_output.shape)
        ]  # fmt: skip


@pytest.mark.parametrize("kind", FAMILIES)
def test_defaults_are_those_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    defaults = transformers.AutoConfig.for_model(kind)
    settings = FAMILIES[kind].settings.read({})
    passed_over = {"id2label", "num_labels", "scale_decoder_outputs", "rotary_pct", "rope_parameters"}
    derived = {"num_key_value_heads", "num_decoder_layers", "head_dim"}  # None means "as another key says"
    for key, value in settings.model_dump().items():
        if key in passed_over or (key in derived and value is None):
            continue
        there = getattr(defaults, key)
        if key in ("image_size", "patch_size") and isinstance(there, int):
            there = [there, there]
        assert value == (list(there) if isinstance(there, tuple) else there), key
    if kind == "gpt_neox":
        assert settings.rotary_pct == defaults.rope_parameters["partial_rotary_factor"]
    if kind in ("vit", "swin"):
        assert settings.classes == defaults.num_labels


@pytest.mark.parametrize("kind", FAMILIES)
def test_no_key_of_a_default_configuration_is_taken_for_a_slip(kind):
    transformers = pytest.importorskip("transformers")
    values = transformers.AutoConfig.for_model(kind).to_dict()
    values["architectures"] = None
    settings = FAMILIES[kind].settings
    whole = capture_config({**values, "model_type": kind}).parameter_count
    for key in {*settings.model_fields, *settings.also} & set(values):
        if key in ("embed_dim", "num_heads"):
            continue  # Swin writes hidden_size, which it derives, beside embed_dim
        without = {other: value for other, value in values.items() if other != key}
        assert capture_config({**without, "model_type": kind}).parameter_count == whole, key


@pytest.mark.parametrize(
    ("name", "op", "kind", "inputs", "outputs", "attributes"),
    [
        ("gpt2", "transformer.h.0.attn.c_attn", "linear", [(3, 8, 768), (768, 2304), (2304,)], [(3, 8, 2304)],
         {"transposed": True}),
        ("gpt2", "transformer.h.0.attn.split", "split", [(3, 8, 2304)], [(3, 8, 768)] * 3,
         {"dim": -1, "sizes": [768] * 3}),
        ("gpt2", "transformer.h.11.attn.attention", "attention", [(3, 8, 768)] * 3, [(3, 8, 768)],
         {"heads": 12, "kv_heads": 12, "causal": True, "dropout": 0.1}),
        ("llama-3-8b", "model.layers.0.self_attn.attention", "attention",
         [(3, 8, 4096), (3, 8, 1024), (3, 8, 1024)], [(3, 8, 4096)], {"heads": 32, "kv_heads": 8, "causal": True}),
        ("llama-3-8b", "model.layers.0.self_attn.rotary_1", "rotary", [(3, 8, 1024)], [(3, 8, 1024)],
         {"head_dim": 128}),
        ("gpt-neox-20b", "gpt_neox.layers.0.attention.split", "split", [(3, 8, 64, 288)], [(3, 8, 64, 96)] * 3,
         {"dim": -1, "sizes": [96] * 3}),
        ("gpt-neox-20b", "gpt_neox.layers.0.attention.rotary", "rotary", [(3, 8, 6144)], [(3, 8, 6144)],
         {"head_dim": 96, "rotary_dim": 24}),
        ("t5-small", "encoder.block.5.layer.0.SelfAttention.attention", "attention",
         [(3, 8, 512)] * 3 + [(1, 8, 8, 8)], [(3, 8, 512)],
         {"heads": 8, "kv_heads": 8, "causal": False, "dropout": 0.1}),
        ("bert-base", "bert.embeddings.position_embeddings", "embedding", [(512, 768), (1, 8)], [(1, 8, 768)], {}),
        ("vit-base", "vit.embeddings.patch_embeddings.projection", "conv2d",
         [(3, 3, 224, 224), (768, 3, 16, 16), (768,)], [(3, 768, 14, 14)], {"stride": [16, 16]}),
        # 8 x 8 windows of 7 x 7 tokens; the shifted layer adds a mask to the bias of each window
        ("swin-tiny", "swin.encoder.layers.0.blocks.0.attention.attention", "attention",
         [(192, 49, 96)] * 3 + [(1, 3, 49, 49)], [(192, 49, 96)], {"heads": 3, "kv_heads": 3, "causal": False}),
        ("swin-tiny", "swin.encoder.layers.0.blocks.1.attention.attention", "attention",
         [(192, 49, 96)] * 3 + [(192, 3, 49, 49)], [(192, 49, 96)], {"heads": 3, "kv_heads": 3, "causal": False}),
        ("swin-tiny", "swin.encoder.layers.0.blocks.1.roll_1", "roll", [(3, 56, 56, 96)], [(3, 56, 56, 96)],
         {"shifts": [3, 3], "dims": [1, 2]}),
        # 30 x 50 pixels in patches of 4 are 8 x 13 tokens, padded to 9 x 15 for windows of 3
        ("swin-odd", "swin.encoder.layers.0.blocks.0.pad", "pad", [(3, 8, 13, 12)], [(3, 9, 15, 12)],
         {"pad": [0, 0, 0, 2, 0, 1], "value": 0}),
        ("swin-odd", "swin.encoder.layers.0.downsample.cat", "cat", [(3, 4, 7, 12)] * 4, [(3, 4, 7, 48)],
         {"dim": -1}),
    ],
)  # fmt: skip
def test_ops_have_these_shapes(name, op, kind, inputs, outputs, attributes):
    values = config(name)
    graph = capture_config(values, samples=3, seq=None if "image_size" in values else 8)
    (found,) = (o for o in graph.ops if o.name == op)
    assert found.kind == kind
    assert [graph.tensor[key].shape for key in found.inputs] == inputs
    assert [graph.tensor[key].shape for key in found.outputs] == outputs
    assert found.attributes == attributes


@pytest.mark.parametrize("name", ["gpt2", "gpt-neox-tiny", "t5-gated-tiny", "bert-tiny", "vit-tiny", "swin-odd"])
def test_dtype_and_gradient(name):
    graph = capture_config(CONFIGS / f"{name}.json", dtype="bfloat16", samples=2)
    causal = name in ("gpt2", "gpt-neox-tiny")
    raised = [op.outputs[0] for op in graph.ops if op.kind == "to"]
    # Only causal language models compute their loss in float32.
    assert [graph.tensor[key].dtype for key in raised] == ["float32"] * causal
    assert graph.tensor[graph.loss.tensor].dtype == ("float32" if causal else "bfloat16")
    assert not [op for op in capture_config(CONFIGS / f"{name}.json").ops if op.kind == "to"]
    for tensor in graph.tensors:
        if tensor.role in ("input", "buffer") or tensor.dtype == "int64":
            assert not tensor.gradient, tensor
        if tensor.role == "parameter":
            assert tensor.gradient
            assert tensor.dtype == "bfloat16"
    for op in graph.ops:
        reaches = any(graph.tensor[key].gradient for key in op.inputs)
        assert all(graph.tensor[key].gradient == reaches for key in op.outputs), op.name


@pytest.mark.parametrize(
    ("name", "asked", "seq"),
    [
        ("gpt2", None, 1024),
        ("gpt2", 7, 7),
        ("gpt3-175b", None, 1024),
        ("gpt3-175b", 2048, 2048),
        ("bert-base", None, 512),
        ("t5-small", None, 512),
        ("t5-small", 900, 900),
        ("llama-2-7b", None, 1024),
        ("llama-2-7b", 9000, 9000),
        ("vit-base", None, None),
    ],
)
def test_seq(name, asked, seq):
    graph = capture_config(CONFIGS / f"{name}.json", seq=asked, samples=2)
    assert graph.seq == seq
    assert graph.tensor["labels"].shape == ((2,) if seq is None else (2, seq))


def test_only_the_samples_dim_of_values_grows_with_samples():
    for name in [*TINY, "swin-tiny"]:
        one, five = (capture_config(CONFIGS / f"{name}.json", samples=count) for count in (1, 5))
        for before, after in zip(one.tensors, five.tensors, strict=True):
            assert before.name == after.name
            grows = after.elements == 5 * before.elements
            assert grows or after.elements == before.elements, before.name
            assert not grows or before.shape[1:] == after.shape[1:], before.name
            assert before.role not in ("parameter", "buffer") or not grows


def test_t5_output_is_scaled_only_where_embeddings_count_as_tied():
    def scales(**keys):
        return [op.attributes for op in capture_config({**config("t5-gated-tiny"), **keys}).ops if op.kind == "scale"]

    assert scales() == []
    assert scales(tie_word_embeddings=True) == [{"factor": 20**-0.5}]
    assert scales(tie_word_embeddings=True, scale_decoder_outputs=False) == []


@pytest.mark.parametrize("name", TINY)
def test_a_saved_graph_is_loaded_equal(name, tmp_path):
    graph = capture_config(CONFIGS / f"{name}.json")
    save_graph(graph, tmp_path / "graph.json")
    assert load_graph(tmp_path / "graph.json") == graph


def test_file_folder_and_values_give_the_same_graph(tmp_path):
    values = config("gpt2-tiny")
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    from_folder = capture_config(folder)
    assert from_folder.name == "my-model"
    assert capture_config(str(folder / "config.json")) == from_folder
    assert capture_config(values, name="my-model") == from_folder
    assert capture_config(values).name == "gpt2"


def test_neither_torch_nor_transformers_is_imported():
    code = (
        "import sys; from partita.plugins.capture_huggingface import capture_config; capture_config(sys.argv[1]); "
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    path = str(CONFIGS / "gpt2.json")
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


GPT2 = {"model_type": "gpt2", "n_layer": 2}
BAD = [
    # configuration, arguments, what the message says
    ({}, {}, ['"model_type" is missing', "gpt2", "swin"]),
    ({"model_type": "gpt"}, {}, ["'gpt'", "Did you mean 'gpt2'", "Known: bert, gpt2, gpt_neox"]),
    ({"model_type": "mamba9000x"}, {}, ["'mamba9000x'", "Known: bert, gpt2, gpt_neox"]),
    ({"model_type": 7}, {}, ["model_type 7", "Known: bert"]),
    ({**GPT2, "architectures": ["GPT2ForSequenceClassification"]}, {}, ["GPT2ForSequence", "GPT2LMHeadModel"]),
    ({**GPT2, "n_embd": "768"}, {}, ["n_embd", "integer", "'768'"]),
    ({**GPT2, "n_embd": 768.5}, {}, ["n_embd", "768.5"]),
    ({**GPT2, "n_embd": True}, {}, ["n_embd", "True"]),
    ({**GPT2, "n_embd": None}, {}, ["n_embd", "None"]),
    ({**GPT2, "n_embd": [768]}, {}, ["n_embd", "[768]"]),
    ({**GPT2, "n_embd": -768}, {}, ["n_embd", "greater than or equal to 1", "-768"]),
    ({**GPT2, "vocab_size": 0}, {}, ["vocab_size", "greater than or equal to 1", "found 0"]),
    ({**GPT2, "n_head": 10**30}, {}, ["n_head", "2147483647", str(10**30)]),
    ({**GPT2, "n_layer": 1_000_000}, {}, ["n_layer", "10000", "1000000"]),
    ({**GPT2, "resid_pdrop": float("nan")}, {}, ["resid_pdrop", "finite", "nan"]),
    ({**GPT2, "resid_pdrop": float("inf")}, {}, ["resid_pdrop", "finite", "inf"]),
    ({**GPT2, "resid_pdrop": 1.5}, {}, ["resid_pdrop", "less than or equal to 1", "1.5"]),
    ({**GPT2, "hidden_size": 0}, {}, ["n_embd", "found 0", '"hidden_size" stands for n_embd']),
    ({**GPT2, "hidden_size": 64, "n_embd": 32}, {}, ['"hidden_size" (64)', '"n_embd" (32)']),
    ({**GPT2, "activation_function": "gelu_nwe"}, {}, ["activation_function", "'gelu_new'", "'gelu_nwe'"]),
    ({**GPT2, "n_head": 7}, {}, ["n_head=7", "n_embd=768", "remainder 5", "6, 8, 12", "763 or 770"]),
    ({**GPT2, "n_embd": 5, "n_head": 7}, {}, ["n_head=7", "n_embd=5", "n_head 1 and 5 would, or n_embd 7"]),
    ({**GPT2, "add_cross_attention": True}, {}, ["add_cross_attention"]),
    ({"model_type": "gpt2", "n_layers": 2}, {}, ['"n_layers" is unknown', 'did you mean "n_layer"', "12"]),
    ({"model_type": "gpt2", "num_layers": 2}, {}, ['"num_layers" is unknown', 'did you mean "n_layer"']),
    ({"model_type": "llama", "n_kv_heads": 8}, {}, ['did you mean "num_key_value_heads"']),
    ({"model_type": "bert", "hiden_size": 64}, {}, ['did you mean "hidden_size"']),
    ({"model_type": "llama", "num_key_value_heads": 5}, {}, ["num_key_value_heads=5", "num_attention_heads=32"]),
    ({"model_type": "llama", "hidden_size": 100, "head_dim": 64}, {}, ["num_attention_heads=32", "hidden_size=100"]),
    ({"model_type": "llama", "head_dim": 63}, {}, ["head_dim=63", "64 works"]),
    ({"model_type": "gpt_neox", "hidden_size": 6100}, {}, ["num_attention_heads=64", "hidden_size=6100"]),
    ({"model_type": "gpt_neox", "rope_parameters": {"partial_rotary_factor": "x"}}, {}, ["partial_rotary", "'x'"]),
    ({"model_type": "gpt_neox", "hidden_size": 64 * 5, "rotary_pct": 1.0}, {}, ["rotary_pct=1.0", "heads of 5 dims"]),
    ({"model_type": "bert", "hidden_size": 770}, {}, ["num_attention_heads=12", "hidden_size=770", "remainder 2"]),
    ({"model_type": "t5", "feed_forward_proj": "gated-mish"}, {}, ["feed_forward_proj", "gated-gelu", "gated-mish"]),
    ({"model_type": "vit", "image_size": "224"}, {}, ["image_size", "pair [height, width]", "'224'"]),
    ({"model_type": "vit", "image_size": [224, 224, 3]}, {}, ["image_size", "[224, 224, 3]"]),
    ({"model_type": "vit", "patch_size": 300}, {}, ["patch_size=[300, 300]", "image_size=[224, 224]"]),
    ({"model_type": "vit", "num_labels": 1}, {}, ["num_labels=1", "2 or more"]),
    ({"model_type": "vit", "problem_type": "regression"}, {}, ["problem_type", "regression"]),
    ({"model_type": "vit"}, {"seq": 5}, ["seq=5", "image_size"]),
    ({"model_type": "swin", "num_heads": [3, 6]}, {}, ["depths=[2, 2, 6, 2]", "num_heads=[3, 6]"]),
    ({"model_type": "swin", "num_heads": [3, 6, 12, 25]}, {}, ["num_heads[3]=25", "embed_dim * 8=768"]),
    ({"model_type": "swin", "depths": []}, {}, ["depths", "at least 1"]),
    ({"model_type": "swin", "image_size": 64}, {}, ["window_size=7", "4 x 4", "stage 2", "up to 2 works"]),
    ({"model_type": "swin", "mlp_ratio": 0.001}, {}, ["mlp_ratio=0.001", "embed_dim=96"]),
    ({"model_type": "swin", "image_size": 222, "use_absolute_embeddings": True}, {}, ["[222, 222]", "[220, 220]"]),
    (GPT2, {"seq": 1025}, ["seq=1025", "1024 learned positions", "n_positions=1024"]),
    ({"model_type": "bert"}, {"seq": 513}, ["seq=513", "max_position_embeddings=512"]),
    (GPT2, {"seq": 0}, ["seq=0", "from 1"]),
    (GPT2, {"seq": 2.5}, ["seq=2.5"]),
    (GPT2, {"samples": -3}, ["samples=-3"]),
    (GPT2, {"samples": True}, ["samples=True"]),
    (GPT2, {"dtype": "float8"}, ['dtype "float8"', "float16"]),
    (GPT2, {"dtype": "int64"}, ['dtype "int64"']),
]


@pytest.mark.parametrize(("values", "arguments", "words"), BAD)
def test_bad_values_are_quoted_with_what_would_work(values, arguments, words):
    with pytest.raises((ModelError, InputError)) as error:
        capture_config(values, **arguments)
    for word in words:
        assert word in str(error.value), f"{word!r} is not in: {error.value}"


def test_swin_windows_that_a_message_names_do_work():
    small = {"model_type": "swin", "image_size": 64}
    assert capture_config({**small, "window_size": 2}).blocks
    with pytest.raises(ModelError, match="up to 2 works"):
        capture_config({**small, "window_size": 3})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"model_type": "gpt2",\n "n_embd": }', ["line 2", "column 12"]),
        ("[1, 2]", ["JSON object"]),
        ("", ["empty"]),
        ('{"model_type": "gpt2", "n_embd": NaN}', ["config.json", "n_embd", "nan"]),
        ('{"model_type": "gpt2", "n_embd": 1e999}', ["n_embd", "inf"]),
        (None, ["no such file"]),
    ],
)
def test_bad_files_are_named(content, words, tmp_path):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(PartitaError) as error:
        capture_config(tmp_path)
    for word in [str(tmp_path / "config.json"), *words]:
        assert word in str(error.value), f"{word!r} is not in: {error.value}"
