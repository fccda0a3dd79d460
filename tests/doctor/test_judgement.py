"""What follows from facts: one row for each thing that won't work on some machine."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from partita.plugins.doctor.imports import Import
from partita.plugins.doctor.installed import Package, packages
from partita.plugins.doctor.judge import judge
from partita.plugins.doctor.machine import Machine, machine, stale_locks
from partita.plugins.doctor.plugged import NOTICE, Plugged, plugged
from partita.plugins.doctor.report import Report, document

GIB = 2**30
TOOLS = {"torchrun": True, "numactl": True, "ninja": True, "c++": True, "nvcc": True}
TORCH = {
    "cuda": "13.0", "devices": [{"name": "H100", "memory_bytes": 80 * GIB}] * 2, "devices_error": None,
    "distributed": True, "gloo": True, "nccl": True,
}  # fmt: skip
DEEPSPEED = {"accelerator": "cuda", "fp16": True, "bf16": True, "noticed": True}
NOTICING = Plugged("torch.backends", "partita", NOTICE, "partita", True, (), None)
OFF = (replace(NOTICING, on=False),)


@cache
def known() -> list[Package]:
    return packages()


def report(torch: dict[str, Any] | None = None, deepspeed: dict[str, Any] | None = None, **changes: Any) -> Report:
    """A machine with two GPUs on which everything is right, but for what is given."""
    facts = {"torch": {**TORCH, **(torch or {})}, "deepspeed": {**DEEPSPEED, **(deepspeed or {})}}
    whole = Machine(8, 64 * GIB, 8 * GIB, ("H100", "H100"), TOOLS, ())
    parts = {name: changes.pop(name) for name in list(changes) if name in Machine.__dataclass_fields__}
    made = Report(
        python="3.11.7", executable="python",
        packages=tuple(replace(package, installed=package.tested) for package in known()),
        imported={name: Import(name, None, 1.0, found) for name, found in facts.items()},
        machine=replace(whole, **parts), plugins=(NOTICING,), script=("bin/partita", True), environment={"RANK": "0"},
    )  # fmt: skip
    return replace(made, **changes)


CPU = {"cuda": None, "devices": [], "nccl": False}


def test_nothing_is_found_where_everything_is_right() -> None:
    assert judge(report()) == []
    assert judge(report(torch=CPU, driver_gpus=())) == []
    assert document(report(), [])["ok"] is True


@pytest.mark.parametrize(
    ("made", "severity", "fact", "mend"),
    [
        (report(python="3.10.14"), "broken", "Python 3.10.14 is too old, 3.11 is the least", "python3.11"),
        (report(torch={"distributed": False}), "broken", "without torch.distributed", "wheels"),
        (report(torch={"gloo": False}), "broken", "gloo does not work", "GLOO_SOCKET_IFNAME"),
        (report(torch={"gloo": "RuntimeError: no address"}), "broken", "speak: RuntimeError: no address", "interface"),
        (report(torch={"nccl": False}), "broken", "nccl does not work, over which GPUs speak", "CUDA build"),
        (report(torch={"nccl": "no version"}), "broken", "GPUs speak: no version", "CUDA build"),
        (report(torch=CPU), "warning", "the driver has 2 GPUs and torch (a build for CPUs) can use none", "CUDA"),
        (
            report(torch={"devices": [], "devices_error": "driver too old"}),
            "warning", "torch (a build for CUDA 13.0) can use none; it says: driver too old", "CUDA_VISIBLE_DEVICES",
        ),
        (
            report(torch=CPU, driver_gpus=(), deepspeed={"accelerator": "cpu", "fp16": False}),
            "note", "DeepSpeed does not train in fp16 on this machine's cpu", "--precision fp32 or bf16",
        ),
        (report(shared_memory_bytes=2**26), "warning", "/dev/shm has 0.062 GiB", "--shm-size=8g"),
        (report(stale_locks=("a/lock",)), "warning", "was cut off", "remove a/lock"),
        (report(tools={**TOOLS, "numactl": False}), "note", "numactl is not installed", "torchrun"),
        (report(tools={**TOOLS, "c++": False}), "note", "no C++ compiler", "the recipes need none"),
        (report(tools={**TOOLS, "nvcc": False}), "note", "nvcc is not on the PATH", "the recipes need none"),
        (report(environment={"RANK": "0", "OMP_NUM_THREADS": "9"}), "warning", "OMP_NUM_THREADS is 9", "set it to 8"),
        (report(environment={"RANK": "0", "OMP_NUM_THREADS": "four"}), "warning", 'is "four"', "1 … 8"),
        (report(environment={"RANK": "0", "OMP_NUM_THREADS": "0"}), "warning", 'is "0"', "1 … 8"),
        (report(environment={}), "note", "mpi4py is not installed", "torchrun, for one process too"),
        (report(script=(None, False)), "note", "partita is not on the PATH", "python -m partita.cli.main"),
        (report(script=("/opt/partita", False)), "warning", "is another one: /opt/partita", "activate"),
        (
            report(plugins=(NOTICING, Plugged("partita", "odd", "a.b", "c", True, (), "ImportError: d"))),
            "broken", 'the plugin "odd" of c (a.b) can\'t be loaded: ImportError: d', "pip uninstall c",
        ),
        (
            report(plugins=OFF, environment={"RANK": "0", "PARTITA_NOTICE": "Off"}),
            "note", "no script that is started as always: PARTITA_NOTICE is Off", "unset PARTITA_NOTICE, or start it",
        ),
        (
            report(plugins=OFF, environment={"RANK": "0", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}),
            "note", "as always: TORCH_DEVICE_BACKEND_AUTOLOAD is not 1", "unset TORCH_DEVICE_BACKEND_AUTOLOAD, or",
        ),
        (
            report(environment={"RANK": "0", "PARTITA_NOTICE": "no"}),
            "warning", 'PARTITA_NOTICE is "no", which is neither off (or 0) nor on (or 1)', "or unset PARTITA_NOTICE",
        ),
        (report(deepspeed={"noticed": False}), "warning", "is on and did not reach deepspeed.initialize", "on stderr"),
        (
            report(plugins=()), "warning", f"this installation of Partita has no {NOTICE}", "pip install",
        ),
    ],
)  # fmt: skip
def test_one_thing_is_wrong(made: Report, severity: str, fact: str, mend: str) -> None:
    (finding,) = judge(made)
    assert (finding.severity, fact in finding.what, mend in finding.mend) == (severity, True, True), finding
    assert document(made, [finding])["ok"] is (severity != "broken")


def test_without_deepspeed_no_key_is_missed() -> None:
    packages_ = tuple(replace(one, installed=None if one.name == "deepspeed" else one.tested) for one in packages())
    found = [finding.what for finding in judge(report(plugins=(), packages=packages_))]
    assert found == ["deepspeed is not installed; recipes can't do without it"]


@pytest.mark.parametrize(
    ("environment", "on"),
    [
        ({}, True), ({"PARTITA_NOTICE": "1"}, True), ({"PARTITA_NOTICE": "ON"}, True), ({"PARTITA_NOTICE": ""}, True),
        ({"PARTITA_NOTICE": "off"}, False), ({"PARTITA_NOTICE": "OFF"}, False), ({"PARTITA_NOTICE": "0"}, False),
        ({"PARTITA_NOTICE": "false"}, True), ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, False),
        ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PARTITA_NOTICE": "on"}, False),
    ],
)  # fmt: skip
def test_what_turns_the_notice_off(environment: dict[str, str], on: bool) -> None:
    (entry,) = [one for one in plugged(environment) if one.value == NOTICE]
    assert (entry.group, entry.package, entry.on, entry.error) == ("torch.backends", "partita", on, None)


def test_the_worst_comes_first() -> None:
    made = report(python="3.9.1", shared_memory_bytes=0, script=(None, False))
    assert [finding.severity for finding in judge(made)] == ["broken", "warning", "note"]


def test_locks_of_compilations_that_were_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    for name, age_seconds in (("old", 3600), ("new", 10)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
        os.utime(tmp_path / name / "lock", (time.time() - age_seconds,) * 2)
    assert stale_locks() == (str(tmp_path / "old" / "lock"),)
    assert stale_locks(minutes=90) == ()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "none"))
    assert stale_locks() == ()


def test_this_machine() -> None:
    here = machine()
    assert here.cores == len(os.sched_getaffinity(0))
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert here.memory_bytes == int(total.split()[1]) * 1024
