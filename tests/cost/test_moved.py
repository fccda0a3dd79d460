"""What the cost model says is moved along a divided sequence, beside the collectives of the lowered program."""

from __future__ import annotations

from collections import Counter
from functools import cache
from math import prod
from pathlib import Path

import pytest

from partita.cli.model import load_model
from partita.cluster import parse_cluster
from partita.cost.alike import alike
from partita.cost.block import divided_cost
from partita.cost.division import Division
from partita.cost.precision import item_bytes
from partita.draft import drafted
from partita.graph import Graph
from partita.plugins.library.context_parallel import context_parallel
from partita.problem import Problem
from partita.spacetime.lower import lower

CONFIGS = Path(__file__).parents[1] / "data/configs"
# By the form of a program's collective the two passes', and whether a piece stands in it for the whole.
FORWARD = {
    "gather": "all_gather", "gather_entered": "all_gather", "exchange": "all_to_all", "scatter": "reduce_scatter",
    "sum": "all_reduce",
}  # fmt: skip
BACKWARD = {
    "gather_entered": "reduce_scatter", "exchange": "all_to_all", "scatter": "all_gather", "enter": "all_reduce",
    "slice": "all_gather",
}  # fmt: skip
ROWS = [(name, 16) for name in ("gpt2-tiny", "llama-tiny", "t5-gated-tiny", "bert-tiny")]


@cache
def captured(name: str, seq: int | None) -> Graph:
    return load_model(str(CONFIGS / f"{name}.json") if seq else name, seq, "bfloat16")


@pytest.mark.parametrize("context", [2, 4])
@pytest.mark.parametrize(("name", "seq"), [*ROWS, pytest.param("alphafold2-tiny", None, marks=pytest.mark.slow)])
def test_it_is_what_the_program_moves(name: str, seq: int | None, context: int) -> None:
    graph = captured(name, seq)
    problem = Problem(graph, parse_cluster(f"1x{context}xa100-80gb"), 1, target="partita")
    program = lower(graph, drafted(context_parallel, "", problem, {"cp": context, "micro_batches": 1}))
    groups, item, kinds = alike(graph), item_bytes(graph, "bf16"), set()
    for number, segment in enumerate(program.pieces[0].segments):
        assert graph.blocks[number].name == segment.block
        cost = divided_cost(graph, segment.block, groups.classes[groups.kinds[number]], Division(context=context), item)
        priced = Counter((each.phase, each.kind, each.size_bytes) for each in cost.exchanges)
        moved: Counter[tuple[str, str, float]] = Counter()
        for local in segment.ops:
            if local.form not in FORWARD.keys() | BACKWARD.keys():
                continue
            value = local.op.inputs[0]
            while value not in graph.tensor:
                value = value.rpartition(".")[0]
            size = float(item(graph.tensor[value].dtype) * prod(local.shapes[0]))
            size *= context if local.form in ("scatter", "slice") else 1
            if local.form in FORWARD:
                moved["forward", FORWARD[local.form], size] += 1
            if local.form in BACKWARD and graph.tensor[value].gradient:
                moved["backward", BACKWARD[local.form], size] += 1
        assert priced == moved, segment.block
        kinds |= {kind for _, kind, _ in moved}
    # Of the alignment and the pairs pieces go from one dim to another; of texts nothing does.
    assert kinds >= ({"all_gather", "reduce_scatter"} if seq else {"all_to_all"})
