"""The examination: facts are gathered here, in an order that costs little, and judged in ``judge``."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from partita.noticing import VARIABLE
from partita.plugins.doctor.finding import Finding
from partita.plugins.doctor.imports import SECONDS, Import, imports
from partita.plugins.doctor.installed import Package, packages
from partita.plugins.doctor.machine import Machine, machine
from partita.plugins.doctor.plugged import AUTOLOAD, Plugged, plugged, script


@dataclass(frozen=True)
class Report:
    """All facts. ``imported`` by package, those that were tried; ``environment`` holds the variables that matter."""

    python: str
    executable: str
    packages: tuple[Package, ...]
    imported: Mapping[str, Import]
    machine: Machine
    plugins: tuple[Plugged, ...]
    script: tuple[str | None, bool]
    environment: Mapping[str, str]

    @property
    def torch(self) -> Mapping[str, Any]:
        """What torch said of devices and process groups; empty when it couldn't be imported."""
        return self.imported["torch"].facts if "torch" in self.imported else {}

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs that torch can use: name and memory_bytes."""
        return list(self.torch.get("devices", ()))

    def installed(self, name: str) -> bool:
        return any(package.name == name and package.installed for package in self.packages)


VARIABLES = (
    "OMP_NUM_THREADS",
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    VARIABLE,
    AUTOLOAD,
    "GLOO_SOCKET_IFNAME",
)


def examine(seconds: float = SECONDS) -> Report:
    """Look at everything. What isn't installed costs nothing; a process of imports may take ``seconds``."""
    known = packages()
    # What planning needs runs already.
    tried = [package for package in known if package.installed and package.purpose != "planning"]
    outcomes = imports([package.module for package in tried], seconds)
    environment = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    return Report(
        python=platform.python_version(),
        executable=sys.executable,
        packages=tuple(known),
        imported={package.name: outcome for package, outcome in zip(tried, outcomes, strict=True)},
        machine=machine(),
        plugins=tuple(plugged(environment)),
        script=script(),
        environment=environment,
    )


def document(report: Report, findings: list[Finding]) -> dict[str, Any]:
    """What ``--json`` prints."""
    facts = report.torch
    deepspeed = report.imported["deepspeed"].facts if "deepspeed" in report.imported else {}
    return {
        "ok": not any(finding.severity == "broken" for finding in findings),
        "python": {"version": report.python, "executable": report.executable},
        "packages": [
            {
                "name": package.name,
                "installed": package.installed,
                "tested": package.tested,
                "same": package.same,
                "for": package.purpose,
                "import": _import(report.imported.get(package.name)),
            }
            for package in report.packages
        ],
        "machine": {
            "cores": report.machine.cores,
            "memory_bytes": report.machine.memory_bytes,
            "shared_memory_bytes": report.machine.shared_memory_bytes,
            "gpus": report.gpus,
            "driver_gpus": list(report.machine.driver_gpus),
            "tools": report.machine.tools,
        },
        "groups": {name: facts.get(name, False) for name in ("distributed", "gloo", "nccl")},
        "deepspeed": deepspeed,
        "script": report.script[0],
        "plugins": [{**vars(one), "hooks": list(one.hooks)} for one in report.plugins],
        "environment": dict(report.environment),
        "findings": [vars(finding) for finding in findings],
    }


def _import(outcome: Import | None) -> dict[str, Any] | None:
    return None if outcome is None else {"error": outcome.error, "seconds": outcome.seconds}
