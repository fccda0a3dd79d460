"""Every parameter has one owner, its copies are known as such, and its shards make up the whole without overlap.

That copies send their gradients and get new values is part of the queues' proof.
"""

from __future__ import annotations

from collections.abc import Iterable

from partita.errors import PlanError, listed
from partita.graph import Graph
from partita.plan import Axis
from partita.spacetime.program import Program, Shard


def prove_places(program: Program) -> None:
    """PlanError where the devices of a stage aren't all the copies and parts of it, each once."""
    if len({share.global_batch for share in program.shares}) > 1:
        takes = [f"{s.dp} × {s.turns} × {s.samples}" for s in program.shares]
        raise PlanError(
            f"the stages have {list(program.dp)} data-parallel copies and take {listed(takes)} samples a step (copies "
            "× turns × samples): their gradients would count unequally"
        )
    for stage, devices in enumerate(program.devices_of):
        dp, tp, axes = program.dp[stage], program.widths[stage], program.inner[stage]
        if len(set(devices)) != dp * tp or len(devices) != dp * tp:
            raise PlanError(f"stage {stage} has the devices {list(devices)} for dp={dp} × tp={tp}")
        for index, device in enumerate(devices):
            wanted = (stage, *divmod(index, tp))
            places = [place for place in program.places.get(device, ()) if place.stage == stage]
            if [(place.stage, place.data, place.tensor) for place in places] != [wanted]:
                has = ", ".join(f"copy {place.data}, part {place.tensor}" for place in places) or "no place in it"
                raise PlanError(
                    f"device {device} of stage {stage} has {has}; where it stands in {list(devices)} it must have copy "
                    f"{wanted[1]}, part {wanted[2]}"
                )
        if any(axis.kind != "space" for axis in axes):
            raise PlanError(f"stage {stage} has {tp} devices a copy, which its axes {axes} don't give")
    stated = {device for devices in program.devices_of for device in devices}
    if stated != set(program.queues) or stated != set(program.places):
        odd_devices = sorted(stated ^ set(program.queues)) or sorted(stated ^ set(program.places))
        raise PlanError(f"device {odd_devices[0]} must be in a stage and have a queue")
    for device, served in program.places.items():
        if len({place.data for place in served}) > 1:
            raise PlanError(f"device {device} is in different data-parallel copies of its stages: {served}")
        if len({program.shares[place.stage] for place in served}) > 1:
            raise PlanError(f"device {device} would read two batches: its stages take unlike samples, {served}")
        if sorted(place.stage for place in served) != [s for s, on in enumerate(program.devices_of) if device in on]:
            raise PlanError(f"device {device} is said to serve other stages than those that list it: {served}")


