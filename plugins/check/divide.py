"""Divisibility: what tensor, expert and sequence parallelism cut must come out even."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, lcm

from partita.cost.alike import Alike
from partita.errors import divisors
from partita.graph import Graph
from partita.plugins.check.finding import Finding, Place, note, problem
from partita.plugins.check.model import heads, layer_blocks, width
from partita.plugins.check.settings import Settings


def size_findings(settings: Settings) -> Iterator[Finding]:
    """Sizes that Megatron's arguments state, against each other and against the parallel sizes."""
    sizes, tp = settings.sizes, settings.tp
    if "heads" in sizes and sizes["heads"] % tp:
        path = settings.place("heads").path
        yield divided(settings.place("tp"), tp, path, sizes["heads"], "the self-attention of every layer")
    if (groups := sizes.get("kv_heads")) and groups % tp and tp % groups:
        works = [size for size in divisors(sizes.get("heads", groups)) if groups % size == 0 or size % groups == 0]
        yield divided(
            settings.place("tp"), tp, settings.place("kv_heads").path, groups, "keys and values of every layer", works
        )
    if "heads" in sizes and "hidden" in sizes and sizes["hidden"] % sizes["heads"]:
        yield divided(
            settings.place("heads"), sizes["heads"], "--hidden-size", sizes["hidden"], "size of a head",
            name="--num-attention-heads",
        )  # fmt: skip
    if "heads" in sizes and sizes.get("kv_heads") and sizes["heads"] % sizes["kv_heads"]:
        yield divided(
            settings.place("kv_heads"), sizes["kv_heads"], "--num-attention-heads", sizes["heads"], "grouped attention",
            name="--num-query-groups",
        )  # fmt: skip
    if (parts := sizes.get("ep", 1)) > 1:
        if "experts" not in sizes:
            yield problem(settings.place("ep"), f"expert parallel size {parts} and no --num-experts")
        elif sizes["experts"] % parts:
            yield divided(settings.place("ep"), parts, "--num-experts", sizes["experts"], "every MoE layer", name="ep")
    if (vocabulary := sizes.get("vocabulary")) and vocabulary % (128 * tp):
        padded = ceil(vocabulary / (128 * tp)) * 128 * tp
        yield note(
            settings.place("vocabulary"),
            f"--vocab-size {vocabulary} is padded to {padded}, the next multiple of 128 · tp {tp}: "
            f"{padded - vocabulary} rows that are never looked up",
        )


def graph_findings(settings: Settings, graph: Graph, groups: Alike) -> Iterator[Finding]:
    """The model's own dims against tp, and its sizes against those that the arguments state."""
    tp = settings.tp
    said: set[tuple[str, int]] = set()
    for kind in sorted(groups.classes):
        block = f'block "{graph.blocks[kind].name}"'
        for cut in groups.classes[kind]:
            if cut.pads and tp > cut.size:
                yield problem(settings.place("tp"), f"tp {tp} is more than {cut.name} {cut.size} ({block})")
            if cut.pads or cut.size % tp == 0:
                continue
            # Megatron gives each rank a copy of keys and values where tp is a multiple of their heads.
            copies = settings.framework == "megatron"
            failing = [(w, s) for w, s in cut.limits if s % tp and not (copies and w == "kv_heads" and tp % s == 0)]
            if not failing:
                continue
            what, size = failing[0]
            if (what, size) not in said:
                said.add((what, size))
                yield divided(settings.place("tp"), tp, what, size, block, works=divisors(cut.size))
    if tp > 1 and not any(groups.classes.values()):
        yield problem(settings.place("tp"), f'tp {tp}: no dim of model "{graph.name}" can be cut', "tp 1")
    if settings.framework == "deepspeed" and settings.sp > 1 and (count := heads(graph)) and count % settings.sp:
        yield divided(settings.place("sp"), settings.sp, "heads", count, "Ulysses exchanges tokens for heads",
                      name="sequence_parallel_size")  # fmt: skip
    run = layer_blocks(groups)
    for name, own in (("layers", len(run) if run else None), ("heads", heads(graph)), ("hidden", width(graph))):
        if own is not None and settings.sizes.get(name, own) != own:
            place = settings.place(name)
            message = f'{place.path} is {settings.sizes[name]}, and model "{graph.name}" has {own}'
            yield problem(place, message, f"{place.path} {own}")


def divided(
    place: Place, parts: int, what: str, size: int, where: str, works: list[int] | None = None, name: str = "tp"
) -> Finding:
    """``parts`` does not divide ``size``: with the remainder, all that do, and the nearest two."""
    works = divisors(size) if works is None else works
    below, above = [w for w in works if w < parts], [w for w in works if w > parts]
    nearest = " and ".join(str(n) for n in (*below[-1:], *above[:1]))
    return problem(
        place,
        f"{name} {parts} does not divide {what} {size} ({where}; remainder {size % parts}); nearest: {nearest}",
        *(f"{name} {value}" for value in works),
    )


def sequence_factor(tp: int, sp: int, sequence_parallel: bool) -> int:
    """What the sequence must be a multiple of.

    Context parallelism gives each of its ranks two chunks of the sequence (one from either end), and sequence
    parallelism divides a rank's tokens by tp: sp · lcm(2, tp). Padding to lcm(2 · sp, tp) is not enough.
    """
    parts = tp if sequence_parallel else 1
    return sp * lcm(2, parts) if sp > 1 else parts


def sequence_findings(settings: Settings) -> Iterator[Finding]:
    """The sequence length against context and sequence parallelism."""
    seq, tp, sp = settings.seq, settings.tp, settings.sp
    if seq is None:
        return
    if settings.framework == "deepspeed":
        # Ulysses gives every rank an equal part of the tokens.
        factor, why = sp, f"sequence_parallel_size {sp}"
    else:
        factor = sequence_factor(tp, sp, settings.sequence_parallel)
        inner = f"lcm(2, tp {tp})" if settings.sequence_parallel else "2"
        why = f"cp {sp} · {inner}" if sp > 1 else f"tp {tp} with sequence parallelism"
    if seq % factor == 0:
        return
    below, above = seq // factor * factor, (seq // factor + 1) * factor
    each = f"; each context-parallel rank has {seq // sp} tokens" if sp > 1 and seq % sp == 0 else ""
    rest = f", and {seq // sp} mod {tp} = {seq // sp % tp}" if each and settings.sequence_parallel else ""
    yield problem(
        settings.place("seq"),
        f"sequence length {seq} is no multiple of {why} = {factor}{each}{rest}",
        *(f"{value}" for value in (below, above) if value),
    )
