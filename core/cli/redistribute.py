"""``partita redistribute``: the cheapest steps from one layout of a tensor to another, and what others would take."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from partita.cli import options

if TYPE_CHECKING:
    from partita.cluster import Cluster
    from partita.redistribution import ArrayType, Mesh
    from partita.redistribution.answer import Redistribution

EXAMPLES = """\b
Examples:
  partita redistribute --mesh x=4,y=2 --shape 16,16,16 --from "y,-,x" --to "-,x.y,-"
  partita redistribute --mesh x=2,y=4 --shape 64,64 --from "S(0),P" --to "R,S(1)"
  partita redistribute --mesh a=4 --shape 8,8 --from "a,-" --to-mesh b=2 --to-devices 4-5 --to "-,b"
  partita redistribute --mesh n=4,d=8 --shape 4096,4096 --from "n.d,-" --to "-,n" --cluster 4x8xh100-80gb
"""

DTYPES = {
    "fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1,
}  # fmt: skip

# Bytes are counted in 64 bits, those of all devices together too.
MOST_ELEMENTS = 2**45


def positive_seconds(text: str) -> float:
    """A number of seconds above 0."""
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?|\.\d{1,9}", text) or not float(text):
        raise typer.BadParameter(f'"{options.clipped(text)}" is no number of seconds above 0, such as 0.5')
    return float(text)


def redistribute(
    mesh: Annotated[str, typer.Option(metavar="AXES", show_default=False, help="Axes with sizes, such as x=4,y=2.")],
    shape: Annotated[str, typer.Option(metavar="SIZES", show_default=False, help="Of the tensor, such as 16,16,16.")],
    source: Annotated[
        str,
        typer.Option("--from", metavar="LAYOUT", show_default=False, help='Such as "y,-,x", "S(0),R" or "P(\'x\')".'),
    ],
    target: Annotated[str, typer.Option("--to", metavar="LAYOUT", show_default=False, help="As --from.")],
    to_mesh: Annotated[str | None, typer.Option(metavar="AXES", help="Of --to. Default: the same mesh.")] = None,
    devices: Annotated[
        str | None, typer.Option(metavar="IDS", help="Of --mesh, row after row: 0-3,8-11. Default: 0, 1, …")
    ] = None,
    to_devices: Annotated[str | None, typer.Option(metavar="IDS", help="Of --to-mesh. Default: as --devices.")] = None,
    dtype: Annotated[str, typer.Option(metavar="NAME", help=f"{', '.join(DTYPES)}.")] = "fp32",
    cluster: Annotated[
        str | None,
        typer.Option(metavar="CLUSTER", help="As in partita plan, or a preset alone. Default: one node of h100-80gb."),
    ] = None,
    objective: Annotated[
        str, typer.Option(metavar="time|bytes", help="What must be least; of equal answers the other decides.")
    ] = "time",
    memory_bytes: Annotated[
        int | None,
        typer.Option(
            parser=options.whole_number,
            metavar="N",
            help="What an array of a device may have on the way. Default: as many as it has before or after.",
        ),
    ] = None,
    memory_gib: Annotated[
        int | None, typer.Option(parser=options.gibibytes, metavar="GIB", help="The same in GiB.")
    ] = None,
    seconds_limit: Annotated[
        float | None,
        typer.Option(parser=positive_seconds, metavar="S", help="Search no longer, and give the best found so far."),
    ] = None,
    as_json: options.Json = False,
) -> int:
    """Bring a tensor from one layout to another: the steps, their bytes, seconds and memory, and the bound on bytes.

    Layouts are written in one of three ways: one entry a tensor dim, mesh axes joined by "." major first, "-" for not
    cut, sums after "+"; one placement a mesh axis as DTensor prints them; or a PartitionSpec. The exit status is 1
    where the memory doesn't suffice.
    """
    from partita.cli import answer, redistributed
    from partita.errors import InputError
    from partita.redistribution import peers
    from partita.redistribution.search import redistribution

    before, after = types(mesh, shape, source, target, to_mesh, devices, to_devices)
    item_bytes = width(dtype)
    if objective not in ("time", "bytes"):
        raise InputError(f'--objective "{objective}": time and bytes work')
    if memory_bytes is not None and memory_bytes < 1:
        raise InputError(f"--memory-bytes {memory_bytes}: no device has that; whole numbers from 1 work")
    if memory_bytes is not None and memory_gib is not None:
        raise InputError(f"--memory-bytes {memory_bytes} and --memory-gib say the same; leave one out")
    machine = cluster_for(cluster, before.mesh, after.mesh)
    goal: Literal["bytes", "time"] = "bytes" if objective == "bytes" else "time"
    allowed = memory_gib if memory_bytes is None else memory_bytes
    found = redistribution(
        before, after, item_bytes, machine, objective=goal, memory_bytes=allowed, seconds_limit=seconds_limit
    )
    without: Redistribution | None = None
    if allowed is not None:
        without = redistribution(before, after, item_bytes, machine, objective=goal, seconds_limit=seconds_limit)
    others = peers.peers(before, after, item_bytes, machine)
    asked = redistributed.Asked(dtype, machine, goal)
    if as_json:
        answer.write_json(redistributed.document(asked, found, without, others))
    else:
        answer.write(redistributed.text(asked, found, without, others))
    return 0


def types(
    mesh: str, shape: str, source: str, target: str, to_mesh: str | None, devices: str | None, to_devices: str | None
) -> tuple[ArrayType, ArrayType]:
    """The tensor before and after, as the options say."""
    from partita.redistribution import ArrayType, Mesh
    from partita.redistribution.spelling import read_layout

    sizes = shape_of(shape)
    here = Mesh.parse(mesh, device_ids("--devices", devices))
    ids = device_ids("--to-devices", devices if to_devices is None else to_devices)
    there = Mesh.parse(mesh if to_mesh is None else to_mesh, ids)
    return (
        ArrayType(sizes, read_layout(source, here, len(sizes)), here),
        ArrayType(sizes, read_layout(target, there, len(sizes)), there),
    )


def shape_of(text: str) -> tuple[int, ...]:
    """``16,16,16``; nothing: a scalar. InputError quotes what is no size."""
    from partita.errors import InputError

    plain = text.replace(" ", "")
    words = plain.split(",") if plain else []
    wrong = [word for word in words if not re.fullmatch(r"\d{1,15}", word)]
    if wrong:
        raise InputError(f'--shape "{text}": "{wrong[0]}" is no size; whole numbers from 0 work, such as 16,16,16')
    sizes = tuple(map(int, words))
    if prod(sizes) > MOST_ELEMENTS:
        raise InputError(f'--shape "{text}" has {prod(sizes):,} elements; {MOST_ELEMENTS:,} at most')
    return sizes


def device_ids(option: str, text: str | None) -> list[int] | None:
    """``0-3,8``: the devices in that order. InputError quotes what is no device or range."""
    from partita.errors import InputError

    if text is None:
        return None
    found: list[int] = []
    for word in text.replace(" ", "").split(","):
        ends = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", word)
        if ends is None or int(ends[2] or ends[1]) < int(ends[1]):
            raise InputError(f'{option} "{text}": "{word}" is neither a device such as 4 nor a range such as 0-3')
        found += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    return found


def width(dtype: str) -> int:
    """Bytes of an element; InputError for an unknown name. Names of torch are known too."""
    from partita.cost import precision
    from partita.errors import InputError, nearest

    short = {name: word for word, name in precision.DTYPES.items()}
    name = short.get(dtype, dtype)
    if name not in DTYPES:
        raise InputError(f'--dtype: there is no "{dtype}".{nearest(dtype, DTYPES)}')
    return DTYPES[name]


def cluster_for(text: str | None, *meshes: Mesh) -> Cluster:
    """The cluster, which has all devices of the meshes; a preset alone is one node of as many as are needed."""
    from partita.cluster import parse_cluster
    from partita.cluster.presets import preset_names
    from partita.errors import InputError

    needed = max(device for mesh in meshes for device in mesh.devices) + 1
    name = text or "h100-80gb"
    found = parse_cluster(name, needed if name in preset_names() else None)
    if found.devices < needed:
        mesh = next(mesh for mesh in meshes if max(mesh.devices) >= found.devices)
        raise InputError(
            f'mesh "{mesh}" has a device {max(mesh.devices)}; the cluster "{text}" has {found.devices}, '
            f"0 to {found.devices - 1}"
        )
    return found
