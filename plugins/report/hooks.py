"""The report as a plugin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from partita.hooks import hookimpl

if TYPE_CHECKING:
    from partita.cluster import Cluster
    from partita.plan import Plan
    from partita.simulate import Simulation
    from partita.simulate.stage_graph import Forms, StageGraph


# Last, so that a plugin of someone else's may draw its own page.
@hookimpl(trylast=True)
def partita_report(
    simulation: Simulation, plan: Plan, cluster: Cluster, path: Path, stages: StageGraph, forms: Forms | None
) -> bool | None:
    if path.suffix.lower() not in (".html", ".htm"):
        return None
    from partita.files import write_text
    from partita.plugins.report.page import page

    write_text(path, page(simulation, plan, cluster, stages, forms))
    return True
