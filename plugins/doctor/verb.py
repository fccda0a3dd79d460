"""``partita doctor``: examines the installation and prints what it found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from partita.plugins.doctor.finding import Finding
    from partita.plugins.doctor.report import Report

EXAMPLES = """\b
Examples:
  partita doctor
  partita doctor --json
"""

GIB = 2**30


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on stdout.")] = False,
) -> int:
    """Say what is installed, what of it works, and how to mend what doesn't.

    Frameworks are imported in another process, so that a crash is reported and doesn't happen here. The exit status is
    0 when all that the recipes need works.
    """
    from partita.cli import answer
    from partita.plugins.doctor.judge import judge
    from partita.plugins.doctor.report import document, examine

    report = examine()
    findings = judge(report)
    if as_json:
        answer.write_json(document(report, findings))
    else:
        answer.write(text(report, findings))
    return int(any(finding.severity == "broken" for finding in findings))


def text(report: Report, findings: list[Finding]) -> str:
    """What is printed for people."""
    from partita.cli import show

    table = show.grid("package", "installed", "tested", "import")
    table.add_row("python", report.python, "", "")
    for package in report.packages:
        outcome = report.imported.get(package.name)
        how = "" if outcome is None else f"{outcome.seconds:.1f} s" if outcome.error is None else "fails"
        table.add_row(package.name, package.installed or "no", "same" if package.same else package.tested, how)
    problems = [show.bullet(f"{finding.severity}: {finding.what}. To mend it: {finding.mend}.") for finding in findings]
    broken = sum(finding.severity == "broken" for finding in findings)
    end = f"{broken} broken" if broken else "all that the recipes need works"
    return show.render([table, "", *_machine(report), "", *_plugins(report), "", *problems, "", end])


def _machine(report: Report) -> list[str]:
    here = report.machine
    gpus = [f"{gpu['name']}, {gpu['memory_bytes'] / GIB:.1f} GiB" for gpu in report.gpus]
    shared = "no" if here.shared_memory_bytes is None else f"{here.shared_memory_bytes / GIB:.2f} GiB of"
    words = {True: "works", False: "no"}
    states = [f"{name} {words.get(report.torch.get(name, False), 'fails')}" for name in ("gloo", "nccl")]
    return [
        f"machine: {here.cores} cores, {here.memory_bytes / GIB:.1f} GiB of memory, {shared} /dev/shm",
        f"GPUs: {'; '.join(gpus) or 'none'}",
        f"process groups: {', '.join(states)}",
    ]


def _plugins(report: Report) -> list[str]:
    lines = ["hooks that are on:"]
    for one in report.plugins:
        what = ", ".join(name.removeprefix("partita_") for name in one.hooks) or one.group
        lines.append(f"  {one.package}: {one.name} ({what})" + ("" if one.on and not one.error else ", not on"))
    return lines
