"""ZeRO (Rajbhandari et al., 2020): what a stage's data-parallel copies would each keep whole is divided over them.

A parameter is laid flat and cut into chunks, one for each copy; the last ones end in zeros. With ZeRO 1 each copy keeps
the optimizer's state of its chunk and updates it, and all gather the parameter then. With 2 a gradient is added up and
cut as soon as a backward pass has made it, so that no more than a chunk of it is kept. With 3 only the chunk of the
parameter is kept too: a block gathers its parameters when it runs, once more for its backward pass, and forgets them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks

from partita.adapters.torch.groups import Groups
from partita.adapters.torch.wires import Group
from partita.errors import PlanError
from partita.spacetime.program import Program


class Divided:
    """One parameter of a device, its state divided over a group. ``chunk`` [ceil(elements / copies)] is what the
    optimizer updates: of ZeRO 1 and 2 a view of the parameter, of ZeRO 3 the parameter itself.
    """

    def __init__(self, parameter: nn.Parameter, zero: int, group: Group):
        self.parameter, self.zero, self.group = parameter, zero, group
        self.shape, self.elements = parameter.shape, parameter.numel()
        self.each = -(-self.elements // group.size)
        flat = self._padded(parameter.detach())
        own = flat[group.rank * self.each : (group.rank + 1) * self.each]
        if zero == 3:
            parameter.data = own.clone()
            self.chunk = parameter
        else:
            parameter.data = flat[: self.elements].view(self.shape)
            self.chunk = nn.Parameter(own, requires_grad=parameter.requires_grad)

    @property
    def leaf(self) -> nn.Parameter:
        """That in which autograd adds up gradients: the whole parameter with ZeRO 1, else the chunk."""
        return self.parameter if self.zero == 1 else self.chunk

    def read(self) -> Tensor:
        """The whole parameter, for a block of which autograd sees the chunk. Collective with ZeRO 3, and so is the
        backward pass with 2 and 3."""
        found: Tensor = _Read.apply(self.chunk, self)
        found.add_gradient = self.add_gradient  # type: ignore[attr-defined]
        return found

    def whole(self) -> Tensor:
        """The values of the whole parameter. Collective with ZeRO 3."""
        if self.zero < 3:
            return self.parameter.detach()
        return self.joined(self.group.gather(self.chunk.detach()))

    def joined(self, chunks: Sequence[Tensor]) -> Tensor:
        """A whole tensor in the parameter's shape, from the chunks of all copies."""
        return torch.cat(list(chunks))[: self.elements].view(self.shape)

    def together(self, mine: Tensor) -> Tensor:
        """The whole tensor of which each copy has a chunk, to look at: it passes as a Python object. Collective."""
        return self.joined(self.group.objects(mine))

    def added_up(self, gradient: Tensor) -> Tensor:
        """This copy's chunk of the sum of all copies' whole gradients. Collective."""
        return self.group.scatter_sum(self._padded(gradient).split(self.each))

    def add_gradient(self, gradient: Tensor) -> None:
        """Add a whole gradient, one of each copy, to what the chunk has. Collective."""
        found = self.added_up(gradient)
        self.chunk.grad = found if self.chunk.grad is None else self.chunk.grad.add_(found)

    def collect(self) -> None:
        """At the end of a step with ZeRO 1: from the whole gradient to the chunk's. Collective."""
        if self.zero == 1:
            gradient = self.parameter.grad
            self.chunk.grad = self.added_up(torch.zeros_like(self.parameter) if gradient is None else gradient)
            self.parameter.grad = None

    def spread(self) -> None:
        """After an update with ZeRO 1 and 2: from everyone's chunks to the whole parameter. Collective."""
        if self.zero < 3:
            self.parameter.data.copy_(self.joined(self.group.gather(self.chunk.detach())))

    def _padded(self, tensor: Tensor) -> Tensor:
        flat = tensor.new_zeros(self.each * self.group.size)
        flat[: self.elements] = tensor.reshape(-1)
        return flat


