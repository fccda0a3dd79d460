"""How Megatron deals transformer layers out to stages, and the layers that would be lost."""

from __future__ import annotations

import re

from partita.errors import divisors
from partita.plugins.check.document import Document
from partita.plugins.check.finding import Finding, problem
from partita.plugins.check.settings import LARGEST

FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
EMBEDDING, LOSS = "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"
LAYOUT = "--pipeline-model-parallel-layout"

Split = tuple[int, ...] | None


def layers_of_stages(document: Document, layers: int | None, pp: int) -> tuple[Split, list[Finding]]:
    """Layers of each stage, or None with the reason. ``layers`` None (unknown) gives neither.

    Without options every stage gets L / pp. With a first and a last count the rest is dealt out evenly between. The
    embedding and the loss may each count as one layer of the first and of the last stage.
    """
    if layers is None:
        return None, []
    if LAYOUT in document.values:
        return _layout(document, layers, pp)
    ends = {flag: document.values.get(flag) for flag in (FIRST, LAST)}
    counts = {flag: int(text[:18]) if text and text.isdecimal() else 0 for flag, text in ends.items()}
    wrong = [flag for flag, text in ends.items() if text is not None and not counts[flag]]
    if wrong:
        return None, [problem(document.place(wrong[0]), f"{wrong[0]} {ends[wrong[0]]}: 1 or more layers are needed")]
    extra = {flag: int(flag in document.values) for flag in (EMBEDDING, LOSS)}
    if any(counts.values()) and any(extra.values()):
        other = next(flag for flag in extra if extra[flag])
        return None, [problem(document.place(other), f"{other} doesn't go together with {FIRST} or {LAST}")]
    if pp == 1 and any(counts.values()):
        flag = next(flag for flag in counts if counts[flag])
        if counts[flag] != layers:
            message = f"{flag} {counts[flag]} with one stage, which holds all {layers} layers"
            return None, [problem(document.place(flag), message, f"leave out {flag}")]
    if any(counts.values()) and pp > 1:
        return _ends(document, layers, pp, counts[FIRST], counts[LAST])
    slots = layers + sum(extra.values())
    if slots % pp:
        return None, [_lost(document, layers, slots, pp)]
    each = slots // pp
    split = [each] * pp
    split[0] -= extra[EMBEDDING]
    split[-1] -= extra[LOSS]
    return _filled(document, tuple(split))


