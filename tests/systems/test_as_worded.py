"""Each relation that a promise prices is attacked as it is worded, and so is what it calls public, in every system.

An observer knows all others and both contents that a person may have, has the exact sums of both, and reads what is
published of one of them. They guess participation for certain from an exact count, so no sentence may price it.

Of 200 guesses no more are right than the bar of a relation allows, but for a chance of 1e-7 (each one's false alarm). A
leak by which 82 % are right under a bar of 60 %, and 76 % under one of 53 %, is found with probability .95.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import stats

from hushstream.privacy.amounts import Cost, delta_value
from hushstream.privacy.keys import Key
from hushstream.privacy.promises.sentence import even_odds
from hushstream.systems.p2b.slots import Report

RUNS, FALSE_ALARM = 100, 1e-7
OTHERS = 6
ABSENT = "absent"
"""In place of a content: the person sends nothing."""

Published = tuple[int, np.ndarray]
"""The exact count that is public, and the noised sums."""


class Attacked(NamedTuple):
    """A deployment, the same (almost) without noise, a person's contents (None is null), and a play of one of them."""

    system: Any
    exact: Any
    contents: tuple[Any, Any]
    play: Callable[[Any, Key, Any], Published]


def p2b(at: Any) -> Attacked:
    rigs = at("rigs")

    def play(system: Any, key: Key, content: Any) -> Published:
        rig = rigs.ShufflerRig(system, key)
        for number, report in enumerate([Report(1, 2, 1), None] * (OTHERS // 2) + [content] * (content != ABSENT)):
            rig.slot(number, report)
        rig.end_phase(0)
        (window,) = rig.sums_of(rig.fold())
        return window["slots"], np.frombuffer(window["ones"] + window["zeros"], "<i8")

    made = [rigs.make_system(release={"window_slots": 100, "epsilon": epsilon}) for epsilon in (0.1, 20.0)]
    return Attacked(*made, (Report(1, 2, 1), Report(2, 0, 0)), play)


def colin(at: Any) -> Attacked:
    related = at("related")

    def play(system: Any, key: Key, content: Any) -> Published:
        rig = related.CounterRig(system, key)
        rig.rewards(0, [row for row in related.some_rewards(1, 30) if row[0] != 1][:OTHERS])
        if content != ABSENT:
            rig.rewards(1, [(1, [0.6, 0.6, 0.0], content)] * 4)
        rig.end_phase(0)
        (release,) = rig.released(rig.fold())
        return len(release["nodes"]), related.arrays_of(release)[1].ravel()

    changes: list[dict[str, Any]] = [{"epsilon": 0.1}, {"mechanism": "exact"}]
    made = [related.releasing(**{"rows": 100, "rewards_per_user": 4, **change}) for change in changes]
    return Attacked(*made, (1.0, 0.0), play)


def pdap(at: Any) -> Attacked:
    shops = at("shops")

    def play(system: Any, key: Key, content: Any) -> Published:
        rig = shops.BlockCounterRig(system, key)
        rig.outcomes(0, [(0, 3, number % 2) for number in range(5 * OTHERS)])
        if content != ABSENT:
            rig.outcomes(1000, [(0, 3, content)] * 4)
        rig.end_phase(0)
        (release,) = rig.released(rig.fold())
        return release["outcomes"], shops.blocks_of(release).sums

    made = [shops.make_system(release={"epsilon": epsilon, "events_per_person": 4}) for epsilon in (0.1, 20.0)]
    return Attacked(*made, (1, 0), play)


def pdol(at: Any) -> Attacked:
    rigs = at("pdol_rigs")

    def play(system: Any, key: Key, content: Any) -> Published:
        rig = rigs.NodeRig(system, key)
        rig.play(0, OTHERS)
        for number in range(0 if content == ABSENT else 4):
            rig.record(f"of-one-{number}", 99, "one")
            if content is not None:
                rig.label(f"of-one-{number}", content, "one")
        rig.end_phase(0)
        rig.fold()
        released = [np.frombuffer(release["sums"], "<i8") for release in rig.sums()]
        return len(released), np.concatenate([[0], *released])

    changes = ({"epsilon": 0.1}, {"counter": "exact"})
    made = [rigs.make_system(nodes=1, sharing={"slots_per_release": OTHERS + 4, "epochs": 1, **one}) for one in changes]
    return Attacked(*made, (1, -1), play)


def bgt(at: Any) -> Attacked:
    films = at("films")

    def play(system: Any, key: Key, content: Any) -> Published:
        rig = films.CollectorRig(system, key)
        for number in range(OTHERS):
            rig.slot(number, films.item_slot(system.config, number))
        if content != ABSENT:
            rig.slot(OTHERS, content and films.item_slot(system.config, OTHERS, content << 20, 0))
        rig.end(0)
        rig.fold()
        (release,) = rig.released()
        return release["slots"], np.frombuffer(release["sums"], "<i8")

    return Attacked(films.make_system(epsilon=0.1), films.make_system(noise="exact"), (1, -1), play)


@pytest.mark.parametrize("attacked", [p2b, colin, pdap, pdol, bgt])
def test_each_relation_is_attacked_as_it_is_worded(request, attacked):
    system, exact, (content, other), play = attacked(request.getfixturevalue)
    promises = system.guarantee()
    words = promises.person
    worlds = {words.which: (content, other), words.public: (content, ABSENT)}
    if words.zero_out:
        worlds[words.zero_out] = (content, None)

    def right_of(pair: tuple[Any, Any]) -> int:
        known = {world: play(exact, Key(bytes(31) + b"\1"), world) for world in pair}

        def far(published: Published, world: Any) -> float:
            """How unlikely a world makes what was published: a count is exact, and noise falls off by distance."""
            (count, noised), (expected, true) = published, known[world]
            return np.inf if count != expected else float(np.abs(noised - true).sum())

        guessed = 0
        for number in range(2 * RUNS):
            truth = pair[number % 2]
            published = play(system, Key((number + 1).to_bytes(32, "big")), truth)
            guessed += min(pair, key=partial(far, published)) == truth
        return guessed

    right = {question: right_of(pair) for question, pair in worlds.items()}
    labels = [bar.label for bar in promises.odds()[1:]]
    both = [cost for pair in (promises.together, promises.unit_prices) for cost in (pair.which, pair.zero_out) if cost]
    # Who guesses is right at most as often as these odds and delta allow.
    bars = {
        label: even_odds(Cost(cost.epsilon_micro)) + float(delta_value(cost.delta_units))
        for label, cost in zip(labels, both, strict=False)
    }
    assert right.pop(words.public) == 2 * RUNS
    assert set(right) <= set(bars)
    for question, guessed in right.items():
        assert guessed <= stats.binom.isf(FALSE_ALARM, 2 * RUNS, bars[question]), (question, guessed)
    assert words.public not in bars
    assert words.public in promises.sentence() or words.assumed
