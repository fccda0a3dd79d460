"""Schedules by name: Partita's own, a plugin's, and names that nobody knows."""

from __future__ import annotations

import pytest

from partita.errors import PlanError
from partita.hooks import hookimpl, plugins
from partita.schedules import GENERATORS, Schedule, Turn, find


def one_at_a_time(stages: int, micro_batches: int) -> dict[int, list[Turn]]:
    """A micro-batch goes through the whole pipeline, and back, before the next one starts."""
    phases = ("forward", "backward")
    return {s: [Turn(s, phase, m) for m in range(micro_batches) for phase in phases] for s in range(stages)}


class Outside:
    """A plugin with a schedule of its own; it would also replace one of Partita's."""

    @hookimpl
    def partita_schedule(self, name: str) -> Schedule | None:
        return Schedule(name, one_at_a_time) if name in ("one-at-a-time", "gpipe") else None


@pytest.fixture
def outside():
    plugin = Outside()
    plugins().register(plugin)
    yield
    plugins().unregister(plugin)


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_own_names(name):
    assert find(name) is GENERATORS[name]
    assert find(name).name == name


@pytest.mark.usefixtures("outside")
def test_a_plugin_adds_a_name_and_takes_none_away():
    found = find("one-at-a-time")
    assert found(2, 2) == one_at_a_time(2, 2)
    assert found.lanes(3, {}) == ((0,), (1,), (2,))
    assert find("gpipe") is GENERATORS["gpipe"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("interlieved", "no schedule \"interlieved\". Did you mean 'interleaved'"),
        ("xyz", "Known: 1f1b, 3f1b, breadth-first, gpipe"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(name, words):
    with pytest.raises(PlanError, match=words):
        find(name)
