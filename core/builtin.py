"""What core itself brings, registered as a plugin like any other: saved graphs, presets, the joint planner, verbs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from partita.hooks import hookimpl

if TYPE_CHECKING:
    import typer

    from partita.cost.alike import Alike
    from partita.graph import Graph
    from partita.plan import Plan
    from partita.planner.joint.manner import Manner
    from partita.problem import Problem


@hookimpl(trylast=True)
def partita_capture(model: str, seq: int | None) -> Graph | None:
    """A saved graph: a JSON object with ops and blocks. Its samples, dtype and sequence are those it was saved with."""
    from partita.errors import InputError
    from partita.files import read_json
    from partita.graph import load_graph

    if not Path(model).is_file():
        return None
    value = read_json(model)
    if not isinstance(value, dict) or not {"ops", "blocks"} <= value.keys():
        return None
    graph = load_graph(model)
    if seq not in (None, graph.seq):
        raise InputError(
            f"{model}: the graph was saved with seq={graph.seq}, not {seq}; leave out --seq or capture it again"
        )
    return graph


@hookimpl
def partita_cluster_presets() -> Iterable[Path]:
    return sorted((Path(__file__).parent / "cluster" / "presets").glob("*.json"))


@hookimpl(trylast=True)
def partita_planner(problem: Problem, engine: str | None, seconds: float) -> Plan | None:
    from partita.planner.joint.plan import ENGINES
    from partita.ranking import planned

    if engine is not None and engine not in ENGINES:
        return None
    return planned(problem, seconds, engine or "joint")


@hookimpl
def partita_strategies(problem: Problem, groups: Alike) -> Iterable[Manner]:
    from partita.planner.joint.manners import built_in

    return tuple(built_in(problem, groups))


# First, so that the verbs of others stand after these in the help.
@hookimpl(tryfirst=True)
def partita_verbs(app: typer.Typer) -> None:
    from partita.cli import compare, explain, plan, redistribute, run, simulate

    app.command("plan", epilog=plan.EXAMPLES)(plan.plan)
    app.command("explain", epilog=explain.EXAMPLES)(explain.explain)
    app.command("simulate", epilog=simulate.EXAMPLES)(simulate.simulate)
    app.command("compare", epilog=compare.EXAMPLES)(compare.compare)
    app.command("redistribute", epilog=redistribute.EXAMPLES)(redistribute.redistribute)
    app.command("run", epilog=run.EXAMPLES, context_settings={"allow_interspersed_args": False})(run.run)
