"""What an op does with the dims of its tensors, written like an einsum.

``b s k+, n k+ -> b s n`` says: cutting ``k`` gives partial sums (``+``), every other dim may be cut freely. ``^`` marks
a dim that may not be cut. A tensor dim may consist of several factors, major first: ``(h d)`` can be cut by whole
``h``. ``3*n`` is a dim of 3 equal parts laid one after another (a fused QKV projection): cutting it cuts each part.
``()`` is a tensor without dims.
Follows SuperScaler (section 3.1), with parts added.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from partita.errors import ModelError


@dataclass(frozen=True)
class Dim:
    """One dim of a tensor as an op sees it: factor labels, major first, and how many equal parts it consists of."""

    factors: tuple[str, ...]
    parts: int = 1

    def __str__(self) -> str:
        inner = self.factors[0] if len(self.factors) == 1 else f"({' '.join(self.factors)})"
        return f"{self.parts}*{inner}" if self.parts > 1 else inner


@dataclass(frozen=True)
class Signature:
    """Dims of every input and output of an op, and which labels are reduced (``+``) or may not be cut (``^``).

    ``placed`` are those labels among ``fixed`` that may be cut where the op is told which part it has: rows of causal
    attention, tokens of a loss that is summed.
    """

    inputs: tuple[tuple[Dim, ...], ...]
    outputs: tuple[tuple[Dim, ...], ...]
    reduced: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()
    sizes: Mapping[str, int] = field(default_factory=dict)
    placed: frozenset[str] = frozenset()

    @property
    def labels(self) -> set[str]:
        return {f for dims in (*self.inputs, *self.outputs) for dim in dims for f in dim.factors}

    def cuttable(self, label: str) -> bool:
        """Whether cutting the label cuts each tensor that has it into contiguous pieces of whole major factors."""
        if label in self.fixed:
            return False
        every = [dim for dims in (*self.inputs, *self.outputs) for dim in dims]
        return all(dim.factors[0] == label for dim in every if label in dim.factors)

    def __str__(self) -> str:
        def marked(name: str) -> str:
            return name + "+" * (name in self.reduced) + "^" * (name in self.fixed)

        def mark(text: str) -> str:
            return re.sub(r"[A-Za-z_]\w*", lambda found: marked(found[0]), text)

        def side(tensors: Iterable[tuple[Dim, ...]]) -> str:
            return ", ".join(" ".join(mark(str(dim)) for dim in dims) or "()" for dims in tensors)

        return f"{side(self.inputs)} -> {side(self.outputs)}"


_DIM = re.compile(r"\s*(?:(\d+)\*)?(\([^()]*\)|[A-Za-z_]\w*[+^]?)\s*")


def parse(text: str) -> Signature:
    """The signature that the text spells; ModelError quotes the part that can't be read."""
    left, arrow, right = text.partition("->")
    if not arrow:
        raise ModelError(f'signature "{text}" has no "->"')
    reduced: set[str] = set()
    fixed: set[str] = set()

    def label(word: str) -> str:
        name = word.rstrip("+^")
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ModelError(f'signature "{text}": "{word}" is no dim')
        if word.endswith("+"):
            reduced.add(name)
        if word.endswith("^"):
            fixed.add(name)
        return name

    def tensor(words: str) -> tuple[Dim, ...]:
        if words.strip() == "()":
            return ()
        if not words.strip():
            raise ModelError(f'signature "{text}": an empty place; a tensor without dims is written ()')
        dims, position = [], 0
        while words[position:].strip():
            match = _DIM.match(words, position)
            if not match:
                raise ModelError(f'signature "{text}": can\'t read "{words[position:].strip()}"')
            factors = tuple(label(word) for word in match[2].strip("()").split())
            parts = int(match[1] or 1)
            if not factors or not parts:
                raise ModelError(f'signature "{text}": "{match[0].strip()}" is no dim')
            dims.append(Dim(factors, parts))
            position = match.end()
        return tuple(dims)

    inputs = tuple(tensor(part) for part in left.split(",")) if left.strip() else ()
    outputs = tuple(tensor(part) for part in right.split(","))
    return Signature(inputs, outputs, frozenset(reduced), frozenset(fixed))


def bind(signature: Signature, inputs: Iterable[tuple[int, ...]], outputs: Iterable[tuple[int, ...]]) -> Signature:
    """The signature with the sizes of its labels, read off dims of one factor; ModelError where the ranks differ.

    A label with different sizes in different tensors (query heads and fewer key-value heads) gets their greatest
    common divisor: a number of pieces must divide both.
    """
    from math import gcd

    sizes: dict[str, int] = {}
    for dims, shape in zip((*signature.inputs, *signature.outputs), (*inputs, *outputs), strict=True):
        if len(dims) != len(shape):
            raise ModelError(f'signature "{signature}" doesn\'t fit a tensor of shape {list(shape)}')
        for dim, size in zip(dims, shape, strict=True):
            if len(dim.factors) == 1:
                label = dim.factors[0]
                sizes[label] = gcd(sizes.get(label, 0), size // dim.parts)
    sizes.update(signature.sizes)
    return replace(signature, sizes=sizes)
