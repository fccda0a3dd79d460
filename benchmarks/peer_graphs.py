"""The optima of other planners' own solvers beside Partita's, and the seconds that both took.

The argument is a folder with ``pipedream``, and in it the published profiles and a ``golden.json`` of what the authors'
solver found. Seconds are of the search, after compiled code is loaded, and with reading the file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from machine import machine

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


QUESTIONS = {"pipedream": pipedream}


def solved(name: str, path: Path, asked: Asked) -> tuple[WorkloadPlan, float]:
    """The plan and its seconds."""
    start = time.monotonic()
    found, _ = format_of(name).solve(str(path), asked, start + LIMIT)
    return found, time.monotonic() - start


def main() -> None:
    """Print one row a problem."""
    if len(sys.argv) != 2:
        print("a folder with the published profiles is the argument; without it there is nothing to compare")
        return
    print(machine())
    for name, questions in QUESTIONS.items():
        folder = Path(sys.argv[1]) / name
        print(f"\n{name:34} {'golden s':>14} {'ours s':>14} {'ours/golden-1':>13} {'search s':>9}   sets, proof")
        for index, (what, file, asked, golden) in enumerate(questions(folder)):
            if not index:
                solved(name, folder / file, asked)
            found, seconds = solved(name, folder / file, asked)
            own = found.seconds_per_sample
            beside = f"{'':>14} {own:14.9g} {'':>13}"
            if golden is not None:
                beside = f"{golden:14.9g} {own:14.9g} {own / golden - 1:13.1e}"
            proof = "optimal" if found.optimal else f"gap {found.gap:.2%}"
            print(f"{what:34} {beside} {seconds:9.2f}   {found.sets:,} {proof}", flush=True)


if __name__ == "__main__":
    main()
