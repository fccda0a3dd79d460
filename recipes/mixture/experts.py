"""A mixture of experts with static shapes: every expert has room for so many tokens of each sample.

Follows GShard (Lepikhin et al., 2020, section 2.2) with a sample as its group: who gets the room in an expert depends
on no other sample, so micro-batches and copies change nothing. A token for which no room is left skips the expert.
Nothing here needs all experts at once but the router's softmax: a device with some of them sorts tokens out for these.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from partita.recipes.mixture.sizes import Size


class Router(nn.Module):
    """Each token's best experts: int64 [b, s, chosen], best first, and their probabilities, which add up to 1."""

    def __init__(self, size: Size):
        super().__init__()
        self.chosen = size.chosen
        self.gate = nn.Linear(size.width, size.experts, bias=False)

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.gate(value)
        # Experts that are nearly as good must not come out equal: 16 bits are too few.
        wide = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
        best, experts = wide.softmax(-1).topk(self.chosen, -1)
        return (best / best.sum(-1, keepdim=True)).to(value.dtype), experts


class Experts(nn.Module):
    """The experts' layers, one tensor for all: [experts, in, out].

    ``number`` is each expert's own, not trained: so the part of the experts that a device holds knows which they are.
    """

    def __init__(self, size: Size):
        super().__init__()
        self.number = nn.Parameter(torch.empty(size.experts), requires_grad=False)
        self.widen = nn.Parameter(torch.empty(size.experts, size.width, size.expert_width))
        self.narrow = nn.Parameter(torch.empty(size.experts, size.expert_width, size.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.number.copy_(torch.arange(len(self.number)))
        for weight in (self.widen, self.narrow):
            nn.init.uniform_(weight, -(weight.shape[1] ** -0.5), weight.shape[1] ** -0.5)

    def forward(self, sorted_tokens: Tensor) -> Tensor:
        """[experts, tokens, width] to the same."""
        return torch.bmm(torch.bmm(sorted_tokens, self.widen).relu(), self.narrow)


class Mixture(nn.Module):
    """[b, s, width] to the same: the experts' answers to each token, weighted by the router."""

    def __init__(self, size: Size):
        super().__init__()
        self.size = size
        self.router = Router(size)
        self.experts = Experts(size)

    def forward(self, value: Tensor) -> Tensor:
        samples, seq, _ = value.shape
        weights, chosen = self.router(value)
        room = self.size.capacity(seq)
        dispatch, combine = self._sort(weights, chosen, room, value.dtype)
        # [b, s, experts, room] with the experts as the major factor of what is summed over: so can they be divided.
        taken = dispatch.flatten(2).transpose(1, 2) @ value
        tokens = taken.unflatten(1, (-1, room)).transpose(0, 1).flatten(1, 2)
        answers = self.experts(tokens).unflatten(1, (samples, room)).transpose(0, 1).flatten(1, 2)
        return combine.flatten(2) @ answers

    def _sort(self, weights: Tensor, chosen: Tensor, room: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Where each token goes, 0 or 1 [b, s, experts, room], and the same with the weight of its answer."""
        places = torch.arange(1, room + 1, device=chosen.device)
        dispatch = combine = taken = None
        for rank in range(self.size.chosen):
            wants = (chosen[..., rank : rank + 1] == self.experts.number).long()
            # Everybody's best expert comes first, then the second best: the place of each token in the queue.
            queue = wants.cumsum(1) if taken is None else wants.cumsum(1) + taken
            taken = wants.sum(1, keepdim=True) if taken is None else wants.sum(1, keepdim=True) + taken
            seat = ((queue * wants).unsqueeze(-1) == places).to(dtype)
            weighted = seat * weights[..., rank : rank + 1].unsqueeze(-1)
            dispatch = seat if dispatch is None else dispatch + seat
            combine = weighted if combine is None else combine + weighted
        return dispatch, combine
