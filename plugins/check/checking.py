"""All rules over one set of files: findings, the settings that were resolved, and what the best plan would gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from partita.cluster import Cluster
from partita.cost.alike import Alike, alike
from partita.cost.precision import compute_dtype
from partita.errors import Infeasible, PlanError
from partita.graph import Graph
from partita.hooks import planned
from partita.plan import Plan
from partita.planner.joint.price import Pricing
from partita.plugins.check.batch import batch_findings
from partita.plugins.check.devices import device_findings, ranks
from partita.plugins.check.divide import graph_findings, sequence_findings, size_findings
from partita.plugins.check.document import Document, Kind
from partita.plugins.check.finding import Finding, problem
from partita.plugins.check.keys import key_findings
from partita.plugins.check.memory import memory_findings
from partita.plugins.check.model import width
from partita.plugins.check.price import Priced, Unpriced, price
from partita.plugins.check.read_deepspeed import read_deepspeed
from partita.plugins.check.read_megatron import read_megatron
from partita.plugins.check.recognise import launched, named_deepspeed
from partita.plugins.check.rules import deepspeed_findings, megatron_findings, pipeline_findings, precision_findings
from partita.plugins.check.settings import Asked, Settings
from partita.problem import Problem

Capture = Callable[[int | None, str], Graph]
ORDER = ("problem", "warning", "note")


@dataclass(frozen=True)
class Report:
    """The answer. ``priced`` and ``best`` exist where model, cluster and batch are known; ``open`` says what was not
    checked and what is missing for it."""

    documents: tuple[Document, ...]
    settings: Settings
    findings: tuple[Finding, ...]
    ranks: Mapping[str, Any]
    limit_bytes: int | None = None
    priced: Priced | None = None
    best: Plan | None = None
    no_plan: str = ""
    open: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """No problem was found."""
        return not any(finding.severity == "problem" for finding in self.findings)


def check_documents(
    documents: Mapping[Kind, Document], asked: Asked, capture: Capture | None, cluster: Cluster | None
) -> Report:
    """Run every rule that what is given allows. ``capture`` makes the model's graph, once the files have said for which
    sequence and dtype."""
    without, processes = launched(dict(documents))
    found, findings = named_deepspeed(without)
    if asked.devices is None:
        asked = replace(asked, devices=processes or (cluster.devices if cluster else None))
    settings, wrong = _read(found, asked, None)
    graph = capture(settings.seq, compute_dtype(settings.precision)) if capture else None
    if graph and settings.auto:
        # Some "auto" values come from the model's width.
        settings, wrong = _read(found, asked, width(graph))
    findings += wrong
    megatron = found.get("megatron")
    for document in found.values():
        findings += key_findings(document)
        findings += precision_findings(document, settings)
    if "deepspeed" in found:
        findings += deepspeed_findings(found["deepspeed"], settings)
    if megatron:
        findings += megatron_findings(megatron, settings)
    findings += device_findings(settings, cluster)
    findings += batch_findings(settings)
    findings += pipeline_findings(settings)
    findings += size_findings(settings)
    findings += sequence_findings(settings)
    launcher = [document for kind, document in documents.items() if kind == "accelerate"]
    report = Report((*launcher, *found.values()), settings, (), ranks(settings, cluster) if cluster else {})
    if graph is None:
        report = replace(report, open=("memory and time: --model and --cluster are needed",))
    else:
        groups = alike(graph)
        found_before = {(finding.place, finding.works) for finding in findings}
        # What Megatron's own arguments already said isn't said again of the model that they describe.
        findings += [f for f in graph_findings(settings, graph, groups) if (f.place, f.works) not in found_before]
        if settings.pp > len(graph.blocks):
            message = f"{settings.pp} stages, and the model has {len(graph.blocks)} blocks: some would be empty"
            findings.append(problem(settings.place("pp"), message, f"pp 1 to {len(graph.blocks)}"))
        if cluster and settings.devices and settings.devices < cluster.devices:
            # Compared on the devices that the user takes.
            cluster = cluster.resized(settings.devices)
        report, more = _priced(report, graph, groups, cluster)
        findings += more
    ordered = sorted(dict.fromkeys(findings), key=lambda f: ORDER.index(f.severity))
    report = replace(report, findings=tuple(ordered))
    return _gain(report, graph, cluster) if report.ok and report.priced and graph and cluster else report


def _read(found: Mapping[Kind, Document], asked: Asked, hidden: int | None) -> tuple[Settings, list[Finding]]:
    if "megatron" in found:
        return read_megatron(found["megatron"], asked)
    return read_deepspeed(found.get("deepspeed"), found.get("training_arguments"), asked, hidden)


def problem_of(settings: Settings, graph: Graph, cluster: Cluster) -> Problem:
    """The planner's question with the user's model, machine, batch, precision and optimizer, and nothing held."""
    assert settings.samples
    return Problem(
        graph=graph, cluster=cluster, global_batch=settings.samples, precision=settings.precision,
        optimizer=settings.optimizer, target=settings.framework,
    )  # fmt: skip


def _priced(report: Report, graph: Graph, groups: Alike, cluster: Cluster | None) -> tuple[Report, list[Finding]]:
    """Memory and time of the user's arrangement, or why not."""
    settings = report.settings
    if cluster is None:
        return replace(report, open=("memory and time: --cluster is needed",)), []
    if not settings.samples:
        return replace(report, open=("memory and time: the batch isn't known",)), []
    if settings.devices and settings.devices > cluster.devices:
        return report, []
    try:
        pricing = Pricing(problem_of(settings, graph, cluster), groups)
        priced = price(settings, pricing)
    except PlanError as error:
        return report, [problem(settings.place("precision"), str(error))]
    except Unpriced as reason:
        return replace(report, open=(f"memory and time: {reason}",)), []
    report = replace(report, priced=priced, limit_bytes=priced.limits[priced.heaviest])
    return report, list(memory_findings(settings, pricing, priced))


def _gain(report: Report, graph: Graph, cluster: Cluster) -> Report:
    """The planner's best for the same question."""
    if report.settings.offload:
        return replace(report, open=("time: transfers of offloaded states are not in the cost model",))
    try:
        best = planned(problem_of(report.settings, graph, cluster))
    except (Infeasible, PlanError) as error:
        return replace(report, no_plan=str(error))
    return replace(report, best=best)
