"""The optima of other planners' own solvers beside Partita's, and the seconds that both took.

The argument is a folder with ``pipedream``, ``piper`` and ``dnn-partitioning``, and in each the published profiles and
a ``golden.json`` of what the authors' solver found, and of experts' splits. Seconds are of the search, after compiled
code is loaded, and with reading the file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path

from machine import machine

from partita.errors import Infeasible
from partita.workload.answer import WorkloadPlan
from partita.workload.asked import Asked
from partita.workload.formats import format_of

LIMIT = 60.0


def pipedream(folder: Path) -> Iterator[tuple[str, str, Asked, float | None]]:
    """What is asked: (name, file, what beside it, seconds of the golden plan)."""
    for golden in json.loads((folder / "golden.json").read_text())["problems"]:
        fix = () if golden["replication_allowed"] else ("dp=1",)
        asked = Asked(golden["workers"], bytes_per_second=golden["bandwidth_bytes_per_s"], fix=fix)
        yield golden["name"], golden["graph"], asked, golden["seconds_per_minibatch"]
    known = {golden["graph"] for golden in json.loads((folder / "golden.json").read_text())["problems"]}
    for path in sorted(folder.glob("*.graph.txt")):
        if path.name not in known:
            yield f"{path.name.split('.')[0]}-n8-bw1e+09", path.name, Asked(8, bytes_per_second=1e9), None


def piper(folder: Path) -> Iterator[tuple[str, str, Asked, float | None]]:
    """As ``pipedream``; infinite where the authors' solver finds that nothing fits."""
    held = {"dp=1": "data_parallel_allowed", "tp=1": "tensor_parallel_allowed", "recompute=none": "recompute_allowed"}
    for golden in json.loads((folder / "golden.json").read_text())["problems"]:
        fix = tuple(decision for decision, name in held.items() if not golden[name])
        numbers = (golden[name] for name in ("devices", "memory_bytes", "microbatches", "bandwidth_bytes_per_s"))
        yield golden["name"], golden["graph"], Asked(*numbers, fix), golden.get("tps", inf)


def placement(folder: Path) -> Iterator[tuple[str, str, Asked, float | None]]:
    """As ``pipedream``; an expert's split where the authors' programme has no answer."""
    goldens = json.loads((folder / "golden.json").read_text())
    known = {golden["input"]: golden["max_load_ms"] / 1000 for golden in goldens["human_experts"]}
    experts = set(known)
    known |= {golden["input"]: golden["max_load_ms"] / 1000 for golden in goldens["dynamic_program"]}
    experts -= {golden["input"] for golden in goldens["dynamic_program"]}
    for path in sorted(folder.glob("*-inputs/*/*.json")):
        name = str(path.relative_to(folder))
        short = name.removeprefix("throughput-inputs/").removesuffix(".json").replace("Graphs", "")
        yield short + (" (expert)" if name in experts else ""), name, Asked(), known.get(name)


QUESTIONS = {"pipedream": pipedream, "piper": piper, "dnn-partitioning": placement}


def solved(name: str, path: Path, asked: Asked) -> tuple[WorkloadPlan | None, float]:
    """The plan, None where nothing fits, and its seconds."""
    start = time.monotonic()
    try:
        found, _ = format_of(name).solve(str(path), asked, start + LIMIT)
    except Infeasible:
        return None, time.monotonic() - start
    return found, time.monotonic() - start


def main() -> None:
    """Print one row a problem."""
    if len(sys.argv) != 2:
        print("a folder with the published profiles is the argument; without it there is nothing to compare")
        return
    print(machine())
    for name, questions in QUESTIONS.items():
        folder = Path(sys.argv[1]) / name
        print(f"\n{name:42} {'golden s':>14} {'ours s':>14} {'ours/golden-1':>13} {'search s':>9}")
        for index, (what, file, asked, golden) in enumerate(questions(folder)):
            if not index:
                solved(name, folder / file, asked)
            found, seconds = solved(name, folder / file, asked)
            own = inf if found is None else found.seconds_per_sample
            beside = f"{'':>14} {own:14.9g} {'':>13}"
            if golden is not None:
                beside = f"{golden:14.9g} {own:14.9g} {0 if own == golden else own / golden - 1:13.1e}"
            proof = "nothing fits"
            if found is not None:
                proof = f"{found.sets:,} sets, {'optimal' if found.optimal else f'gap {found.gap:.2%}'}"
            print(f"{what:42} {beside} {seconds:9.2f}   {proof}", flush=True)


if __name__ == "__main__":
    main()
