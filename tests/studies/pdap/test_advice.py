"""Advice: share where it gains, keep apart where it does not, and say so plainly where no block would ever come."""

from __future__ import annotations

import pytest

from hushstream.engine.declare.plan import Audience
from hushstream.replay.studies.pdap.advice import SHARE, advise, play_plan
from hushstream.replay.worlds.world import WorldError
from hushstream.systems.pdap.configuration import BlockConfig, PdapConfig, VendorConfig
from hushstream.systems.pdap.plan import KEEP_APART, plan

SEEDS = (0, 1, 2)


def config(epsilon, arms=30):
    return PdapConfig(
        "shops", tuple(VendorConfig(f"v{place}", arms) for place in range(4)), 2, release=BlockConfig(epsilon)
    )


def test_specialised_vendors_with_a_large_epsilon_should_share():
    found = advise(config(4.0), 20_000, seeds=SEEDS, processes=1)
    assert found.verdict == SHARE
    assert found.gain[0] > 5
    assert found.as_text().startswith("Advice: share.\n")


def test_vendors_that_are_alike_with_a_small_epsilon_should_keep_apart():
    found = advise(config(0.02), 10_000, overlap=1.0, seeds=SEEDS, processes=1)
    assert found.verdict == KEEP_APART
    assert found.gain[0] < 0
    assert KEEP_APART in found.as_text()


def test_where_no_block_will_ever_be_released_the_advice_is_to_keep_apart():
    found = advise(config(0.001), 1_000, seeds=SEEDS, processes=1)
    assert found.verdict == KEEP_APART
    assert "no block will ever be released" in found.as_text()


def test_a_plan_says_what_was_played_in_place_of_what_it_left_open():
    audience = Audience(600, 3)
    found = play_plan(config(4.0), plan(config(4.0), audience), audience, 0.02, seeds=SEEDS, processes=1)
    assert found.beats is True
    assert found.verdict.startswith("It will beat vendors that keep apart: share. +")
    assert found.as_json()["facts"]["gain"][0] > 5
    hopeless = plan(config(0.00001), Audience(2, 3))
    assert play_plan(config(0.00001), hopeless, audience, 0.02, seeds=SEEDS, processes=1) is hopeless


@pytest.mark.parametrize(("contexts", "seeds"), [(0, SEEDS), (10**9, SEEDS), (1_000, (1,))])
def test_what_cannot_be_simulated_is_refused(contexts, seeds):
    with pytest.raises(WorldError, match="advice: expected"):
        advise(config(1.0), contexts, seeds=seeds)
