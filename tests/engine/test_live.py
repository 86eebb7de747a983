"""What is refused before it is deployed: a unit that is promised nothing, and a person without a word about it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from hushstream.engine.configuration import PrivacyConfig
from hushstream.engine.declare.live import require_person_told, require_private
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.amounts import DELTA_ONE, MICRO, Cost
from hushstream.privacy.guarantee import slot_sums_guarantee
from hushstream.privacy.promise import Promises

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
        require_person_told(Config(PrivacyConfig()), promises, "toy.yaml")
    require_person_told(Config(PrivacyConfig("unprotected")), promises, "toy.yaml")
    require_person_told(Config(PrivacyConfig()), Promises(SOUND), "toy.yaml")
