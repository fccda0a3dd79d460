"""The Evoformer recipe: its algorithms against their formulas, its graph against the module, sizes, and samples."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from partita.cli.main import main
from partita.cli.model import load_model
from partita.cost.alike import alike
from partita.cost.block import block_cost
from partita.cost.division import split_fraction
from partita.cost.precision import item_bytes
from partita.errors import ModelError
from partita.graph import Graph
from partita.graph.cuts import block_cuts, unknown_kinds
from partita.plugins.capture_torch import capture_module
from partita.recipes.alphafold2.alignments import Alignments
from partita.recipes.alphafold2.attention import ColumnAttention, RowAttention, TriangleAttention
from partita.recipes.alphafold2.depth import EXPORTED, deepened
from partita.recipes.alphafold2.evoformer import OuterProductMean, TriangleMultiplication
from partita.recipes.alphafold2.model import IGNORED, MASK, AlphaFold2, example, factory
from partita.recipes.alphafold2.sizes import SIZES, config
from tests.recipes.graphs import difference, randomised

# Together these take longer than all fast tests should.
pytestmark = pytest.mark.slow

TINY = "alphafold2-tiny"
WIDTH, PAIR_WIDTH, HEADS = 12, 8, 4


def normalised(norm: nn.LayerNorm, value: Tensor) -> Tensor:
    return layer_norm(value, value.shape[-1:], norm.weight, norm.bias)


def attention(module: nn.Module, rows: Tensor, bias: Tensor | None) -> Tensor:
    """Algorithm 7 from line 2 on, one einsum a line; ``rows`` are normalised, ``bias`` is [b, i, j, heads]."""
    q, k, v = (
        (rows @ layer.weight.t()).unflatten(-1, (module.heads, -1))
        for layer in (module.query, module.key, module.value)
    )
    logits = torch.einsum("bsihc,bsjhc->bsijh", q, k) / q.shape[-1] ** 0.5
    weights = (logits if bias is None else logits + bias.unsqueeze(1)).softmax(3)
    found = torch.einsum("bsijh,bsjhc->bsihc", weights, v).flatten(3)
    return module.out(torch.sigmoid(module.gate(rows)) * found)


def row(module: RowAttention, msa: Tensor, pair: Tensor) -> Tensor:
    bias = normalised(module.pair_norm, pair) @ module.bias.linear.weight.t()
    return attention(module.attention, normalised(module.norm, msa), bias)


def column(module: ColumnAttention, msa: Tensor, pair: Tensor) -> Tensor:
    return attention(module.attention, normalised(module.norm, msa).transpose(1, 2), None).transpose(1, 2)


def outer(module: OuterProductMean, msa: Tensor, pair: Tensor) -> Tensor:
    msa = normalised(module.norm, msa)
    a, b = module.left(msa), module.right(msa)
    return module.out(torch.einsum("bsic,bsjd->bijcd", a, b).flatten(3) / msa.shape[1])


def triangle(equation: str):
    def multiplication(module: TriangleMultiplication, msa: Tensor, pair: Tensor) -> Tensor:
        z = normalised(module.norm, pair)
        a = torch.sigmoid(module.left_gate(z)) * module.left(z)
        b = torch.sigmoid(module.right_gate(z)) * module.right(z)
        product = normalised(module.out_norm, torch.einsum(equation, a, b))
        return torch.sigmoid(module.gate(z)) * module.out(product)

    return multiplication


def starting(module: TriangleAttention, msa: Tensor, pair: Tensor) -> Tensor:
    """Algorithm 13: o_ij = sum over k of softmax_k(q_ij k_ik + b_jk) v_ik."""
    z = normalised(module.norm, pair)
    return attention(module.attention, z, z @ module.bias.linear.weight.t())


def ending(module: TriangleAttention, msa: Tensor, pair: Tensor) -> Tensor:
    """Algorithm 14, edge by edge: o_ij = sum over k of softmax_k(q_ij k_kj + b_ki) v_kj."""
    z, own = normalised(module.norm, pair), module.attention
    q, k, v = ((z @ layer.weight.t()).unflatten(-1, (HEADS, -1)) for layer in (own.query, own.key, own.value))
    b = z @ module.bias.linear.weight.t()
    n = z.shape[1]
    found = torch.zeros_like(q)
    for i in range(n):
        for j in range(n):
            logits = torch.stack(
                [(q[:, i, j] * k[:, other, j]).sum(-1) / q.shape[-1] ** 0.5 + b[:, other, i] for other in range(n)]
            )
            found[:, i, j] = (logits.softmax(0).unsqueeze(-1) * v[:, :, j].transpose(0, 1)).sum(0)
    return own.out(torch.sigmoid(own.gate(z)) * found.flatten(3))


# A module; what the supplement says it computes; which track it reads besides the pairs, if any.
ALGORITHMS = {
    "7 row attention": (lambda: RowAttention(WIDTH, PAIR_WIDTH, HEADS), row, ("msa", "pair")),
    "8 column attention": (lambda: ColumnAttention(WIDTH, HEADS), column, ("msa",)),
    "10 outer product mean": (lambda: OuterProductMean(WIDTH, PAIR_WIDTH, 3), outer, ("msa",)),
    "11 outgoing": (
        lambda: TriangleMultiplication(PAIR_WIDTH, outgoing=True), triangle("bikc,bjkc->bijc"), ("pair",)
    ),
    "12 incoming": (
        lambda: TriangleMultiplication(PAIR_WIDTH, outgoing=False), triangle("bkic,bkjc->bijc"), ("pair",)
    ),
    "13 starting": (lambda: TriangleAttention(PAIR_WIDTH, HEADS, starting=True), starting, ("pair",)),
    "14 ending": (lambda: TriangleAttention(PAIR_WIDTH, HEADS, starting=False), ending, ("pair",)),
}  # fmt: skip


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_module_is_its_algorithm(name: str) -> None:
    build, formula, tracks = ALGORITHMS[name]
    module = randomised(build())
    generator = torch.Generator().manual_seed(0)
    given = {
        "msa": torch.randn(2, 3, 5, WIDTH, generator=generator, dtype=torch.float64),
        "pair": torch.randn(2, 5, 5, PAIR_WIDTH, generator=generator, dtype=torch.float64),
    }
    found, wanted = module(*(given[track] for track in tracks)), formula(module, **given)
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= 1e-13 * wanted.abs().max()


def exported(blocks: int, recycles: int = 2) -> Graph:
    size = replace(SIZES[TINY], blocks=blocks, recycles=recycles)
    return capture_module(lambda: AlphaFold2(size), example(TINY)(2), name=TINY, dtype=torch.float64).graph


@pytest.fixture(scope="module")
def whole() -> Graph:
    """All of the tiny model, exported."""
    return capture_module(factory(TINY), example(TINY)(2), name=TINY, dtype=torch.float64).graph


@pytest.fixture(scope="module")
def three() -> Graph:
    """The tiny model with three blocks, exported."""
    return exported(EXPORTED)


def test_the_graph_computes_what_the_module_does(whole: Graph, three: Graph) -> None:
    model, batch = randomised(factory(TINY)()), Alignments(SIZES[TINY], 0).batch(0, 2)
    for graph in (whole, deepened(three, 4)):
        errors = difference(graph, model, batch)
        assert len(errors) == 4 * 93 + 14
        assert {name: error for name, error in errors.items() if not error <= 1e-12} == {}


def test_blocks_are_those_of_each_pass_and_share_parameters(whole: Graph) -> None:
    stacks = [[f"passes.{one}.evoformer.{block}" for block in range(4)] for one in range(3)]
    assert [block.name for block in whole.blocks] == [
        "embedding", *stacks[0], "between.0", *stacks[1], "between.1", *stacks[2], "head",
    ]  # fmt: skip
    shared = whole.shared_parameters
    assert shared["passes.0.evoformer.3.row.norm.weight"] == tuple(stack[3] for stack in stacks)
    # Between two passes the letters are embedded again, and what the pass before made is added.
    assert shared["passes.0.embedding.offset.weight"] == ("embedding", "between.0", "between.1")
    assert shared["passes.1.recycle.pair_norm.bias"] == ("between.0", "between.1")
    # All of the stack's, of the embedding's and of recycling's; none of the losses'.
    assert len(shared) == 4 * 93 + 5 + 4
    assert {name.split(".")[0] for name in shared} == {"passes"}
    assert {t.name for t in whole.tensors if t.role == "parameter"} == set(dict(factory(TINY)().named_parameters()))


def test_only_the_last_pass_carries_a_gradient(whole: Graph) -> None:
    flowing = {
        block.name: {whole.tensor[name].gradient for op in whole.block_ops[block.name] for name in op.outputs}
        for block in whole.blocks
    }
    last = whole.blocks.index(next(block for block in whole.blocks if block.name == "between.1"))
    for index, (name, flags) in enumerate(flowing.items()):
        if index < last:
            assert flags == {False}, name
        elif name.startswith("passes.2.evoformer"):
            assert flags == {True}, name
        else:
            assert True in flags, name
    assert all(tensor.gradient for tensor in whole.tensors if tensor.role == "parameter")


def test_blocks_of_a_pass_are_alike(whole: Graph) -> None:
    """All own what they share, or none does; what embeds and the head stand alone."""
    groups = alike(whole)
    assert groups.kinds == (0, 1, 1, 1, 1, 5, 6, 6, 6, 6, 10, 11, 11, 11, 11, 15)
    item = item_bytes(whole, "bf16")
    for kind in (1, 6, 11):
        costs = [block_cost(whole, whole.blocks[i].name, groups.classes[kind], 1, item) for i in range(kind, kind + 4)]
        assert len({(cost.trained, cost.saved_bytes, cost.temporary_bytes, cost.trains) for cost in costs}) == 1
        assert costs[0].trained == (block_parameters(16, 8, 4, 4, 4) if kind == 1 else 0)
    for block in whole.blocks[1:5]:
        own = split_fraction(block_cuts(whole, block.name), {"heads": 2, "hidden": 2})
        classes, _ = groups.owner_cuts(block.parameters[0], 1)
        found = split_fraction(classes, {"heads": 2, "hidden": 2})
        parts = [own(name) for name in block.parameters]
        assert set(parts) == {0.5, 1.0}
        assert [found(groups.standing.get(name, name)) for name in block.parameters] == parts


@pytest.mark.parametrize("recycles", [0, 1])
def test_fewer_passes(recycles: int) -> None:
    graph = exported(2, recycles)
    size = replace(SIZES[TINY], blocks=2, recycles=recycles)
    errors = difference(graph, randomised(AlphaFold2(size)), Alignments(size, 0).batch(0, 2))
    assert {name: error for name, error in errors.items() if not error <= 1e-12} == {}
    assert len(graph.blocks) == 2 * (recycles + 1) + recycles + 2
    assert bool(graph.shared_parameters) == bool(recycles)


@pytest.mark.parametrize("blocks", [4, 5])
def test_a_deepened_graph_is_that_of_the_deep_model(blocks: int, three: Graph, whole: Graph) -> None:
    """All but names of values and ops: each tensor of one stands where its counterpart of the other does."""
    found, wanted = deepened(three, blocks), whole if blocks == 4 else exported(blocks)
    counterpart: dict[str, str] = {}
    assert [block.name for block in found.blocks] == [block.name for block in wanted.blocks]
    assert found.blocks == wanted.blocks
    for ours, theirs in zip(found.ops, wanted.ops, strict=True):
        assert (ours.kind, ours.block, ours.module) == (theirs.kind, theirs.block, theirs.module)
        assert ours.attributes == theirs.attributes
        for one, other in zip((*ours.inputs, *ours.outputs), (*theirs.inputs, *theirs.outputs), strict=True):
            assert counterpart.setdefault(one, other) == other
            assert replace(found.tensor[one], name="") == replace(wanted.tensor[other], name="")
    assert len(counterpart) == len(set(counterpart.values())) == len(found.tensors) == len(wanted.tensors)
    assert all(one == other for one, other in counterpart.items() if found.tensor[one].role != "value")
    assert found.aliases == wanted.aliases
    assert found.shared_parameters == wanted.shared_parameters
    assert (found.loss, found.inputs, found.outputs) == (wanted.loss, wanted.inputs, wanted.outputs)


def block_parameters(m: int, z: int, c: int, msa_heads: int, pair_heads: int) -> int:
    """Weights and biases of a block, algorithm by algorithm."""

    def gated(width: int) -> int:
        return 3 * width * width + 2 * (width * width + width)

    def transition(width: int) -> int:
        return 2 * width + 2 * 4 * width * width + 4 * width + width

    row = 2 * m + 2 * z + z * msa_heads + gated(m)
    column = 2 * m + gated(m)
    outer = 2 * m + 2 * (m * c + c) + c * c * z + z
    multiplication = 4 * z + 6 * (z * z + z)
    attention = 2 * z + z * pair_heads + gated(z)
    return row + column + transition(m) + outer + 2 * multiplication + 2 * attention + transition(z)


PAPERS = {
    TINY: (4, 16, 8, 4, 8, 4, 4, 31_543),
    "alphafold2-48-256-128": (48, 256, 128, 128, 256, 8, 4, 87_878_615),
    "alphafold2-48-256-128-512x384": (48, 256, 128, 512, 384, 8, 4, 87_878_615),
    "alphafold2-128-1024-512": (128, 1024, 512, 128, 256, 32, 16, 3_507_134_039),
}


@pytest.mark.parametrize("name", PAPERS)
def test_parameters_of_the_papers_sizes(name: str) -> None:
    blocks, m, z, sequences, residues, msa_heads, pair_heads, parameters = PAPERS[name]
    found = config(name)
    assert (found["blocks"], found["msa_width"], found["pair_width"]) == (blocks, m, z)
    assert (found["sequences"], found["residues"], found["recycles"]) == (sequences, residues, 2)
    with torch.device("meta"):
        model = factory(name)()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    tables = 23 * (2 * m + 2 * z) + (2 * found["reach"] + 1) * z
    rest = tables + 2 * m + 2 * z + 23 * m + 23 + found["bins"] * (z + 1)
    assert parameters == blocks * block_parameters(m, z, found["outer"], msa_heads, pair_heads) + rest


def test_a_large_graph_has_the_models_parameters() -> None:
    graph = load_model("alphafold2-48-256-128-512x256", None, "bfloat16")
    assert graph.parameter_count == PAPERS["alphafold2-48-256-128"][-1]
    assert len(graph.blocks) == 3 * 48 + 2 + 2
    assert graph.tensor["letters"].shape == (1, 512, 256)
    assert {tensor.dtype for tensor in graph.tensors if tensor.role == "parameter"} == {"bfloat16"}


def test_every_op_has_a_signature_and_blocks_have_classes(whole: Graph) -> None:
    assert {block.name: unknown_kinds(whole, block.name) for block in whole.blocks} == {
        block.name: {} for block in whole.blocks
    }
    for one in range(3):
        cuts = block_cuts(whole, f"passes.{one}.evoformer.1")
        # Row and column attention, the transition, the outer product; triangle attention twice, its transition.
        assert [(cut.name, cut.size) for cut in cuts] == [
            ("heads", 4), ("heads", 4), ("hidden", 64), ("hidden", 4), ("heads", 4), ("heads", 4), ("hidden", 32),
        ]  # fmt: skip
        assert all(len(cut.reductions) == 1 for cut in cuts)


def test_the_loss_is_the_mean_over_samples(whole: Graph) -> None:
    assert (whole.loss.weighting, whole.samples, whole.seq) == ("samples", 2, None)
    assert whole.inputs == ("letters", "hidden", "distances")
    model, batch = randomised(factory(TINY)()), Alignments(SIZES[TINY], 3).batch(0, 3)
    counts = (batch["hidden"] != IGNORED).sum((1, 2)).tolist()
    assert len(set(counts)) > 1  # samples have different numbers of targets
    alone = [model(**{key: value[i : i + 1] for key, value in batch.items()}).loss for i in range(3)]
    assert torch.allclose(model(**batch).loss, torch.stack(alone).mean(), rtol=1e-13, atol=0)


def test_alignments_covary_where_residues_touch() -> None:
    size = replace(SIZES[TINY], sequences=32, residues=9)
    batch = Alignments(size, 5).batch(7, 2)
    assert {name: tuple(value.shape) for name, value in batch.items()} == {
        "letters": (2, 32, 9), "hidden": (2, 32, 9), "distances": (2, 9, 9),
    }  # fmt: skip
    masked = batch["hidden"] != IGNORED
    assert torch.equal(masked, batch["letters"] == MASK)
    assert not masked[:, 0].any()
    assert masked.any(2).any(1).all()
    letters = torch.where(masked, batch["hidden"], batch["letters"])
    assert 0 <= int(letters.min()) <= int(letters.max()) < 20
    along = (torch.arange(9).unsqueeze(1) - torch.arange(9)).abs().clamp(max=7)
    for sample in range(2):
        distances = batch["distances"][sample]
        assert torch.equal(distances, distances.t())
        touching = ((distances == 1) & (along > 1)).nonzero().tolist()
        assert len(touching) >= 2
        for i, j in touching:
            one, other = letters[sample, :, i], letters[sample, :, j]
            assert torch.equal(other, (7 * one + 3) % 20) or torch.equal(one, (7 * other + 3) % 20)
            assert len(one.unique()) > 3  # both mutate
        apart = distances.clone()
        apart[tuple(zip(*touching, strict=True))] = along[tuple(zip(*touching, strict=True))]
        assert torch.equal(apart, along)
    again, other = Alignments(size, 5).batch(7, 2), Alignments(size, 5).batch(8, 2)
    assert torch.equal(again["letters"], batch["letters"])
    assert not torch.equal(other["letters"], batch["letters"])


def test_a_sequence_length_and_unknown_sizes_are_errors() -> None:
    with pytest.raises(ModelError, match=r"4 sequences of 8 residues, which its name fixes; leave out --seq 16"):
        load_model(TINY, 16, "float32")
    with pytest.raises(ModelError, match=r'no size "alphafold2-48-256" of AlphaFold2. Did you mean'):
        config("alphafold2-48-256")


def test_it_can_be_planned(capsys: pytest.CaptureFixture[str]) -> None:
    """In two stages the parameters of most blocks are in both: of some passes in one, of the rest in the other."""
    words = ["--cluster", "cpu", "--devices", "2", "--precision", "fp32", "--global-batch", "8", "--target", "partita"]
    assert main(["plan", TINY, *words, "--fix", "pp=2", "--fix", "micro_batches=2", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [stage["devices"] for stage in plan["stages"]] == [[0], [1]]
    assert any(len(shared["stages"]) > 1 for shared in plan["shared_parameters"])
