"""One who sees whose ratings came when, and in which order the slots of a round left: at chance, whatever they go by.

Disjoint pairs of users are ordered by what the attacker knows of them; for one who knows nothing of the slots' order
the slots of a pair are in the same order with probability exactly 1/2. *At chance* means that the number of such pairs
lies where Binomial(n, 1/2) does but for 1e-6 (two-sided): that is the probability of a false alarm of each of the five
attacks. An order of slots that follows what the attacker goes by makes all pairs agree, and with 150 pairs an attacker
who is right in 75 % of them is found with probability 0.9. Everything is seeded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hushstream.systems.bgt.artefacts import BgtSystem

USERS = 300
FALSE_ALARM = 1e-6


@pytest.fixture(scope="module")
def known(films: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Place of each user's slot in the round, and what the attacker knows of each user."""
    draw = np.random.default_rng(11)
    config = replace(films.make_config(), items=USERS)
    rig = films.RaterRig(BgtSystem.of(config, np.zeros((USERS, 0))), films.SECRET)
    names = [f"user-{number:03}" for number in draw.permutation(USERS)]
    ratings = draw.integers(1, 9, USERS)
    values = draw.choice([1.0, 2.0, 3.0, 4.0, 5.0], USERS)
    for place, name in enumerate(names):
        items = (np.arange(ratings[place]) + place) % USERS
        rig.rate(name, sorted(items.tolist()), [values[place]] * len(items))
    erased = np.arange(USERS) % 2 == 0
    draw.shuffle(erased)
    for name, gone in zip(names, erased, strict=True):
        if gone:
            rig.forget(name)
    rig.end(0)
    left = [slot["slot_id"] for slot in rig.slots(rig.fold())]
    key = rig.machine.key
    ids = [key.derive("bgt-agent", key.digest("bgt-user", name.encode())).prf("bgt-slot", 0)[:16] for name in names]
    assert sorted(ids) == sorted(left)
    knows = {
        "order of joining": np.arange(USERS),
        "name": np.argsort(np.argsort(names)),
        "number of ratings": ratings,
        "rating": values,
        "erased or not": erased.astype(int),
    }
    return np.array([left.index(one) for one in ids]), knows


@pytest.mark.parametrize("by", ["order of joining", "name", "number of ratings", "rating", "erased or not"])
def test_no_order_that_an_onlooker_knows_is_the_order_of_the_slots(known, by):
    places, knows = known
    pairs = np.random.default_rng(12).permutation(USERS).reshape(-1, 2)
    told = knows[by][pairs]
    pairs = pairs[told[:, 0] != told[:, 1]]
    same = (knows[by][pairs[:, 0]] < knows[by][pairs[:, 1]]) == (places[pairs[:, 0]] < places[pairs[:, 1]])
    assert len(pairs) > 60
    low, high = stats.binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], len(pairs), 0.5)
    assert low <= same.sum() <= high


def test_the_sizes_have_power():
    for pairs, right, power in ((60, 0.9, 0.98), (150, 0.75, 0.9)):
        low, high = stats.binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], pairs, 0.5)
        assert 1 - stats.binom.cdf(high, pairs, right) >= power
        assert low > 0
