"""From a plan's file back to what it was made of: its model's graph and its cluster, by the names that it holds."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from partita.errors import ClusterError, InputError

if TYPE_CHECKING:
    from partita.cluster import Cluster
    from partita.graph import Graph
    from partita.plan import Plan

# How the cluster of a plan for processes is named: their cores are part of it.
CORES = re.compile(r"(?P<cluster>.+) on (?P<cores>[1-9][0-9]*) cores?")


def machine_of(
    plan: Plan, path: str, graph: Graph, cluster: str | None, devices: int | None, profile: str | None
) -> Cluster:
    """The cluster with the profile that is given; the plan's own cluster with the one that priced the plan.

    InputError where that isn't there any more, or isn't what it was.
    """
    from partita.profile.profiled import content, profiled

    machine = cluster_of(plan, path, cluster, devices)
    if profile is not None:
        return profiled(machine, profile, plan.precision, graph)
    if plan.profile is None or cluster is not None:
        return machine
    own = plan.profile.path
    if not Path(own).exists():
        raise InputError(
            f'{path}: the plan was made with the profile "{own}", which isn\'t here; --profile FILE says where it is'
        )
    if content(Path(own)) != plan.profile.sha256:
        raise InputError(
            f'{path}: the profile "{own}" is not what it was when the plan was made with it; --profile {own} takes it '
            "as it is"
        )
    return profiled(machine, own, plan.precision, graph)


def model_of(plan: Plan, path: str, model: str | None) -> Graph:
    """The graph of MODEL, or of the model that the plan names where that is a recipe or a file."""
    from partita.cli.model import load_model
    from partita.cost.precision import compute_dtype

    return load_model(name_of(plan, path, model), plan.seq, compute_dtype(plan.precision), plan.sample_parts)


def name_of(plan: Plan, path: str, model: str | None) -> str:
    """MODEL, or what the plan names where that is a recipe or a file; InputError where it is neither."""
    from partita.hooks import recipes

    name = plan.model if model is None else model
    if model is None and name not in recipes() and not Path(name).exists():
        raise InputError(
            f'{path}: the plan\'s model "{name}" is neither a recipe nor a file here; --model MODEL says where it is'
        )
    return name


def cluster_of(plan: Plan, path: str, cluster: str | None, devices: int | None) -> Cluster:
    """The cluster that is given, or the one that the plan names."""
    from partita.cluster import parse_cluster

    if cluster is not None:
        return parse_cluster(cluster, devices)
    if devices is not None:
        raise InputError(f"--devices {devices} goes with --cluster cpu; the plan was made for {plan.cluster}")
    found = CORES.fullmatch(plan.cluster)
    try:
        made = parse_cluster(found["cluster"] if found else plan.cluster)
    except ClusterError:
        raise InputError(
            f'{path}: the plan was made for cluster "{plan.cluster}", which names no preset; '
            "--cluster CLUSTER says what it is"
        ) from None
    return replace(made, name=plan.cluster, cores=int(found["cores"])) if found else made
