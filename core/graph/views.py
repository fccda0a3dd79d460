"""Signatures of reshapes: which factors of the input's dims are which factors of the output's."""

from __future__ import annotations

from math import prod

from partita.graph.signature import Dim, Signature


def view_signature(source: tuple[int, ...], target: tuple[int, ...]) -> Signature:
    """How a row-major reshape from ``source`` to ``target`` maps dims.

    Both shapes are walked from the left in groups of equal product. Inside a group the dims are refined to common
    factors where the boundaries of one shape divide those of the other ([b, s, 64] to [b, s, 4, 16] makes 64 = (4 16));
    where they don't ([6, 4] to [8, 3]), the group's dims may not be cut.
    """
    if prod(source) == 0 or prod(source) != prod(target):
        return _opaque(source, target)
    sizes: dict[str, int] = {}
    fixed: set[str] = set()
    inputs: list[Dim] = []
    outputs: list[Dim] = []
    i = j = 0
    while i < len(source) or j < len(target):
        first_i, first_j = i, j
        left, right = 1, 1
        # Sizes of 1 belong to the group that comes after them, or to the last one.
        while i == first_i or j == first_j or left != right:
            if i < len(source) and (left <= right or j == len(target)):
                left *= source[i]
                i += 1
            elif j < len(target):
                right *= target[j]
                j += 1
            else:
                break
            if left == right and left > 1:
                break
        _refine(source[first_i:i], target[first_j:j], sizes, fixed, inputs, outputs)
    return Signature((tuple(inputs),), (tuple(outputs),), frozenset(), frozenset(fixed), sizes)


def _refine(
    source: tuple[int, ...], target: tuple[int, ...], sizes: dict[str, int], fixed: set[str],
    inputs: list[Dim], outputs: list[Dim],
) -> None:  # fmt: skip
    """Split one group of equal product into factors that both sides share."""
    bounds = sorted(_cumulative(source) | _cumulative(target))
    chain = all(after % before == 0 for before, after in zip(bounds, bounds[1:], strict=False))
    if not chain:
        for shape, dims in ((source, inputs), (target, outputs)):
            for size in shape:
                dims.append(Dim((_new(sizes, size, fixed),)))
        return
    # bounds are products counted from the minor side; factor k lies between bounds[k] and bounds[k + 1]
    labels = {low: _new(sizes, high // low) for low, high in zip(bounds, bounds[1:], strict=False)}
    for shape, dims in ((source, inputs), (target, outputs)):
        low, found = 1, []
        for size in reversed(shape):
            high = low * size
            factors = [labels[bound] for bound in bounds if low <= bound < high]
            found.append(Dim(tuple(reversed(factors)) or (_new(sizes, 1, fixed),)))
            low = high
        dims.extend(reversed(found))


def _cumulative(shape: tuple[int, ...]) -> set[int]:
    products, product = {1}, 1
    for size in reversed(shape):
        product *= size
        products.add(product)
    return products


def _new(sizes: dict[str, int], size: int, fixed: set[str] | None = None) -> str:
    label = f"d{len(sizes)}"
    sizes[label] = size
    if fixed is not None:
        fixed.add(label)
    return label


def _opaque(source: tuple[int, ...], target: tuple[int, ...]) -> Signature:
    sizes: dict[str, int] = {}
    fixed: set[str] = set()
    sides = [tuple(Dim((_new(sizes, size, fixed),)) for size in shape) for shape in (source, target)]
    return Signature((sides[0],), (sides[1],), frozenset(), frozenset(fixed), sizes)
