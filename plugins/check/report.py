"""The answer as JSON values, and as text for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from partita.plan import Plan
from partita.planner.arrangement import arrangement
from partita.planner.words import duration, gib
from partita.plugins.check.checking import Report
from partita.plugins.check.document import NAMES
from partita.plugins.check.finding import Finding
from partita.plugins.check.memory import items


def document(report: Report) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "ok": report.ok,
        "files": files(report),
        "findings": [finding.document() for finding in report.findings],
        "resolved": resolved(report),
        "predicted": predicted(report),
        "not_checked": list(report.open),
    }


def files(report: Report) -> dict[str, str]:
    """What each file is; one that holds another says both."""
    found: dict[str, str] = {}
    for each in report.documents:
        before = found.get(each.file)
        found[each.file] = f"{before} with a {NAMES[each.kind]}" if before else NAMES[each.kind]
    return found


def resolved(report: Report) -> dict[str, Any]:
    """The settings as they will be, with what ``"auto"`` becomes."""
    s = report.settings
    found: dict[str, Any] = {
        "framework": s.framework, "devices": s.devices, "dp": s.dp, "tp": s.tp, "pp": s.pp, "sp": s.sp,
        "micro_batch": s.batch.micro, "micro_batches": s.batch.accumulation, "global_batch": s.batch.total,
        "samples": s.samples,
        "zero": s.zero, "precision": s.precision, "optimizer": s.optimizer, "recompute": s.recompute, "seq": s.seq,
        "layers_per_stage": list(s.layers) if s.layers else None, "auto": dict(s.auto),
    }  # fmt: skip
    return found | dict(report.ranks)


def predicted(report: Report) -> dict[str, Any] | None:
    """Memory and time of the arrangement, and of the planner's best; None where nothing could be predicted."""
    priced = report.priced
    if priced is None:
        return None
    found: dict[str, Any] = {
        "step_seconds": priced.step_seconds,
        "memory_limit_bytes": report.limit_bytes,
        "heaviest_stage": priced.heaviest,
        "stages": [{**memory.items(), "total": memory.total} for memory in priced.memory],
        "assumed": list(priced.assumed),
        "best": None,
    }
    if report.best is not None and priced.step_seconds is not None:
        best = report.best.predicted.step_seconds
        gain, words = priced.step_seconds / best, _words(report.best)
        found["best"] = {"step_seconds": best, "speedup": gain, "arrangement": words}
    elif report.no_plan:
        found["best"] = {"step_seconds": None, "reason": report.no_plan}
    return found


def text(report: Report) -> str:
    """What is printed for people."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    for file, kind in files(report).items():
        yield f"{file}: {kind}"
    yield _arrangement(report)
    if report.settings.auto:
        yield ""
        yield 'what "auto" becomes'
        yield from (f"  {path}: {value}" for path, value in report.settings.auto.items())
    yield ""
    counts = {kind: sum(f.severity == kind for f in report.findings) for kind in ("problem", "warning", "note")}
    for finding in report.findings:
        yield from _finding(finding)
    words = [f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in counts.items() if count]
    yield ", ".join(words) if words else "no problem found"
    yield from _prediction(report)
    yield from (f"not checked: {sentence}" for sentence in report.open)


def _arrangement(report: Report) -> str:
    s, unknown = report.settings, "?"
    batch = s.batch
    parts = [
        f"{s.devices or unknown} device{'' if s.devices == 1 else 's'}: dp {s.dp or unknown}, tp {s.tp}, pp {s.pp}"
        + (f", sp {s.sp}" if s.sp > 1 else ""),
        f"global batch {batch.total or unknown} = {batch.micro or unknown} · {batch.accumulation or unknown} "
        f"micro-batches · dp {s.dp or unknown}",
        f"ZeRO {s.zero}, {s.precision}, {s.optimizer}",
    ]
    return "; ".join(parts)


def _finding(finding: Finding) -> Iterator[str]:
    yield f"{finding.severity}: {finding.place}"
    yield f"  {finding.message}"
    if finding.works:
        yield f"  works: {' | '.join(finding.works)}"


def _prediction(report: Report) -> Iterator[str]:
    priced = report.priced
    if priced is None:
        return
    yield ""
    memory = priced.memory[priced.heaviest]
    where = f" (stage {priced.heaviest})" if len(priced.memory) > 1 else ""
    yield f"heaviest device{where}: {gib(memory.total)} of {gib(report.limit_bytes or 0)}: {items(priced)}"
    if priced.step_seconds is not None:
        yield f"predicted step: {duration(priced.step_seconds)} ({_words(priced.plan)})"
    yield from (f"  assumed: {sentence}" for sentence in priced.assumed)
    if report.best is not None and priced.step_seconds is not None:
        best = report.best.predicted.step_seconds
        gain = priced.step_seconds / best
        yield (
            f"the best plan: {duration(best)} ({_words(report.best)}): {gain:.2f} times as fast"
            if gain > 1.005
            else f"the planner finds nothing faster: its best takes {duration(best)} ({_words(report.best)})"
        )
    elif report.no_plan:
        yield f"the planner finds no plan for it: {report.no_plan}"


def _words(plan: Plan) -> str:
    return arrangement(plan.stages, plan.order)
