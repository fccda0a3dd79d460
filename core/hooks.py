"""Where Partita can be extended: the hook specifications, and the plugins that implement them.

A plugin is a module or an object behind an entry point of the group ``partita``; what ships with Partita is registered
there too and has no other way in. Loading a plugin must be cheap, because every command loads them all: hooks import
what they need when they are called. A specification stands here only if something calls it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

from partita.errors import InputError, nearest

if TYPE_CHECKING:
    import typer

    from partita.cluster import Cluster
    from partita.cost.alike import Alike
    from partita.draft import Draft
    from partita.graph import Graph
    from partita.plan import Plan
    from partita.planner.joint.manner import Manner
    from partita.problem import Problem
    from partita.redistribution import ArrayType, Step
    from partita.schedules import Schedule
    from partita.simulate import Simulation
    from partita.simulate.stage_graph import Forms, StageGraph

NAME = "partita"

hookspec = pluggy.HookspecMarker(NAME)
hookimpl = pluggy.HookimplMarker(NAME)


class Recipe(Protocol):
    """Models of known sizes with everything that is needed to train them."""

    @property
    def names(self) -> Sequence[str]:
        """What a user writes for MODEL, one name a size. Read often, so it imports nothing."""

    def config(self, name: str) -> Mapping[str, Any]:
        """The HuggingFace configuration of one of ``names``, as ``config.json`` would hold it."""

    def run(self, name: str, options: Sequence[str]) -> int:
        """Train it. ``options`` is the rest of the command line after the name; the result is the exit status."""


@hookspec(firstresult=True)
def partita_capture(model: str, samples: int, seq: int | None, dtype: str) -> Graph | None:
    """The graph of a model that a user named.

    Called by every verb that takes a MODEL, with the text as the user wrote it. ``samples`` is the number of samples to
    capture, ``seq`` the tokens of each (None: as the model says), ``dtype`` that of parameters and values, such as
    ``bfloat16``. A model with example inputs of its own may have other samples. None means that the text is not of
    the kind that this plugin reads; text that is of that kind and wrong is a ModelError or an InputError.
    """


@hookspec(firstresult=True)
def partita_module(model: str, seq: int | None) -> tuple[Callable[[], Any], Callable[[int], Mapping[str, Any]]] | None:
    """The torch module of a model that a user named, as its author wrote it.

    Called by ``verify``, with the text as the user wrote it; ``seq`` is as in ``partita_capture``. The result is a
    function that builds the module, whole and with weights, and one that gives its arguments by name for a number of
    samples, of which shapes, dtypes and ranges count. None means that the text is not of the kind that this plugin
    reads.
    """


@hookspec
def partita_recipe() -> Recipe | None:
    """A recipe.

    Called by ``partita run``, to find the recipe of a name, and for the names that an unknown MODEL may have meant.
    None means that there is none to offer now.
    """


@hookspec
def partita_cluster_presets() -> Iterable[Path] | None:
    """The preset files of devices, which ``4x8xNAME`` then names by their stem.

    Called whenever a cluster is read. Their form is that of ``partita.cluster.presets.Preset``. None means no preset.
    """


@hookspec(firstresult=True)
def partita_planner(problem: Problem, engine: str | None, seconds: float) -> Plan | None:
    """The plan of a problem, called through ``planned``.

    ``engine`` is the one that the user asked for by name; None leaves the choice open. ``seconds``: after so many the
    best so far is wanted. The first engine that returns a plan wins; the exact joint planner comes last. None leaves
    the problem to the next engine; Infeasible says that nothing fits, and ends the search.
    """


@hookspec
def partita_strategies(problem: Problem, groups: Alike) -> Iterable[Manner] | None:
    """Manners in which blocks may run, beside plain data and tensor parallelism.

    Called by the joint planner, once a search, for target partita alone: it runs any plan. Each
    ``partita.planner.joint.manner.Manner`` joins the search with every ZeRO stage and recomputation, is priced by the
    division that its strategy comes to, and stands in the plan as cuts and axes. ``groups`` are the blocks that are
    alike, with their classes of dims. What is offered should be able to win on this problem: each manner makes the
    search longer. None means that there is none to offer; two manners with one name are an error.
    """


@hookspec
def partita_library() -> Mapping[str, Callable[[Draft], None]] | None:
    """Plans that people make by hand, by name.

    Called for ``--plan-function NAME``. A function records cuts, devices and an order into the ``partita.draft.Draft``
    that it is given. None means that there is none to offer now; two plugins with one name are an error.
    """


@hookspec(firstresult=True)
def partita_report(
    simulation: Simulation, plan: Plan, cluster: Cluster, path: Path, stages: StageGraph, forms: Forms | None
) -> bool | None:
    """Writes a simulated step into a file for people to look at.

    Called by ``simulate --report FILE`` once the step has been simulated; ``path`` is FILE, and its suffix says what is
    wanted (``.html``). ``stages`` is the graph of the plan's stages, ``forms`` the plan by it and as a chain, where the
    two are compared. True: it has been written, whole. None leaves the file to the next plugin; where none writes it,
    the suffix is the user's error. What can't be written is an InputError.
    """


@hookspec(firstresult=True)
def partita_schedule(name: str) -> Schedule | None:
    """The schedule that plans write by this name.

    Called for an order's generator that isn't one of Partita's own, by whoever lowers, proves or runs a plan. Its turns
    have to be the same wherever they are asked for: each rank makes them for itself. None leaves the name to the next
    plugin; where no plugin knows it, the plan is wrong.
    """


@hookspec
def partita_peer_redistribution(
    source: ArrayType, target: ArrayType, item_bytes: int
) -> Iterable[tuple[str, tuple[Step, ...]]] | None:
    """How other libraries would redistribute an array, by name: ``("DTensor greedy", steps)``.

    Called by ``redistribute`` once its own answer is known; both are priced alike. Elements are ``item_bytes`` wide.
    The steps lead from ``source`` to ``target`` and are those that the library itself would take. None, or a name left
    out: it isn't installed, or can't state this redistribution.
    """


@hookspec(firstresult=True)
def partita_function(name: str) -> Callable[..., Any] | None:
    """A function on the tensors of a framework that stands in the package ``partita`` by its name.

    Called when ``partita.NAME`` is read the first time, for the names in ``partita.FUNCTIONS``. None leaves the name to
    the next plugin; where no plugin answers, or its framework isn't installed, there is no such attribute.
    """


@hookspec(firstresult=True)
def partita_realise(target: str) -> Callable[..., Any] | None:
    """What makes modules of a framework out of ops whose dims tensor parallelism cuts.

    Called by the runtime, once a process, for a plan with tp > 1 that was made for ``target``. The result is a
    ``partita.adapters.torch.stage.Realise``. None leaves the target to the next plugin; where no plugin answers, ops
    run as torch operators with Partita's own collectives.
    """


@hookspec
def partita_engine_made(engine: Any, config: dict[str, Any]) -> None:
    """Tells of an engine that runs a plan, before the user has it.

    Called on every rank by ``deepspeed.initialize`` with the key ``"partita"``, once an engine, for those who fit
    another framework to it. ``engine`` has ``step_seconds``, ``predicted_step_seconds`` and ``plan``. ``config`` is the
    user's configuration, the object itself: the framework that made it may go on reading it. What is returned is
    ignored.
    """


@hookspec
def partita_verbs(app: typer.Typer) -> None:
    """Adds commands to ``partita``.

    Called once a process, before the command line is read. A verb returns its exit status or None, raises PartitaError
    for what the user got wrong, and writes nothing but its answer on stdout. What it returns here is ignored.
    """


def planned(problem: Problem, engine: str | None = None, seconds: float = inf) -> Plan:
    """The plan of the first engine that has one; InputError where the user asked for an engine that there isn't."""
    found: Plan | None = plugins().hook.partita_planner(problem=problem, engine=engine, seconds=seconds)
    if found is None:
        raise InputError(
            f'--engine {engine}: no engine of that name has a plan for this; "joint" and "miqp" are built in'
        )
    return found


