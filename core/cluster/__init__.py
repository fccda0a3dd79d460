"""Devices, links and nodes; presets as data files; how a cluster is written."""

from partita.cluster.file import load_cluster
from partita.cluster.model import Cluster, Device, Kind, Link
from partita.cluster.parse import parse_cluster
from partita.cluster.presets import load_preset, preset_names

__all__ = [
    "Cluster",
    "Device",
    "Kind",
    "Link",
    "load_cluster",
    "load_preset",
    "parse_cluster",
    "preset_names",
]