def prove_parameters(graph: Graph, program: Program) -> None:
    """PlanError that names the parameter, the stages or devices, and the intervals where something is wrong."""
    owners: dict[str, list[int]] = {}
    users: dict[str, list[int]] = {}
    for piece in program.pieces:
        read = {name for s in piece.segments for o in s.ops for name in o.op.inputs if name in piece.parameters}
        for name, shard in piece.parameters.items():
            if name not in read:
                raise PlanError(f'stage {piece.stage} holds the parameter "{name}", which none of its ops reads')
            users.setdefault(name, []).append(piece.stage)
            if name not in piece.copies:
                owners.setdefault(name, []).append(piece.stage)
            if shard is not None:
                _tiles(graph, program, name, piece.stage, shard)
        if odd := [name for name in piece.copies if name not in piece.parameters]:
            raise PlanError(f'stage {piece.stage} has a copy of "{odd[0]}", which it doesn\'t read')
    for name in graph.parameter_users:
        stages = owners.get(name, [])
        if len(stages) != 1:
            which = f"the stages {stages} each own it and would update it separately" if stages else "no stage owns it"
            raise PlanError(f'parameter "{name}": {which}; one must, and the others send it their gradients')
        shards = {stage: program.pieces[stage].parameters[name] for stage in users[name]}
        if len(set(shards.values())) > 1:
            raise PlanError(f'parameter "{name}" is cut differently in its stages: {shards}')
        wanted = (stages[0], *(stage for stage in users[name] if stage != stages[0])) if len(users[name]) > 1 else ()
        meshes = [program.inner[stage] for stage in users[name]]
        whole = all(shard is None for shard in shards.values())
        if len(set(meshes)) > 1 and not (whole and _apart(program, users[name])):
            raise PlanError(
                f'parameter "{name}" is read by the stages {users[name]}, whose copies are '
                f"{listed(map(_mesh, meshes))}: each must have the same parts of it, so that "
                "one mesh for all of them works"
            )
        _together(program, name, users[name])
        summed = {stage: program.pieces[stage].partial.get(name, ()) for stage in users[name]}
        if len(set(summed.values())) > 1:
            raise PlanError(
                f'the gradient of parameter "{name}" is partial over other axes in each of its stages: {summed}; the '
                "owner sums up what all of them made"
            )
        if program.shared.get(name, ()) != wanted:
            raise PlanError(
                f'parameter "{name}" is read by the stages {users[name]}, owner {stages[0]}; the program says '
                f"{list(program.shared.get(name, ()))}"
            )


def _mesh(axes: Iterable[Axis]) -> str:
    return " × ".join(f"{axis.name}={axis.size}" for axis in axes if axis.size > 1) or "one device"


def _apart(program: Program, stages: list[int]) -> bool:
    """Whether no device serves two of the stages."""
    devices = [device for stage in stages for device in program.devices_of[stage]]
    return len(set(devices)) == len(devices)


def _together(program: Program, name: str, stages: list[int]) -> None:
    """A device that serves several of the parameter's stages holds it once: it must stand at one place in them."""
    for device in {device: None for stage in stages for device in program.devices_of[stage]}:
        at = {place.tensor for place in program.places[device] if place.stage in stages}
        if len(at) > 1:
            raise PlanError(f'device {device} would hold the parts {sorted(at)} of parameter "{name}" for its stages')


def _tiles(graph: Graph, program: Program, name: str, stage: int, shard: Shard) -> None:
    """Whether the devices that share a parameter hold each index of the cut dim exactly once."""
    sizes, shape = {axis.name: axis.size for axis in program.inner[stage]}, graph.tensor[name].shape
    if shard.axis not in sizes:
        raise PlanError(f'parameter "{name}" is cut along "{shard.axis}"; stage {stage} has {", ".join(sizes)}')
    tp = sizes[shard.axis]
    if not 0 <= shard.dim < len(shape):
        raise PlanError(f'parameter "{name}" of shape {list(shape)} is cut along dim {shard.dim}')
    size = shape[shard.dim]
    whole = -(-size // (tp * shard.parts)) * tp * shard.parts
    if (shard.pieces, shard.size, shard.padded) != (tp, size, whole):
        raise PlanError(
            f'parameter "{name}": dim {shard.dim} of size {size} is cut for {tp} devices as size {shard.size}, padded '
            f"to {shard.padded}, in {shard.pieces} pieces; it must be {size}, {whole}, {tp}: padding would be counted"
        )
    part, long = whole // shard.parts, whole // shard.parts // tp
    for device in program.axis_group(program.devices_of[stage][0], stage, shard.axis):
        place = program.coordinates(device, stage)[shard.axis]
        starts = [index * part + place * long for index in range(shard.parts)]
        wanted = [(min(start, size), min(start + long, size)) for start in starts]
        found = shard.intervals(place)
        if found != wanted:
            missing, has = next((w, f) for w, f in zip(wanted, found, strict=False) if w != f)
            raise PlanError(
                f'parameter "{name}": device {device} holds [{has[0]}, {has[1]}) of dim {shard.dim} (size {size}); '
                f"its part is [{missing[0]}, {missing[1]})"
            )
