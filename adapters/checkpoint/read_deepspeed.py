"""Reading a DeepSpeed checkpoint: ZeRO 0 to 3, of Partita's engine or of DeepSpeed's own without model parallelism.

A rank of a copy has a file of its module, and with ZeRO each data-parallel copy a file of its part of the optimizer's
state. The states lie in ``deepspeed_states``; here the files are found, and the small state that they have in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.adapters.checkpoint.boxes import whole
from partita.adapters.checkpoint.catalogue import (
    BUFFER,
    PARAMETER,
    Catalogue,
    Entry,
    Group,
    Key,
    Piece,
    Stored,
)  # fmt: skip
from partita.adapters.checkpoint.deepspeed_layout import RankLayout, rank_layout
from partita.adapters.checkpoint.deepspeed_states import State, rank_states
from partita.adapters.checkpoint.local import whole_pieces
from partita.adapters.checkpoint.pickled import StandIn, read_pickled
from partita.adapters.checkpoint.target import Target
from partita.adapters.torch.resharded import LAYOUT
from partita.errors import InputError
from partita.files import read_text

# What DeepSpeed itself puts into a rank's file; the rest is the user's.
OWN = frozenset(
    "module buffer_names optimizer param_shapes frozen_param_shapes shared_params frozen_param_fragments lr_scheduler "
    "data_sampler random_ltd sparse_tensor_module_names skipped_steps global_steps global_samples dp_world_size "
    "mp_world_size checkpoint_parallel_dimensions ds_config ds_version universal_checkpoint_info".split()
) | {LAYOUT}  # fmt: skip
SCALE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def deepspeed_folder(path: Path) -> Path | None:
    """The folder of the checkpoint at a path: itself, or what its file ``latest`` names; None for other things."""
    if list(path.glob("*_model_states.pt")):
        return path
    if (path / "latest").is_file():
        tag = read_text(path / "latest").strip()
        folder = path / tag
        if not tag or not folder.is_dir():
            raise InputError(f'{path / "latest"}: names "{tag}", and there is no such checkpoint')
        return folder if list(folder.glob("*_model_states.pt")) else None
    if within := sorted({file.parent.name for file in path.glob("*/*_model_states.pt")}):
        raise InputError(f"{path}: has no file latest, which names a checkpoint; give one itself: {', '.join(within)}")
    return None


@dataclass(frozen=True)
class Files:
    """The files of a checkpoint of ``ranks`` devices a copy and ``copies`` copies."""

    folder: Path
    ranks: int
    copies: int

    def module(self, rank: int, copy: int) -> Path | None:
        """The file of a rank's module; with ZeRO-3 each copy has one of its own."""
        for name in (f"zero_pp_rank_{copy}_mp_rank_{rank:02d}_model_states.pt", f"mp_rank_{rank:02d}_model_states.pt"):
            if (self.folder / name).is_file():
                return self.folder / name
        return None

    def optimizer(self, rank: int, copy: int) -> Path | None:
        """The file of a rank's part of the optimizer's state."""
        for prefix in ("", "bf16_", "fp16_"):
            path = self.folder / f"{prefix}zero_pp_rank_{copy}_mp_rank_{rank:02d}_optim_states.pt"
            if path.is_file():
                return path
        return None


def read_deepspeed(folder: Path, by: Target | None = None, weights: bool = False) -> Catalogue:
    """What a checkpoint's folder holds; ``by`` is the plan that saved it, where the user says it.

    ``weights``: the weights alone are wanted, so that an optimizer which doesn't say whose its state is doesn't matter.

    InputError where a file of a rank lacks, is truncated or broken, or where nobody says what its tensors are.
    """
    if layers := sorted(folder.glob("layer_*-model_states.pt")):
        raise InputError(
            f"{layers[0]}: is a layer of a PipelineModule, which names its parameters by numbers; its dense weights "
            "can be resharded"
        )
    first = next((file for file in sorted(folder.glob("*mp_rank_00_model_states.pt"))), None)
    if first is None:
        raise InputError(f"{folder}: rank 0 has no file (mp_rank_00_model_states.pt)")
    head = read_pickled(first)
    if not isinstance(head, dict) or not {"module", "mp_world_size", "dp_world_size"} <= head.keys():
        raise InputError(f"{first}: isn't DeepSpeed's: it has no module, mp_world_size and dp_world_size")
    files = Files(folder, head["mp_world_size"], head["dp_world_size"])
    collected = Collected(weights)
    for rank in range(files.ranks):
        try:
            collected.add(files, rank, head if rank == 0 else None, by)
        except (LookupError, TypeError, AttributeError, AssertionError) as error:
            raise InputError(
                f"{folder}: the files of rank {rank} aren't as DeepSpeed writes them, or not all of one checkpoint: "
                f"{type(error).__name__}: {error}"
            ) from error
    zero = "" if collected.zero is None else f" ZeRO {collected.zero}"
    layout = f"{files.ranks} devices a copy, {files.copies} copies"
    return Catalogue(
        folder, f"DeepSpeed{zero} ({layout})",
        {key: Entry(shape, dtype, tuple(pieces)) for key, (shape, dtype, pieces) in collected.tensors.items()},
        collected.scalars, tuple(collected.groups), _rest(head, collected.scale), collected.padded, collected.aliases,
    )  # fmt: skip


