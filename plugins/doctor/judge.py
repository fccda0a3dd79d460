"""From facts to findings: each function looks at one side of the report and says what won't work, and what helps."""

from __future__ import annotations

from collections.abc import Iterator

from partita.noticing import VARIABLE, noticing
from partita.plugins.doctor.finding import Finding
from partita.plugins.doctor.installed import Package, numbers, tested
from partita.plugins.doctor.plugged import AUTOLOAD, NOTICE
from partita.plugins.doctor.report import Report

GIB = 2**30


def judge(report: Report) -> list[Finding]:
    """All findings, the worst first."""
    order = ("broken", "warning", "note")
    found = [
        finding
        for look in (python, installed, importing, groups, devices, machine, plugins, notice)
        for finding in look(report)
    ]
    return sorted(found, key=lambda finding: order.index(finding.severity))


def python(report: Report) -> Iterator[Finding]:
    least = tested()["python"]["least"]
    if numbers(report.python) < numbers(least):
        yield Finding(
            "broken",
            f"Python {report.python} is too old, {least} is the least",
            f"make a new environment: python{least} -m venv",
        )


def installed(report: Report) -> Iterator[Finding]:
    for package in report.packages:
        if package.installed is None:
            needed = package.purpose in ("recipes", "planning")
            what = f"{package.name} is not installed; {package.purpose} can't do without it"
            yield Finding("broken" if needed else "note", what, _install(package))
        elif package.too_old:
            what = f"{package.name} {package.installed} is too old, {package.least} is the least"
            yield Finding("broken", what, _pinned(package))
    differing = [p for p in report.packages if p.installed and not p.same and not p.too_old]
    if differing:
        list_ = ", ".join(f"{p.name} {p.installed} (tested {p.tested})" for p in differing)
        yield Finding("note", f"other versions than those tested together: {list_}", "nothing, unless something fails")


def importing(report: Report) -> Iterator[Finding]:
    for package in report.packages:
        outcome = report.imported.get(package.name)
        if outcome is not None and outcome.error is not None:
            what = f"{package.name} is installed and can't be imported: {outcome.error}"
            yield Finding("broken", what, _pinned(package))


def groups(report: Report) -> Iterator[Finding]:
    facts = report.torch
    if not facts:
        return
    if not facts["distributed"]:
        yield Finding("broken", "this torch is built without torch.distributed", "install torch from its own wheels")
        return
    mend = "set GLOO_SOCKET_IFNAME to a network interface (lo on one machine), or give the host's name an address"
    if facts["gloo"] is not True:
        why = facts["gloo"] or "this torch is built without it"
        yield Finding("broken", f"gloo does not work, over which processes on CPUs speak: {why}", mend)
    if report.gpus and facts["nccl"] is not True:
        why = facts["nccl"] or "this torch is built without it"
        yield Finding("broken", f"nccl does not work, over which GPUs speak: {why}", "install a CUDA build of torch")


def devices(report: Report) -> Iterator[Finding]:
    facts = report.torch
    if not facts:
        return
    seen, there = len(report.gpus), len(report.machine.driver_gpus)
    if there and not seen:
        build = f"a build for CUDA {facts['cuda']}" if facts["cuda"] else "a build for CPUs"
        why = f"; it says: {facts['devices_error']}" if facts["devices_error"] else ""
        yield Finding(
            "warning",
            f"the driver has {there} GPUs and torch ({build}) can use none{why}",
            "install the build of torch for this driver's CUDA, and look at CUDA_VISIBLE_DEVICES",
        )
    if seen and not report.machine.tools["nvcc"]:
        yield Finding(
            "note",
            "nvcc is not on the PATH: DeepSpeed can't compile its own CUDA operators",
            "the recipes need none of them",
        )
    if report.installed("deepspeed") and not seen:
        known = report.imported["deepspeed"].facts
        for name in ("bf16", "fp16"):
            if known and not known[name]:
                yield Finding(
                    "note",
                    f"DeepSpeed does not train in {name} on this machine's {known['accelerator']}",
                    "plan and train with --precision fp32" + (" or bf16" if name == "fp16" and known["bf16"] else ""),
                )


