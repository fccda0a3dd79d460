"""Writing what Partita's DeepSpeed engine loads under a plan: for each device of a copy one file of its tensors.

Of each parameter a file has the device's part as the model keeps it, and the optimizer's state of the same shape; whole
over data-parallel copies, of which each reads what it updates. So nothing here depends on the order of an optimizer's
parameters, on its groups or on how ZeRO lays them flat: the engine knows these.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from partita.adapters.checkpoint.catalogue import BUFFER, PARAMETER, Catalogue
from partita.adapters.checkpoint.output import Output
from partita.adapters.checkpoint.pickled import PICKLE, with_values
from partita.adapters.checkpoint.target import Part, Target, entry_of
from partita.adapters.checkpoint.write_safetensors import Written, as_it_is, file_bytes, write
from partita.adapters.torch.resharded import LAYOUT_FILE, REST_FILE, VERSION, tensors_file
from partita.plan import plan_document


def deepspeed_outputs(catalogue: Catalogue, target: Target) -> list[Output]:
    """The files of a DeepSpeed folder, under the tag of the checkpoint's steps."""
    tag = f"global_step{catalogue.rest.get('steps', 0)}"
    outputs = []
    for rank, parts in enumerate(target.ranks):
        tensors = _tensors(catalogue, target, list(parts.values()))
        if rank == 0:
            tensors |= {f"{BUFFER}:{name}": as_it_is(entry) for name, entry in catalogue.buffers.items()}
        outputs.append(
            Output(
                f"{tag}/{tensors_file(rank)}", lambda path, tensors=tensors: write(tensors, path),
                file_bytes(tensors),
            )
        )  # fmt: skip
    layout = json.dumps(_layout(target), indent=1) + "\n"
    return [
        *outputs,
        Output(f"{tag}/{REST_FILE}", lambda path: write_rest(catalogue, target, path)),
        Output(f"{tag}/{LAYOUT_FILE}", lambda path: path.write_text(layout), len(layout.encode())),
        Output("latest", lambda path: path.write_text(tag), len(tag)),
    ]


def _tensors(catalogue: Catalogue, target: Target, parts: list[Part]) -> dict[str, Written]:
    found = {}
    for part in parts:
        # Of a copy its owner has the state.
        for state in (PARAMETER, *(() if part.copy else catalogue.states)):
            entry = entry_of(catalogue, target.graph, part.name, state)
            if entry is not None:
                found[f"{state}:{part.name}"] = Written(entry, part.local_shape, tuple(part.boxes))
    return found


def _layout(target: Target) -> dict[str, Any]:
    return {
        "version": VERSION, "ranks": len(target.ranks), "plan": plan_document(target.plan),
        "parameters": [
            {part.name: {k: v for k, v in asdict(part).items() if k != "name"} for part in parts.values()}
            for parts in target.ranks
        ],
    }  # fmt: skip


def write_rest(catalogue: Catalogue, target: Target, path: Path) -> None:
    """The small state: steps, the optimizer's groups and numbers, the schedule, what the user had saved."""
    canonical = {**catalogue.aliases, **target.graph.aliases}
    rest = {
        "steps": 0, "samples": 0, "skipped_steps": 0, "lr_scheduler": None, "client": {}, "loss_scale": {},
        **catalogue.rest,
        "groups": [
            {"names": [canonical.get(name, name) for name in group.names], "options": dict(group.options)}
            for group in catalogue.groups
        ],
        "scalars": {(canonical.get(name, name), state): value for (name, state), value in catalogue.scalars.items()},
    }  # fmt: skip
    torch.save(with_values(rest), path, pickle_module=PICKLE)