class Collected:
    """What the ranks' files have, put together."""

    def __init__(self, weights: bool) -> None:
        self.weights = weights
        self.tensors: dict[Key, tuple[tuple[int, ...], str, list[Piece]]] = {}
        self.scalars: dict[Key, Any] = {}
        self.groups: list[Group] = []
        self.padded: dict[str, tuple[int, int]] = {}
        self.aliases: dict[str, str] = {}
        self.scale: dict[str, Any] = {}
        self.zero: int | None = None

    def add(self, files: Files, rank: int, head: Any, by: Target | None) -> None:
        """The files of one rank of a copy."""
        heads = []
        for copy in range(files.copies):
            path = files.module(rank, copy)
            if path is None:
                raise InputError(
                    f"{files.folder}: the file of rank {rank}, copy {copy} is missing (mp_rank_{rank:02d} or "
                    f"zero_pp_rank_{copy}_mp_rank_{rank:02d}, _model_states.pt); {files.ranks} ranks saved it"
                )
            heads.append(head if head is not None and copy == 0 else read_pickled(path))
            if path.name.startswith("mp_rank"):
                break
        layout = rank_layout(heads[0], path, rank, files.ranks, by)
        parts = []
        for copy in range(files.copies):
            found = files.optimizer(rank, copy)
            if found is not None:
                parts.append(read_pickled(found))
            elif parts or heads[0].get("param_shapes") is not None:
                raise InputError(
                    f"{files.folder}: the file of rank {rank}, copy {copy} is missing "
                    f"(zero_pp_rank_{copy}_mp_rank_{rank:02d}_optim_states.pt); {files.copies} copies saved it"
                )
            else:
                break
        nameless = layout.groups is None and not parts
        state = State() if nameless and self.weights else rank_states(heads, parts, layout, files.folder)
        self._take(state, layout)
        if not self.scale:
            self.scale = _scale(heads[0], parts)
        self.zero = state.zero
        self._module(heads[0], layout, state)

    def _take(self, state: State, layout: RankLayout) -> None:
        for (name, word), (dtype, pieces) in state.pieces.items():
            self._piece(layout, name, word, dtype, pieces)
        self.scalars.update(state.scalars)
        for index, group in enumerate(state.groups):
            if index < len(self.groups) and _same(self.groups[index].options, group.options):
                names = dict.fromkeys((*self.groups[index].names, *group.names))
                self.groups[index] = Group(tuple(names), group.options)
            else:
                self.groups.append(group)
        for name, part in layout.parts.items():
            if part.shard is not None and part.shard.padded != part.shard.size:
                self.padded[name] = part.shard.dim, part.shard.padded

    def _module(self, head: Mapping[str, Any], layout: RankLayout, state: State) -> None:
        """Tensors of the module: those of which the optimizer has no copy of higher precision."""
        buffers = set(head.get("buffer_names") or ())
        for key, stored in (head.get("module") or {}).items():
            if not isinstance(stored, Stored):
                continue
            name = layout.name(key)
            if key in buffers:
                self._buffer(key, stored)
            elif name is not None and (name, PARAMETER) not in state.pieces and not layout.parts[name].copy:
                if stored.shape != layout.parts[name].local_shape and 0 in stored.shape and state.zero == 3:
                    continue
                self._piece(layout, name, PARAMETER, stored.dtype, whole_pieces(layout.parts[name], stored))
        for name, stored in layout.buffers.items():
            self._buffer(name, stored)
        for alias, key in (head.get("shared_params") or {}).items():
            if layout.name(alias) != layout.name(key):
                self.aliases[alias] = key

    def _buffer(self, name: str, stored: Stored) -> None:
        self.tensors[name, BUFFER] = (stored.shape, stored.dtype, [Piece(whole(stored.shape), stored)])

    def _piece(self, layout: RankLayout, name: str, word: str, dtype: str, pieces: list[Piece]) -> None:
        shape = layout.parts[name].shape
        _, _, known = self.tensors.setdefault((name, word), (shape, dtype, []))
        known.extend(pieces)


def _rest(head: Mapping[str, Any], scale: dict[str, Any]) -> dict[str, Any]:
    return {
        "steps": head.get("global_steps", 0), "samples": head.get("global_samples", 0),
        "skipped_steps": head.get("skipped_steps", 0), "lr_scheduler": head.get("lr_scheduler"), "loss_scale": scale,
        "client": {key: value for key, value in head.items() if key not in OWN},
    }  # fmt: skip


def _scale(head: Mapping[str, Any], parts: list[Any]) -> dict[str, Any]:
    """The loss scale: of ZeRO an object of DeepSpeed's, otherwise plain numbers."""
    state: Any = head.get("optimizer") or {}
    if parts:
        scaler = parts[0]["optimizer_state_dict"].get("loss_scaler")
        state = scaler.state if isinstance(scaler, StandIn) and isinstance(scaler.state, dict) else {}
    return {word: state[word] for word in SCALE if word in state}


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    # Options may be tensors, which are in other files then.
    return {k: v for k, v in one.items() if not isinstance(v, Stored)} == {
        k: v for k, v in other.items() if not isinstance(v, Stored)
    }
