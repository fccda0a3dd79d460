"""Bytes that a compiled XLA program moves, read out of the text of its optimized HLO.

What counts is the entry computation. A collective moves what the same one of Partita's moves: an all-gather what each
device lacks, an all-to-all and a reduce-scatter (g − 1)/g of what they take, an all-reduce twice that; a permutation
what it names, device by device. Anything else that might communicate is an error, so that nothing goes uncounted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4,
              "s64": 8, "u64": 8, "f64": 8}  # fmt: skip
COUNTED = {"all-gather", "all-to-all", "reduce-scatter", "all-reduce", "collective-permute"}
# Ops that move nothing between devices; where one isn't here, somebody has to look at it first.
LOCAL = {
    "parameter", "constant", "fusion", "bitcast", "copy", "get-tuple-element", "tuple", "partition-id", "slice",
    "dynamic-slice", "dynamic-update-slice", "concatenate", "transpose", "reshape", "broadcast", "pad", "iota",
    "select", "convert", "multiply", "add", "subtract", "divide", "remainder", "and", "or", "compare", "clamp",
}  # fmt: skip
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?(%[\w.-]+) = (\(.*?\)|\S+) ([a-z][\w-]*)\((.*?)\)(.*)$")


@dataclass(frozen=True)
class Traffic:
    """Bytes that each device sends and receives, the largest array of a device in between, and the collectives."""

    sent: tuple[int, ...]
    received: tuple[int, ...]
    largest_bytes: int
    collectives: tuple[str, ...]


def traffic(text: str, devices: int) -> Traffic:
    """What a module's text says. ValueError where it holds something that isn't known here."""
    sent, received = [0] * devices, [0] * devices
    sizes: dict[str, int] = {}
    collectives = []
    for line in _entry(text):
        name, kind, op, operands, rest = _parsed(line)
        sizes[name] = _bytes(kind)
        taken = sum(sizes[operand] for operand in re.findall(r"%[\w.-]+", operands))
        if op in LOCAL:
            continue
        collectives.append(op)
        if op == "collective-permute":
            for giver, taker in _moves(rest):
                sent[giver] += taken
                received[taker] += taken
            continue
        moved = _moved(op, taken, sizes[name], rest)
        sent = [before + moved for before in sent]
        received = [before + moved for before in received]
    everywhere = re.findall(rf" ({'|'.join(COUNTED)})(?:-start)?\(", text)
    if sorted(everywhere) != sorted(collectives):
        raise ValueError(f"collectives outside of the entry computation: {everywhere}, and in it {collectives}")
    return Traffic(tuple(sent), tuple(received), max(sizes.values()), tuple(collectives))


def _entry(text: str) -> list[str]:
    _, found, rest = text.partition("\nENTRY ")
    if not found:
        raise ValueError(f"no entry computation in: {text[:200]}")
    lines = rest.split("\n}", 1)[0].splitlines()[1:]
    return [line for line in lines if line.strip()]


def _parsed(line: str) -> tuple[str, str, str, str, str]:
    found = INSTRUCTION.match(re.sub(r"/\*.*?\*/", "", line))
    if found is None:
        raise ValueError(f"can't be read: {line}")
    name, kind, op, operands, rest = found.groups()
    if op not in LOCAL | COUNTED:
        raise ValueError(f"{op} is not known here: {line}")
    return name, kind, op, operands, rest


def _bytes(kind: str) -> int:
    """The size of ``f32[512,256]{1,0}``, or of all arrays of a tuple."""
    arrays = re.findall(r"([a-z]\w*)\[([\d,]*)\]", kind)
    return sum(ITEM_BYTES[dtype] * prod(int(size) for size in sizes.split(",") if size) for dtype, sizes in arrays)


def _moved(op: str, taken: int, made: int, rest: str) -> int:
    if op == "all-gather":
        return made - taken
    if op == "reduce-scatter":
        return taken - made
    part = taken - taken // _group(rest)
    return 2 * part if op == "all-reduce" else part


def _group(rest: str) -> int:
    """Devices of a group, in each of the three ways in which XLA writes groups."""
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", rest):
        return len(found[1].split(","))
    if found := re.search(r"replica_groups=\[\d+,(\d+)\]<=", rest):
        return int(found[1])
    found = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\([^)]*\)?[^{]*?)? \{([^}]*)\}", rest)
    if found is None:
        raise ValueError(f"no groups can be read in: {rest}")
    whole = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", found[1])}
    # 'a' is a whole axis; 'a':(2)4 is a factor of 4 of it, inside of one of 2.
    named = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", found[2])
    return prod(int(size) if size else whole[name] for name, size in named)


def _moves(rest: str) -> list[tuple[int, int]]:
    found = re.search(r"source_target_pairs=\{(\{.*?\})\}", rest)
    if found is None:
        raise ValueError(f"no pairs can be read in: {rest}")
    pairs = [(int(giver), int(taker)) for giver, taker in re.findall(r"\{(\d+),(\d+)\}", found[1])]
    return [(giver, taker) for giver, taker in pairs if giver != taker]