def machine(report: Report) -> Iterator[Finding]:
    shared = report.machine.shared_memory_bytes
    if shared is not None and shared < GIB:
        yield Finding(
            "warning",
            f"/dev/shm has {shared / GIB:.3f} GiB: nccl and the workers of data loaders fail when it is full",
            "start the container with --shm-size=8g or --ipc=host",
        )
    yield from _threads(report)
    if report.machine.stale_locks and report.installed("deepspeed"):
        yield Finding(
            "warning",
            "a compilation of DeepSpeed's operators was cut off, and whoever needs one waits for its lock for ever",
            f"remove {' and '.join(report.machine.stale_locks)}",
        )
    if report.installed("deepspeed"):
        if not report.machine.tools["numactl"]:
            yield Finding(
                "note",
                "numactl is not installed: the launcher deepspeed can't bind processes to cores",
                "start with torchrun",
            )
        if not report.machine.tools["c++"]:
            yield Finding(
                "note", "there is no C++ compiler: DeepSpeed can't compile its own operators", "the recipes need none"
            )
        if "RANK" not in report.environment and not _has("mpi4py"):
            yield Finding(
                "note",
                "mpi4py is not installed: a script that is started with python alone fails in deepspeed.initialize",
                "start it with torchrun, for one process too",
            )


def _threads(report: Report) -> Iterator[Finding]:
    text = report.environment.get("OMP_NUM_THREADS")
    cores = report.machine.cores
    if text is None:
        return
    if not text.isdecimal() or int(text) == 0:
        yield Finding(
            "warning", f'OMP_NUM_THREADS is "{text}", which is no count', f"set it to 1 … {cores}, or to nothing"
        )
    elif int(text) > cores:
        what = f"OMP_NUM_THREADS is {text} and this process may use {cores} cores: threads wait for one another"
        yield Finding("warning", what, f"set it to {cores} ÷ processes on this machine")


def plugins(report: Report) -> Iterator[Finding]:
    for one in report.plugins:
        if one.error is not None:
            what = f'the plugin "{one.name}" of {one.package} ({one.value}) can\'t be loaded: {one.error}'
            yield Finding("broken", what, f"mend it, or: pip uninstall {one.package}")
        elif not one.on and one.value != NOTICE:
            what = f'"{one.name}" of {one.package} is off: torch loads nothing while {AUTOLOAD} is not 1'
            yield Finding("note", what, f"unset {AUTOLOAD}")
    path, own = report.script
    if path is None:
        yield Finding("note", "partita is not on the PATH", f"{report.executable} -m partita.cli.main does the same")
    elif not own:
        yield Finding(
            "warning", f"the partita on the PATH is another one: {path}", "activate the environment that is meant"
        )


def notice(report: Report) -> Iterator[Finding]:
    """Whether the key "partita" in a DeepSpeed configuration is noticed by a script that says nothing of Partita."""
    if not report.installed("deepspeed"):
        return
    without = 'a key "partita" in DeepSpeed\'s configuration is noticed by no script that is started as always'
    instead = "or start it with partita run script.py, or let it import partita.adapters.deepspeed"
    word = report.environment.get(VARIABLE, "")
    if noticing(report.environment) is None:
        what = f'{VARIABLE} is "{word}", which is neither off (or 0) nor on (or 1), and is taken for on'
        yield Finding("warning", what, f"set it to one of these, or unset {VARIABLE}")
    entries = [one for one in report.plugins if one.value == NOTICE]
    if not entries:
        mend = f"pip install --force-reinstall --no-deps partita, {instead}"
        yield Finding("warning", f"{without}: this installation of Partita has no {NOTICE}", mend)
    elif not all(one.on for one in entries):
        off = f"{VARIABLE} is {word}" if noticing(report.environment) is False else f"{AUTOLOAD} is not 1"
        which = VARIABLE if noticing(report.environment) is False else AUTOLOAD
        yield Finding("note", f"{without}: {off}", f"unset {which}, {instead}")
    elif report.imported["deepspeed"].facts.get("noticed") is False:
        what = f"{without}: {NOTICE} is on and did not reach deepspeed.initialize"
        yield Finding("warning", what, "look at what is said on stderr by: python -c 'import torch, deepspeed'")


def _has(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def _install(package: Package) -> str:
    return f"pip install 'partita[{package.extra}]'" if package.extra else "pip install partita"


def _pinned(package: Package) -> str:
    return f"pip install --force-reinstall {package.name}=={package.tested}"