def _ends(document: Document, layers: int, pp: int, first: int, last: int) -> tuple[Split, list[Finding]]:
    middle = pp - bool(first) - bool(last)
    rest = layers - first - last
    if middle == 0 and rest == 0:
        return (first, last), []
    if middle and rest > 0 and rest % middle == 0:
        each = [rest // middle] * middle
        return tuple([first] * bool(first) + each + [last] * bool(last)), []
    words = " and ".join(f"{flag} {count}" for flag, count in ((FIRST, first), (LAST, last)) if count)
    left = f"{max(rest, 0)} layers for {middle} stages between" if middle else f"{rest} layers for no stage"
    if rest < 0:
        left = f"{-rest} layers more than there are"
    flag = FIRST if first else LAST
    message = f"--num-layers {layers} in {pp} stages with {words} leaves {left}, which don't come out even"
    return None, [problem(document.place(flag), message, *_works(layers, pp))]


def _lost(document: Document, layers: int, slots: int, pp: int) -> Finding:
    each, rest = divmod(slots, pp)
    counted = "" if slots == layers else f" ({slots - layers} more counted for the embedding or the loss)"
    lost = list(range(layers - rest, layers))
    missing = f"layer {lost[0]}" if rest == 1 else f"layers {', '.join(map(str, lost))}"
    return problem(
        document.place("--pipeline-model-parallel-size"),
        f"--num-layers {layers}{counted} is not divisible by --pipeline-model-parallel-size {pp}: {slots} = "
        f"{pp}·{each} + {rest}. Megatron-core 0.16 refuses; a version that doesn't would leave out {rest} ({missing}) "
        "without a word",
        *_works(layers, pp),
    )  # fmt: skip


def _works(layers: int, pp: int) -> list[str]:
    """The stage counts that divide, and for this one the most even first and last counts."""
    works = [f"--pipeline-model-parallel-size {', '.join(map(str, divisors(layers)))}"]
    if ends := best_ends(layers, pp):
        first, middle, last = ends
        stages = ", ".join(map(str, (first, *[middle] * (pp - 2), last)))
        works.append(f"{FIRST} {first} {LAST} {last} (stages {stages})")
    return works


def best_ends(layers: int, pp: int) -> tuple[int, int, int] | None:
    """The (first, middle, last) counts of layers that sum to all of them with the smallest largest stage, the most even
    of several; None where there are fewer layers than stages. ``middle`` is 0 for two stages."""
    if pp < 2 or layers < pp:
        return None
    found = []
    for middle in range(1, layers) if pp > 2 else [0]:
        ends = layers - middle * (pp - 2)
        if ends >= 2:
            first = ends // 2
            split = (first, middle, ends - first)
            sizes = [first, ends - first, *([middle] if pp > 2 else [])]
            found.append((max(sizes), -min(sizes), split))
    return min(found)[2] if found else None


def _layout(document: Document, layers: int, pp: int) -> tuple[Split, list[Finding]]:
    """A layout names every stage: ``E`` the embedding, ``t`` a layer, ``m`` a prediction layer, ``L`` the loss."""
    text, place = document.values[LAYOUT] or "", document.place(LAYOUT)
    stages = _expanded(text).split("|")
    odd = sorted(set("".join(stages)) - set("EtmL"))
    if odd:
        message = f'{LAYOUT} "{text}": "{odd[0]}" is none of E, t, m and L'
        return None, [problem(place, message)]
    counts = [stage.count("t") for stage in stages]
    if len(stages) % pp:
        return None, [problem(place, f"{LAYOUT} has {len(stages)} stages, which {pp} pipeline ranks don't divide")]
    if sum(counts) != layers:
        kind = "lost" if sum(counts) < layers else "too many"
        return None, [
            problem(
                place,
                f"{LAYOUT} has {sum(counts)} layers and --num-layers is {layers}: {abs(layers - sum(counts))} {kind}",
                f"--num-layers {sum(counts)}",
            )
        ]  # fmt: skip
    if "E" not in stages[0] or "L" not in stages[-1]:
        return None, [problem(place, f"{LAYOUT}: the first stage needs the embedding (E), the last one the loss (L)")]
    if "" in stages:
        return None, [problem(place, f"{LAYOUT}: stage {stages.index('')} is empty")]
    return tuple(sum(counts[rank::pp]) for rank in range(pp)), []


def _expanded(text: str) -> str:
    """``(tt|)*3`` and ``t*3`` written out, commas and blanks left out."""
    text = re.sub(r"[,\s]", "", text)
    # Repeats of repeats grow fast: what is longer than any model stays as it is, and its "(" is refused.
    while match := re.search(r"\(([^()]*)\)\*(\d{1,4})|([A-Za-z])\*(\d{1,4})", text):
        part, times = (match[1], int(match[2])) if match[2] else (match[3], int(match[4]))
        if len(text) + len(part) * times > LARGEST:
            break
        text = text[: match.start()] + part * times + text[match.end() :]
    return text


def _filled(document: Document, split: tuple[int, ...]) -> tuple[Split, list[Finding]]:
    """The split itself, if the stages that hold no layer are none."""
    if min(split) > 0:
        return split, []
    stage = split.index(min(split))
    flag = EMBEDDING if stage == 0 and EMBEDDING in document.values else "--pipeline-model-parallel-size"
    return None, [problem(document.place(flag), f"stage {stage} of {list(split)} layers holds none")]
