"""Where a stage's initial weights come from, and how a rank's part is cut out of (or put back into) a dense tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from partita.errors import ModelError
from partita.plugins.capture_torch import Skeleton
from partita.spacetime.program import Shard


class Weights(Protocol):
    """A source of dense parameters, one at a time."""

    def dense(self, name: str) -> Tensor:
        """The whole parameter of that (canonical) name."""
        ...


class StateDict:
    """Weights from a mapping such as a model's state dict."""

    def __init__(self, tensors: Mapping[str, Tensor], aliases: Mapping[str, str] | None = None):
        self.tensors = tensors
        self.other_names = {canonical: alias for alias, canonical in (aliases or {}).items()}

    def dense(self, name: str) -> Tensor:
        for candidate in (name, self.other_names.get(name)):
            if candidate in self.tensors:
                return self.tensors[candidate]
        raise ModelError(f'the given weights have no "{name}"; they have {len(self.tensors)} others')


class Initialised:
    """Fresh weights by the model's own rules, one module at a time, keyed by seed and module path.

    The same seed gives the same weights however the model is cut, and no more than one module is ever allocated.
    The rules are the module's ``reset_parameters`` and, in HuggingFace models, ``_init_weights`` of the module and of
    the modules around it.
    """

    def __init__(self, skeleton: Skeleton, seed: int):
        self.skeleton = skeleton
        self.seed = seed
        self.recent: tuple[str, dict[str, Tensor]] = ("", {})

    def dense(self, name: str) -> Tensor:
        path, _, leaf = name.rpartition(".")
        if self.recent[0] != path:
            self.recent = (path, self._initialise(path))
        return self.recent[1][leaf]

    def _initialise(self, path: str) -> dict[str, Tensor]:
        module = self.skeleton.model.get_submodule(path)
        kept = dict(module._parameters)
        state = torch.get_rng_state()
        # The CPU's alone: torch.manual_seed would leave those of other devices changed.
        torch.default_generator.manual_seed(_seed(self.seed, path))
        try:
            for name, parameter in kept.items():
                if parameter is not None:
                    fresh = torch.full(parameter.shape, float("nan"), dtype=torch.float32)
                    module._parameters[name] = nn.Parameter(fresh, requires_grad=parameter.requires_grad)
            with torch.no_grad():
                self._rules(path, module)
            made = {
                name: parameter.detach().to(kept[name].dtype)  # type: ignore[union-attr]
                for name, parameter in module._parameters.items()
                if parameter is not None
            }
        finally:
            module._parameters.update(kept)
            torch.set_rng_state(state)
        for name, tensor in made.items():
            if tensor.isnan().any():
                raise ModelError(
                    f'nothing says how "{path}.{name}" is initialised: {type(module).__name__} has no reset_parameters '
                    "that fills it; give the weights"
                )
        return made

    def _rules(self, path: str, module: nn.Module) -> None:
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
        parts = path.split(".") if path else []
        around = [self.skeleton.model.get_submodule(".".join(parts[:length])) for length in range(len(parts) + 1)]
        # The outermost HuggingFace model around it: it may stand inside a module of the user's own.
        first = next((i for i, outer in enumerate(around) if callable(getattr(outer, "_init_weights", None))), None)
        if first is not None:
            for inner in reversed(around[first:]):
                around[first]._init_weights(inner)


def _seed(seed: int, path: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed},{path}".encode(), digest_size=7).digest(), "big")


def cut(dense: Tensor, shard: Shard | None, piece: int) -> Tensor:
    """One rank's part of a dense parameter; padding rows are zero."""
    if shard is None:
        return dense
    length = shard.padded // shard.parts // shard.pieces
    parts = []
    for start, stop in shard.intervals(piece):
        part = dense.narrow(shard.dim, start, stop - start)
        if stop - start < length:
            shape = list(part.shape)
            shape[shard.dim] = length - (stop - start)
            part = torch.cat([part, part.new_zeros(shape)], dim=shard.dim)
        parts.append(part)
    return torch.cat(parts, dim=shard.dim)


def join(pieces: Iterable[Tensor], shard: Shard | None) -> Tensor:
    """The dense parameter from all ranks' parts, padding stripped."""
    pieces = list(pieces)
    if shard is None:
        return pieces[0]
    chunks: list[list[Tensor]] = [[] for _ in range(shard.parts)]
    for index, piece in enumerate(pieces):
        for part, ((start, stop), held) in enumerate(
            zip(shard.intervals(index), piece.chunk(shard.parts, dim=shard.dim), strict=True)
        ):
            chunks[part].append(held.narrow(shard.dim, 0, stop - start))
    return torch.cat([chunk for part in chunks for chunk in part], dim=shard.dim)


def fill(
    parameters: Mapping[str, Tensor],
    weights: Weights,
    shards: Mapping[str, Shard | None],
    coordinates: Mapping[str, int],
    flipped: set[str],
) -> None:
    """Put initial weights into parameters (by dense name): a rank cuts its own part out of each dense parameter, by its
    ``coordinates`` along the axes.

    ModelError for one of another shape.
    """
    for name, parameter in parameters.items():
        shard = shards[name]
        part = cut(weights.dense(name), shard, coordinates[shard.axis] if shard else 0)
        part = part.t() if name in flipped else part
        if part.shape != parameter.shape:
            # copy_ would repeat a smaller tensor.
            raise ModelError(
                f'the given "{name}" has shape {list(weights.dense(name).shape)}: this rank\'s part of it is '
                f"{list(part.shape)}, the model needs {list(parameter.shape)}"
            )
        with torch.no_grad():
            parameter.copy_(part)
