"""How Megatron's fused and padded tensors consist of a model's own, row by row.

Megatron keeps queries, keys and values in one tensor, by groups of heads: the queries of a group, its key, its value.
GPT-2 has one tensor too, but all queries before all keys before all values, and transposed. Gate and up projection are
one tensor, all gates first. The vocabulary is padded. How many rows and heads there really are, the model's graph says:
a file's own numbers have padding in them. A tensor that isn't in these tables is refused by name, and never guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from partita.errors import InputError
from partita.graph import Graph


class Rows(NamedTuple):
    """Rows ``start`` to ``stop`` of a stored tensor are rows of the model's tensor ``name``, from ``first`` on.

    ``transposed``: they are columns of it.
    """

    name: str
    start: int
    stop: int
    first: int = 0
    transposed: bool = False


# A tensor of the model's, and the row at which something begins in it.
Place = tuple[str, int]


def interleaved(q: Place, k: Place, v: Place, *, heads: int, groups: int, size: int) -> list[Rows]:
    """Queries, keys and values by groups of heads, as Megatron keeps them, of so many rows a head."""
    each, found, at = heads // groups, [], 0
    for group in range(groups):
        for (name, begin), rows in ((q, each * size), (k, size), (v, size)):
            found.append(Rows(name, at, at + rows, begin + group * rows))
            at += rows
    return found


def one_after_another(*sizes: Place) -> list[Rows]:
    """Whole tensors of so many rows each, one below the other: gate and up."""
    found, at = [], 0
    for name, rows in sizes:
        found.append(Rows(name, at, at + rows))
        at += rows
    return found


@dataclass(frozen=True)
class Family:
    """Names of a family of HuggingFace models, by Megatron's: of tensors outside the layers, of modules inside one.

    ``layers``: the path of the layers. ``transposed``: linear layers are stored [in, out].
    """

    name: str
    layers: str
    outside: Mapping[str, str]
    inside: Mapping[str, tuple[str, ...]]
    transposed: bool = False


VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight")
QKV, PROJECTION = "self_attention.linear_qkv", "self_attention.linear_proj"
UP, DOWN = "mlp.linear_fc1", "mlp.linear_fc2"
LINEAR = (QKV, PROJECTION, UP, DOWN)
# A norm stands under the layer that reads it (fused with it), or under a name of its own.
NORMS = {"input_layernorm": QKV, "pre_mlp_layernorm": UP}

FAMILIES = (
    Family(
        "Llama", "model.layers",
        {"embedding.word_embeddings.weight": "model.embed_tokens.weight", "output_layer.weight": "lm_head.weight",
         "decoder.final_layernorm.weight": "model.norm.weight"},
        {QKV: ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), PROJECTION: ("self_attn.o_proj",),
         UP: ("mlp.gate_proj", "mlp.up_proj"), DOWN: ("mlp.down_proj",),
         "input_layernorm": ("input_layernorm",), "pre_mlp_layernorm": ("post_attention_layernorm",)},
    ),
    Family(
        "GPT-2", "transformer.h",
        {"embedding.word_embeddings.weight": "transformer.wte.weight", "output_layer.weight": "lm_head.weight",
         "embedding.position_embeddings.weight": "transformer.wpe.weight",
         "decoder.final_layernorm.weight": "transformer.ln_f.weight",
         "decoder.final_layernorm.bias": "transformer.ln_f.bias"},
        {QKV: ("attn.c_attn",), PROJECTION: ("attn.c_proj",), UP: ("mlp.c_fc",), DOWN: ("mlp.c_proj",),
         "input_layernorm": ("ln_1",), "pre_mlp_layernorm": ("ln_2",)},
        transposed=True,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Names:
    """Megatron's names for one model: ``outer`` is what stands before the family's own names in it."""

    graph: Graph
    family: Family
    outer: str

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        starts = re.compile(rf"{re.escape(self.outer + self.family.layers)}\.(\d+)\.")
        return 1 + max(int(found[1]) for tensor in self.graph.tensors if (found := starts.match(tensor.name)))

    @property
    def outsides(self) -> list[str]:
        """Megatron's names of the model's tensors outside the layers, each once: a tied head has none."""
        own = {name: self.outer + path for name, path in self.family.outside.items()}
        return [name for name, path in own.items() if path in self.graph.tensor and path not in self.graph.aliases]

    @property
    def insides(self) -> list[str]:
        """Megatron's names of a layer's tensors, after the layer's."""
        found = []
        for module, paths in self.family.inside.items():
            for leaf in ("weight", "bias"):
                if f"{self.outer}{self.family.layers}.0.{paths[0]}.{leaf}" in self.graph.tensor:
                    # A norm goes by the layer that reads it, whether Megatron has fused them or not.
                    name = f"{NORMS[module]}.layer_norm_{leaf}" if module in NORMS else f"{module}.{leaf}"
                    found.append(name)
        return found

    def outside(self, name: str) -> list[Rows]:
        """A tensor outside the layers. InputError for one that the family doesn't have."""
        if name not in self.family.outside:
            raise self._unknown(name)
        own = self.canonical(self.family.outside[name])
        return [Rows(own, 0, self.shape(own, name)[0])]

    def inside(self, name: str, layer: int) -> list[Rows]:
        """A layer's tensor, by its name after the layer's. InputError for one whose structure isn't known."""
        module, leaf = self._split(name)
        if module not in self.family.inside:
            raise self._unknown(name)
        own = [
            self.canonical(f"{self.family.layers}.{layer}.{path}.{leaf}")
            for path in self.family.inside[module]
        ]  # fmt: skip
        turned = self.family.transposed and module in LINEAR and leaf == "weight"
        rows = [self.shape(one, name)[1 if turned else 0] for one in own]
        if module == QKV:
            found = self._qkv(own, rows, layer)
        else:
            found = one_after_another(*zip(own, rows, strict=True))
        return [row._replace(transposed=turned) for row in found]

    def shape(self, own: str, name: str) -> tuple[int, ...]:
        """The shape of a tensor of the model's. InputError where it lacks this, which Megatron calls ``name``."""
        tensor = self.graph.tensor.get(own)
        if tensor is None or tensor.role != "parameter":
            raise InputError(f'Megatron\'s "{name}" would be "{own}", and "{self.graph.name}" has no such parameter')
        return tensor.shape

    def canonical(self, own: str) -> str:
        """The name under which the model has a parameter, which may be tied."""
        return self.graph.aliases.get(self.outer + own, self.outer + own)

    def _qkv(self, own: list[str], rows: list[int], layer: int) -> list[Rows]:
        size = head_size(self.graph, own[0])
        if len(own) == 1:
            third = rows[0] // 3
            heads = third // size
            places = [(own[0], part * third) for part in range(3)]
            return interleaved(*places, heads=heads, groups=heads, size=size)
        q, k, v = ((name, 0) for name in own)
        return interleaved(q, k, v, heads=rows[0] // size, groups=rows[1] // size, size=size)

    def _split(self, name: str) -> tuple[str, str]:
        """A module of the tables and what it is of it: a norm that is fused with a layer is a module of its own."""
        for norm, module in NORMS.items():
            if name.startswith(f"{module}.layer_norm_"):
                return norm, name.removeprefix(f"{module}.layer_norm_")
        module, _, leaf = name.rpartition(".")
        return module, leaf

    def _unknown(self, name: str) -> InputError:
        return InputError(
            f'Megatron\'s "{name}" has no known structure in a model of the family {self.family.name}: which of the '
            "model's rows it holds is not guessed at"
        )


def head_size(graph: Graph, name: str) -> int:
    """Rows of a head, from the attention of the block that reads the parameter. InputError where it has none."""
    block = next(op.block for op in graph.ops if name in op.inputs)
    for op in graph.ops:
        shape = graph.tensor[op.outputs[0]].shape
        if op.block == block and op.kind == "attention":
            return int(shape[-1] // op.attributes["heads"])
        if op.block == block and op.kind == "scaled_dot_product_attention":
            return shape[-1]
    raise InputError(f'"{name}" is read by no attention of "{graph.name}" that is known, so that its heads are not')


def names_of(graph: Graph) -> Names:
    """Megatron's names for a model. InputError where it is of none of the families."""
    parameters = [tensor.name for tensor in graph.tensors if tensor.role == "parameter"]
    for family in FAMILIES:
        own = family.outside[VOCABULARY[0]]
        ends = re.compile(rf"(^|.*\.){re.escape(own)}")
        outer = next((name.removesuffix(own) for name in parameters if ends.fullmatch(name)), None)
        if outer is not None and any(name.startswith(f"{outer}{family.layers}.0.") for name in parameters):
            return Names(graph, family, outer)
    raise InputError(
        f'"{graph.name}" is of no family whose tensors in Megatron are known '
        f"({', '.join(family.name for family in FAMILIES)}); a checkpoint under the model's own names works"
    )