@cache
def plugins() -> pluggy.PluginManager:
    """All installed plugins; InputError names one that can't be loaded or that implements a hook which isn't one."""
    manager = pluggy.PluginManager(NAME)
    manager.add_hookspecs(sys.modules[__name__])
    for entry in entry_points(group=NAME):
        if not manager.has_plugin(entry.name):
            plugin = _loaded(entry)
            try:
                manager.register(plugin, name=entry.name)
            except pluggy.PluginValidationError as error:
                raise InputError(f'the plugin "{entry.name}" ({entry.value}) does not fit a hook: {error}') from error
    _check_names(manager)
    return manager


def _loaded(entry: EntryPoint) -> object:
    try:
        return entry.load()
    except Exception as error:
        home = f" of the package {entry.dist.name}" if entry.dist else ""
        raise InputError(
            f'the plugin "{entry.name}"{home} ({entry.value}) can\'t be loaded: {type(error).__name__}: {error}'
        ) from error


def _check_names(manager: pluggy.PluginManager) -> None:
    """InputError for an implementation of a hook that doesn't exist: it would never be called."""
    known = [name for name in globals() if name.startswith(f"{NAME}_")]
    for name, plugin in manager.list_name_plugin():
        for call in manager.get_hookcallers(plugin) or ():
            if not call.has_spec():
                raise InputError(
                    f'the plugin "{name}" implements {call.name}, which is no hook.{nearest(call.name, known)}'
                )


def recipes() -> dict[str, Recipe]:
    """Every recipe by each of its names; InputError where two plugins offer one name."""
    found: dict[str, Recipe] = {}
    for recipe in plugins().hook.partita_recipe():
        for name in recipe.names:
            if name in found:
                raise InputError(f'two plugins offer a recipe "{name}"; uninstall one of them')
            found[name] = recipe
    return found
