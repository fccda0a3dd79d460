"""What stages can't go under, and stages near that: beside the formula, and beside stages that were found otherwise."""

from __future__ import annotations

from collections import Counter
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.cost.alike import alike
from partita.planner.branches.labels import FOUND, NONE, longest_behind
from partita.planner.branches.proof import Proof
from partita.planner.branches.proving import Prover
from partita.planner.branches.search import GraphSearch, branched, relisted
from partita.planner.branches.sets import Sets
from partita.planner.ideals import unpacked
from partita.planner.joint.engine import Engine
from partita.planner.joint.plan import solve
from partita.planner.joint.price import Pricing
from partita.planner.joint.sharp import path_seconds
from tests.planner.branches.dags import SMALL, drawn

SECONDS = st.floats(0.01, 10)


def pricing(seed: int) -> Pricing:
    problem = drawn(seed, (5, 9), SMALL)
    return Pricing(problem, alike(problem.graph))


# Compiled at its first call.
@settings(deadline=None)
@given(SECONDS, SECONDS, st.integers(1, 12), st.integers(1, 40), st.floats(0.01, 500))
def test_the_longest_path_behind_is_the_last_that_the_formula_lets_through(forward, backward, w, c, left):
    behind = longest_behind(left, forward + backward, forward, backward, w, c)
    if behind < 0:
        assert path_seconds(forward, backward, 0.0, w, c) >= left * (1 - 1e-9)
    else:
        assert path_seconds(forward, backward, behind, w, c) <= left * (1 + 1e-9)
        assert path_seconds(forward, backward, behind + 1e-6 * left, w, c) >= left * (1 - 1e-9)


@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_live_values_are_made_inside_and_read_outside(seed):
    sets = Sets.of(pricing(seed), 1000)
    live, count = sets.live
    for row, inside in enumerate(unpacked(sets.ideals.masks, sets.ideals.nodes)):
        expected = [
            at for at, value in enumerate(sets.values)
            if inside[value.maker] and not all(inside[block] for block in value.readers)
        ]  # fmt: skip
        assert live[row, : count[row]].tolist() == expected
        makers = {reader for _, reader in sets.pairs}
        assert sets.begins[row] == any(not inside[block] and block not in makers for block in range(len(inside)))


@pytest.mark.parametrize("seed", [2, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 14))])
def test_what_few_labels_for_each_set_prove_all_of_them_do(seed):
    problem = drawn(seed, (5, 9), SMALL)
    solved = solve(problem)
    sets = Sets.of(solved.engine.pricing, 1000)
    whole, said = GraphSearch(Engine(solved.engine.pricing), (), inf), Counter()
    for _, family, count in whole.tables:
        proof = Proof(sets, family, count)
        for times in (0.7, 0.85, 1.0, 1.1):
            below = times * solved.best.seconds
            exact = proof.find((0, 1), below, 100_000, 1e-4)[0]
            for joining in (1, 3):
                outcome = proof.find((0, 1), below, 100_000, 1e-4, joining)[0]
                assert outcome in (exact, FOUND)
                said[exact, outcome] += 1
    # Seldom is it not as much.
    assert said[NONE, NONE] > 4 * said[NONE, FOUND]
    assert said[FOUND, FOUND] > 0


@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (6, 14, 22))])
def test_candidates_are_stages_and_none_is_under_the_bound(seed):
    problem = drawn(seed, (5, 9), SMALL)
    solved = solve(problem)
    (found, *_) = branched(solved, inf, 1, list(relisted(solved, inf)))
    sets = Sets.of(solved.engine.pricing, 1000)
    whole = GraphSearch(Engine(solved.engine.pricing), (), inf)
    several = 0
    for least, family, count in whole.tables:
        if least > 1.2 * found.best.seconds:
            break
        proof = Proof(sets, family, count)
        for depth in (0, 1, 2):
            limit = found.searched.bound_seconds * (1 - 1e-9)
            outcome, none, _ = proof.find((depth,), limit, 100_000, 1e-4, sharing=True)
            assert (outcome, none) == (NONE, [])
        _, candidates, _ = proof.find((0,), 1.2 * found.best.seconds, 100_000, 1e-4)
        assert len({candidate.stages for candidate in candidates}) == len(candidates)
        for candidate in candidates:
            assert sorted(candidate.blocks) == list(range(len(problem.graph.blocks)))
            start = family, count, candidate.places
            tables = whole.among(candidate.blocks, start).tables_of(*start[:2], inf)
            took = min(table.raised(candidate.places) for table in tables)
            assert took >= found.searched.bound_seconds
            several += took < inf
    assert several


def test_without_work_the_bound_is_that_of_the_tables():
    sets = Sets.of(pricing(6), 1000)
    tables = GraphSearch(Engine(sets.pricing), (), inf).tables
    assert Prover(sets, tables, 0, inf).bound(1.0, lambda *_: inf) == pytest.approx(min(tables[0][0], 0.995))
    assert np.isfinite(tables[0][0])
