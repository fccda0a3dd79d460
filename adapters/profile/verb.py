"""``partita profile``: measures a model's blocks on this device and writes the file that ``--profile`` reads."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from partita.cli import options

EXAMPLES = """\b
Examples:
  partita profile gpt3-tiny
  partita profile gpt3-1.3b --tp 4 -o h100.json
  partita profile my_models:build --micro-batch 1 --micro-batch 4
"""
MICRO_BATCHES = (1, 2, 4, 8)
# Of a host: processes between which collectives are timed.
PROCESSES = 2
TP = 8


def profile(
    model: options.Model,
    seq: options.Seq = None,
    precision: Annotated[
        str | None, typer.Option(metavar="NAME", help="Default: bf16 on a GPU, fp32 on a host.")
    ] = None,
    micro_batch: Annotated[
        list[int] | None,
        typer.Option(parser=options.whole_number, metavar="SAMPLES", help="Repeat for more. Default: 1, 2, 4 and 8."),
    ] = None,
    tp: Annotated[
        int | None,
        typer.Option(parser=options.whole_number, metavar="N", help="Shards of tensor parallelism up to this (8)."),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            parser=options.whole_number, metavar="N",
            help="Devices between which all-reduces are timed. Default: all GPUs, or 2 processes; 1: none.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: MODEL.profile.json, here.")
    ] = None,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Measure a model's blocks on this device: forward, backward, what is kept between them, and parameters.

    Of blocks that are alike one is measured. The file is written after each block: a run that was ended goes on where
    it stopped, when it is given the same file.
    """
    from partita.cli import answer
    from partita.errors import InputError

    if find_spec("torch") is None:
        raise InputError("profile runs the model and needs torch, which is not installed: pip install 'partita[torch]'")
    micros = sorted(set(micro_batch or MICRO_BATCHES))
    for name, value in (("--micro-batch", micros[0]), ("--tp", tp), ("--devices", devices)):
        if value is not None and value < 1:
            raise InputError(f"{name} {value}: 1 and more work")
    session, path = _measured(model, seq, precision, micros, tp or TP, devices, output)
    if as_json:
        answer.write_json({"file": str(path), **session.head, "blocks": session.blocks,
                           "collectives": session.collectives})  # fmt: skip
    else:
        answer.write(_text(session, path))


def _measured(
    model: str, seq: int | None, precision: str | None, micros: list[int], tp: int, devices: int | None,
    output: Path | None,
) -> tuple[Any, Path]:  # fmt: skip
    import torch

    from partita.adapters.profile.collectives import measure_collectives
    from partita.adapters.profile.session import Session
    from partita.cli.model import load_model
    from partita.cost.precision import compute_dtype
    from partita.errors import InputError
    from partita.hooks import plugins

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    precision = precision or ("bf16" if kind == "cuda" else "fp32")
    if kind == "cpu":
        # As the processes of a plan on this machine run, of which there are as many as cores or more.
        torch.set_num_threads(1)
    graph = load_model(model, seq, compute_dtype(precision))
    parts = plugins().hook.partita_module(model=model, seq=seq)
    if parts is None:
        raise InputError(
            f"{model}: its module can't be built here; a recipe or package.module:function can be measured"
        )
    path = output or Path(f"{Path(model).stem.replace(':', '.')}.profile.json")
    session = Session(path, model, graph, precision, torch.device(kind))
    wanted = session.wanted(micros, tp)
    for at, (width, micro) in enumerate(wanted):

        def said(row: dict[str, Any], at: int = at) -> None:
            print(
                f"[{at + 1}/{len(wanted)}] {row['block']} tp={row['tp']} micro-batch {row['micro_batch']}: "
                f"{row['fwd_ms']:.4g} + {row['bwd_ms']:.4g} ms ± {row['spread']:.1%}",
                file=sys.stderr,
            )

        session.measure(width, micro, *parts, said)
    group = (torch.cuda.device_count() if kind == "cuda" else PROCESSES) if devices is None else devices
    if group > 1 and group not in {row["devices"] for row in session.collectives}:
        session.collectives = measure_collectives(group, kind)
    session.save(complete=True)
    return session, path


def _text(session: Any, path: Path) -> str:
    """What is printed for people."""
    from partita.cli import show

    table = show.grid("block", "tp", "micro-batch", "forward", "backward", "spread", "kept MiB", "parameters")
    for row in session.blocks:
        table.add_row(
            row["block"], str(row["tp"]), str(row["micro_batch"]), show.duration(row["fwd_ms"] * 1e-3),
            show.duration(row["bwd_ms"] * 1e-3), f"±{row['spread']:.1%}", f"{row['activation_bytes'] / 2**20:.4g}",
            f"{row['params']:,}",
        )  # fmt: skip
    lines: list[Any] = [f"{session.model} on {session.head['device']}, {session.precision}", "", table]
    if session.collectives:
        reduced = show.grid("all-reduce", "devices", "KiB", "takes")
        for row in session.collectives:
            reduced.add_row("", str(row["devices"]), f"{row['bytes'] / 1024:g}", show.duration(row["ms"] * 1e-3))
        lines += ["", reduced]
    return show.render([*lines, "", f"written: {path}"])
