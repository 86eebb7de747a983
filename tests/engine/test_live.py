"""What is refused before it is deployed: a unit that is promised nothing, and a person without a word about it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from hushstream.engine.configuration import PrivacyConfig
from hushstream.engine.declare.live import require_person_promised, require_private
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.amounts import DELTA_ONE, MICRO, Cost
from hushstream.privacy.mechanisms.guarantee import slot_sums_guarantee
from hushstream.privacy.promises.promise import Promises
from hushstream.privacy.promises.sentence import ledger_words

SOUND = slot_sums_guarantee(1)
NOTHING = Cost(MICRO, DELTA_ONE)


@dataclass(frozen=True)
class Config:
    privacy: PrivacyConfig
    deployment: str = "shop"
    system: str = "toy"


@pytest.mark.parametrize("question", ["cost", "replace_one"])
def test_a_unit_that_pays_delta_one_is_refused_although_it_is_what_is_stated(question):
    """A toy once copied another system's function and was deployed at delta 1: `guarantee` alone said so."""
    toy = replace(SOUND, **{question: NOTHING})
    assert toy.private_as_stated
    for promises in (Promises(toy), Promises(SOUND, toy)):
        with pytest.raises(ConfigurationError, match="expected one that promises a unit something, got slot-sums: one"):
            require_private(promises, "toy.yaml")
    require_private(Promises(SOUND), "toy.yaml")


@pytest.mark.parametrize("question", ["cost", "exchange"])
def test_a_life_that_is_promised_nothing_is_asked_for_in_words(question):
    life = replace(SOUND.lifetime, units=500, **{question: NOTHING})
    promises = Promises(replace(SOUND, lifetime=life))
    with pytest.raises(
        ConfigurationError, match=r"Either lower privacy.epsilon, or .*privacy: \{person: unprotected\}"
    ):
        require_person_promised(Config(PrivacyConfig()), promises, "toy.yaml")
    require_person_promised(Config(PrivacyConfig("unprotected")), promises, "toy.yaml")
    require_person_promised(Config(PrivacyConfig()), Promises(SOUND), "toy.yaml")


@pytest.mark.parametrize(("epsilon", "left"), [(1, "so only single slots are protected"), (20, "is promised, too")])
def test_single_units_are_called_protected_only_where_they_are(epsilon, left):
    """At epsilon 20 "only single units are protected" stood beside "next to nothing"."""
    promise = slot_sums_guarantee(epsilon, lifetime_slots=400)
    with pytest.raises(ConfigurationError) as refused:
        require_person_promised(Config(PrivacyConfig()), Promises(promise), "toy.yaml")
    assert left in str(refused.value)
    assert ("are protected" in str(refused.value)) == (epsilon == 1)


def test_a_ledgers_amounts_are_said_to_be_the_smaller_price_and_the_other_one_stands_beside():
    told = ledger_words(SOUND.unit, SOUND.unit_prices)
    assert f"costs {SOUND.cost}, and for the question which of two it was {SOUND.replace_one}" in told
    public = replace(SOUND, public_participation=True)
    assert "for the question which of two it was; that it was there is public" in ledger_words(
        public.unit, public.unit_prices
    )
