"""What ``partita reshard`` says: what it found, what it wrote, and how much memory that took."""

from __future__ import annotations

import sys
from typing import Any

from partita.adapters.checkpoint.catalogue import WORDS, Catalogue
from partita.adapters.checkpoint.convert import Result

GIB, MIB = 2**30, 2**20


def progress(words: str) -> None:
    """One line on a terminal's stderr, and nothing elsewhere but for what isn't a file."""
    if sys.stderr.isatty() or " " in words:
        print(f"partita: {words}", file=sys.stderr, flush=True)


def document(result: Result) -> dict[str, Any]:
    """The result as JSON values."""
    found = result.catalogue
    return {
        "source": {
            "path": str(found.path), "format": found.format, "parameters": len(found.parameters),
            "states": list(found.states), "tensors": len(found.tensors), "bytes": found.bytes,
            "steps": found.rest.get("steps"), "buffers": list(found.buffers), "others": _others(found),
            "padded": {name: [real, size] for name, (_, real, size) in _padded(found).items()},
        },
        "target": {
            "path": str(result.out), "plan": result.target.words if result.target else None,
            "framework": result.target.plan.target if result.target else None,
            "files": list(result.done.files), "bytes": result.done.bytes, "kept": result.done.kept,
            "padded": {name: [real, size] for name, (_, real, size) in _padding_after(result).items()},
            "left_out": list(result.left_out),
        },
        "before_bytes": result.before_bytes, "peak_bytes": result.peak_bytes,
    }  # fmt: skip


def text(result: Result) -> str:
    """The result in a few lines."""
    found, done = result.catalogue, result.done
    states = f" and {', '.join(found.states)}" if found.states else ", no optimizer state"
    lines = [
        f"{found.path}: {found.format}",
        f"  {len(found.parameters)} parameters{states}: {len(found.tensors)} tensors, {_size(found.bytes)}",
    ]
    if found.buffers:
        lines.append(f"  buffers: {', '.join(found.buffers)}")
    if others := _others(found):
        lines.append(f"  neither the model's nor the optimizer's: {', '.join(others)}")
    for name, (dim, real, padded) in _padded(found).items():
        lines.append(f"  {name}: {_long(dim, real)}, saved as {padded:,}: {padded - real:,} are padding and no data")
    lines.append(f"{result.out}: {result.form}")
    kept = f", {done.kept} of them from a run that was stopped" if done.kept else ""
    lines.append(f"  {len(done.files)} {'file' if len(done.files) == 1 else 'files'}, {_size(done.bytes)}{kept}")
    for name, (dim, real, padded) in _padding_after(result).items():
        lines.append(f"  {name}: {_long(dim, real)}, padded to {padded:,} with zeros")
    if result.left_out:
        lines.append(f"  not in it: {', '.join(result.left_out)}")
    more = result.peak_bytes - result.before_bytes
    lines.append(f"peak memory: {result.peak_bytes / MIB:,.0f} MiB, {more / MIB:,.0f} MiB more than before the copying")
    return "\n".join(lines)


def _others(found: Catalogue) -> list[str]:
    """Names of what a file has that no reader has a word for."""
    return [str(key) for key in found.rest if key not in WORDS]


def _padded(found: Catalogue) -> dict[str, tuple[int, int, int]]:
    """Of what was saved with padding the dim, its real size and the padded one."""
    parameters = found.parameters
    return {name: (dim, parameters[name].shape[dim], size) for name, (dim, size) in found.padded.items()}


def _long(dim: int, size: int) -> str:
    return f"{size:,} rows" if dim == 0 else f"{size:,} long in dim {dim}"


def _padding_after(result: Result) -> dict[str, tuple[int, int, int]]:
    ranks = result.target.ranks if result.target else ()
    shards = {name: part.shard for parts in ranks for name, part in parts.items() if part.shard is not None}
    return {n: (shard.dim, shard.size, shard.padded) for n, shard in shards.items() if shard.size != shard.padded}


def _size(count: int) -> str:
    return f"{count / GIB:,.2f} GiB" if count >= GIB else f"{count / MIB:,.1f} MiB"
