"""``partita check``: reads the user's files, runs the rules, prints what was found."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from partita.cli import options

if TYPE_CHECKING:
    from partita.cluster import Cluster
    from partita.graph import Graph

EXAMPLES = """\b
Examples:
  partita check ds_config.json --devices 8
  partita check ds_config.json training_arguments.json --devices 8
  partita check ds_config.json --model gpt3-6.7b --cluster 4x8xa100-80gb --pp 4
  partita check pretrain.sh --model ./config.json --cluster 8xh200
"""


def check(
    config: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG...",
            show_default=False,
            help="A DeepSpeed JSON, a TrainingArguments JSON, both, or a file with Megatron's arguments.",
        ),
    ],
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="The model, as in partita plan.")] = None,
    cluster: Annotated[str | None, typer.Option(metavar="CLUSTER", help="The machine, as in partita plan.")] = None,
    devices: Annotated[
        int | None,
        typer.Option(parser=options.whole_number, metavar="N", help="Processes. Default: all devices of the cluster."),
    ] = None,
    tp: Annotated[
        int | None,
        typer.Option(parser=options.whole_number, metavar="N", help="Tensor parallelism, where no file says."),
    ] = None,
    pp: Annotated[
        int | None, typer.Option(parser=options.whole_number, metavar="N", help="Pipeline stages, where no file says.")
    ] = None,
    seq: options.Seq = None,
    as_json: options.Json = False,
) -> int:
    """Say what is wrong with a configuration that you already have, and what would work.

    What kind of file each CONFIG is, is found from its content. Exit status: 0 no problem, 1 problems, 2 a file can't
    be read.
    """
    from partita.cli import answer
    from partita.errors import InputError
    from partita.plugins.check.checking import check_documents
    from partita.plugins.check.recognise import read_documents
    from partita.plugins.check.settings import LARGEST, Asked

    for name, value in (("--devices", devices), ("--tp", tp), ("--pp", pp), ("--seq", seq)):
        if value is not None and not 1 <= value <= LARGEST:
            raise InputError(f"{name} {value}: 1 to {LARGEST:,} work")
    documents = read_documents(config)
    machine = None if cluster is None else _cluster(cluster, devices)

    def capture(tokens: int | None, dtype: str) -> Graph:
        from partita.cli.model import load_model

        assert model is not None
        return load_model(model, tokens, dtype)

    report = check_documents(documents, Asked(devices, tp, pp, seq), None if model is None else capture, machine)
    from partita.plugins.check.report import document, text

    if as_json:
        answer.write_json(document(report))
    else:
        answer.write(text(report))
    return 0 if report.ok else 1


def _cluster(text: str, devices: int | None) -> Cluster:
    """The cluster; of one that counts its own devices, ``--devices`` takes some, of a bare ``cpu`` it is the count."""
    from partita.cluster import parse_cluster

    counted = text.endswith(".json") or re.match(r"[-+]?\d+x", text)
    return parse_cluster(text, None if counted else devices)