class _Read(Function):
    """From a chunk to the whole parameter; the gradient is summed over the copies, and each has its chunk of it."""

    @staticmethod
    def forward(ctx: Any, chunk: Tensor, divided: Divided) -> Tensor:
        ctx.divided = divided
        # No zeros are sent round where all of the gradient has been put off.
        ctx.set_materialize_grads(False)
        return divided.whole()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        return (None if gradient is None else ctx.divided.added_up(gradient)), None


@contextmanager
def gathered_again(
    wholes: Mapping[str, Tensor], divided: Mapping[str, Divided], beneath: saved_tensors_hooks | None
) -> Iterator[None]:
    """What autograd saves of whole parameters inside is made again when the backward pass reads it; of the rest
    ``beneath`` disposes.

    ``wholes`` must live until the end, so that no other tensor has their memory.
    """
    # What is saved keeps these functions: they must not hold the tensors.
    found = {whole.untyped_storage().data_ptr(): (divided[name], whole.dtype) for name, whole in wholes.items()}

    def pack(tensor: Tensor) -> Any:
        one, dtype = found.get(tensor.untyped_storage().data_ptr(), (None, None))
        if one is None or tensor.dtype != dtype:
            return None, tensor if beneath is None else beneath.pack_hook(tensor)
        return one, (tensor.shape, tensor.stride(), tensor.storage_offset())

    def unpack(packed: Any) -> Tensor:
        one, rest = packed
        if one is None:
            return rest if beneath is None else beneath.unpack_hook(rest)
        return one.whole().as_strided(*rest)

    with saved_tensors_hooks(pack, unpack):
        yield


class Division:
    """What of a device's parameters is divided, by name. A parameter that several of its stages read is there once."""

    def __init__(self, program: Program, groups: Groups):
        self.program, self.groups = program, groups
        self.divided: dict[str, Divided] = {}

    def divide(self, stage: int, parameters: Mapping[str, nn.Parameter]) -> None:
        """Divide the state of a block's parameters, whose values are in place. A stage of one copy divides nothing."""
        if stage not in self.groups.data:
            return
        copies = self.program.pieces[stage].copies
        for name, parameter in parameters.items():
            zero = self.program.zero.get(name, 0)
            # A copy of another stage's has no optimizer; a frozen parameter has neither optimizer nor gradient.
            first = 3 if not parameter.requires_grad else 2 if name in copies else 1
            if zero >= first and parameter.numel() and name not in self.divided:
                self.divided[name] = Divided(parameter, zero, self.groups.data[stage])

    def read(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
        """Those of a block that autograd must see as chunks, whole. Collective with ZeRO 3."""
        found = {name: self.divided[name] for name in parameters if name in self.divided}
        return {name: divided.read() for name, divided in found.items() if divided.zero > 1}

    def forgotten(
        self, wholes: Mapping[str, Tensor], beneath: saved_tensors_hooks | None
    ) -> AbstractContextManager[object]:
        """Inside, with ZeRO 3, autograd keeps none of the whole parameters; ``beneath`` has what else it keeps."""
        if any(self.divided[name].zero == 3 for name in wholes) or (wholes and beneath is not None):
            return gathered_again(wholes, self.divided, beneath)
        return beneath or nullcontext()


def division_of(program: Program, groups: Groups, realises: bool) -> Division | None:
    """A device's, without anything yet; None where nothing is divided: ZeRO 0, or one copy.

    PlanError, on every rank, where a framework's modules would keep parameters whole (``realises``).
    """
    zero = max(program.zero.values(), default=0)
    if zero == 0 or max(program.dp) == 1:
        return None
    if zero > 1 and realises:
        raise PlanError(
            f"zero={zero}: the plan's layers are a framework's own modules, which keep parameters and gradients whole; "
            "zero=0 and zero=1 work"
        )
    return Division(program, groups)
