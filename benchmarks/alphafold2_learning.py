"""What AlphaFold2's recipe learns, beside the best that a reader of the protein alone could reach.

The alignments are made up so that a hidden letter, and which residues touch, follow from the other sequences and not
from the protein. Both bounds are exact cross entropies in nats, given the protein and the rule by which samples are
drawn:

    letters      a hidden letter is the protein's unless its column mutated; its entropy, the same for all
    distances    which residues touch is a perfect matching of them; its probability given the protein is summed over
                 all matchings, and the mean entropy of a pair of residues is the bound

Below both is only who reads the alignment. Losses are those of samples never trained on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import log

import torch
from machine import machine
from torch import Tensor, nn

from partita.recipes.alphafold2.alignments import AMINO_ACIDS, MUTATED, Alignments
from partita.recipes.alphafold2.model import AlphaFold2, mean_by_sample
from partita.recipes.alphafold2.sizes import SIZES, Size

SEEN, UNSEEN, BATCH, RATE = 0, 1, 16, 6e-3


def train(size: Size, steps: int, rate: float) -> Iterator[nn.Module]:
    """The model after each step of Adam, on 16 new samples; the rate rises over the first 20 steps."""
    torch.manual_seed(0)
    model, drawn = AlphaFold2(size), Alignments(size, SEEN)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 20)
        loss = model(**drawn.batch(step, BATCH)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield model


@torch.no_grad()
def losses(model: nn.Module, size: Size, count: int = 1024) -> tuple[float, float, float]:
    """Mean losses of letters and of distances on unseen samples, and the bound of distances of the same proteins."""
    batch = Alignments(size, UNSEEN).batch(0, count)
    found: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda _, given, logits, name=name: found.update({name: logits}))
        for name, module in (("letters", model.letters), ("distances", model.distances))
    ]
    total = model(**batch).loss
    for hook in hooks:
        hook.remove()
    pairs = found["distances"]
    letters = float(mean_by_sample(found["letters"], batch["hidden"]).mean())
    distances = float(mean_by_sample(pairs + pairs.transpose(1, 2), batch["distances"]).mean())
    assert abs(letters + distances - float(total)) < 1e-4
    return letters, distances, float(distances_of_protein(batch["letters"][:, 0]).mean())


def letter_of_protein() -> float:
    """The entropy of a letter of another sequence, given the protein's: it mutates into any, its own included."""
    other = MUTATED * (AMINO_ACIDS - 1) / AMINO_ACIDS
    return -(1 - other) * log(1 - other) - other * log(other / (AMINO_ACIDS - 1))


def distances_of_protein(protein: Tensor) -> Tensor:
    """[b]: the mean entropy of a pair's distance, given proteins [b, residues] of an even number of residues.

    Residues i and j touch where one's letter decides the other's, either way round: a matching is as probable as the
    ways in which its pairs can. Neighbours have the distance 1 whether they touch or not.
    """
    count, residues = protein.shape
    decided = (7 * protein + 3) % AMINO_ACIDS
    ways = (decided.unsqueeze(2) == protein.unsqueeze(1)).double()
    ways = ways + ways.transpose(1, 2)
    matchings = torch.tensor(list(_matchings(tuple(range(residues)))))
    i, j = matchings.unbind(2)
    likely = ways[:, i, j].prod(2)
    likely = likely / likely.sum(1, keepdim=True)
    touch = torch.zeros(count, residues, residues, dtype=torch.float64)
    for place in range(i.shape[1]):
        touch.view(count, -1).index_add_(1, i[:, place] * residues + j[:, place], likely)
    entropy = torch.special.entr(touch) + torch.special.entr(1 - touch)
    return 2 * entropy.triu(2).sum((1, 2)) / residues**2


def _matchings(left: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], ...]]:
    """All ways to put these into pairs."""
    if not left:
        yield ()
    for other in left[1:]:
        for rest in _matchings(tuple(one for one in left[1:] if one != other)):
            yield ((left[0], other), *rest)


def main() -> None:
    print(machine())
    print(__doc__)
    size, shown = SIZES["alphafold2-tiny"], (100, 200, 400)
    start = time.process_time()
    print(f"alphafold2-tiny, {size.sequences} sequences of {size.residues} residues, Adam {RATE:g}")
    print(f"{'step':>8} {'letters':>9} {'distances':>10}")
    for step, model in enumerate(train(size, shown[-1], RATE), start=1):
        if step in shown:
            letters, distances, bound = losses(model, size)
            print(f"{step:8d} {letters:9.3f} {distances:10.4f}", flush=True)
    print(f"{'protein':>8} {letter_of_protein():9.3f} {bound:10.4f}    {time.process_time() - start:.0f} s")


if __name__ == "__main__":
    main()
