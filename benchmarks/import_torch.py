"""What `import torch` costs where Partita is installed and not used: in environments with and without it.

Both environments are links to the packages of this one; the one leaves out what Partita's installation put there.
Processes alternate between them, and medians are compared. A process that imports torch differs from the next by more
than what is looked for, so what Partita adds is also timed by itself, within one process: torch is imported with its
extensions off, and then Partita's is loaded as torch would load it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from importlib.metadata import distribution, entry_points
from pathlib import Path
from statistics import median

from machine import machine

PAIRS = 15
WHOLE = """
import json, time
start = time.perf_counter()
import torch
print(json.dumps([time.perf_counter() - start]))
"""
PARTS = """
import json, os, time
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
start = time.perf_counter()
import torch
from importlib.metadata import entry_points
imported = time.perf_counter()
(entry,) = [entry for entry in entry_points(group="torch.backends") if entry.name == "partita"]
found = time.perf_counter()
entry.load()()
print(json.dumps([imported - start, time.perf_counter() - found]))
"""


def environment(folder: Path, without: set[str]) -> Path:
    """The interpreter of an environment with links to all packages of this one, but for these."""
    venv.create(folder, symlinks=True)
    here = Path(str(distribution("torch").locate_file("")))
    (packages,) = folder.glob("lib/python*/site-packages")
    for path in here.iterdir():
        if path.name not in without:
            (packages / path.name).symlink_to(path)
    return folder / "bin" / "python"


def seconds(python: Path, code: str) -> list[float]:
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd=python.parent)
    found: list[float] = json.loads(done.stdout)
    return found


def main() -> None:
    if not any(entry.name == "partita" for entry in entry_points(group="torch.backends")):
        sys.exit("this installation has no entry point of torch.backends: pip install -e . writes it")
    print(machine())
    ours = {path.parts[0] for path in distribution("partita").files or ()} - {"..", "__pycache__"}
    with tempfile.TemporaryDirectory() as folder:
        with_, without = environment(Path(folder, "with"), set()), environment(Path(folder, "without"), ours)
        for python in (with_, without):
            seconds(python, WHOLE)  # what is read from the disk is in memory from here on
        pairs = []
        for index in range(PAIRS):
            order = (with_, without) if index % 2 else (without, with_)
            took = {python: seconds(python, WHOLE)[0] for python in order}
            pairs.append((took[with_], took[without]))
        parts = [seconds(with_, PARTS) for _ in range(PAIRS)]
    installed, not_installed = (median(column) for column in zip(*pairs, strict=True))
    spread = sorted(a / b for a, b in pairs)
    torch, own = (median(column) for column in zip(*parts, strict=True))
    print(f"import torch, medians of {PAIRS} alternating processes each")
    print(f"  Partita not installed  {1000 * not_installed:8.1f} ms")
    print(f"  Partita installed      {1000 * installed:8.1f} ms   ratio {installed / not_installed:.4f}")
    print(f"  ratios of the pairs    {spread[0]:.3f} to {spread[-1]:.3f}, median {median(spread):.4f}")
    print(f"within one process: torch {1000 * torch:.1f} ms, Partita's part {1000 * own:.2f} ms", end="")
    print(f"   ratio {1 + own / torch:.4f}")


if __name__ == "__main__":
    main()
