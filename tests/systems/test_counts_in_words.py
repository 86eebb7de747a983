"""What users read counts in English: one record, not 1 records."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from hushstream.counting import NegativeDigitTree, PureEpsilon
from hushstream.privacy.amounts import count_text
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.price.guarantee import epoch_guarantee as bgt_guarantee
from hushstream.systems.colin.configuration import CollaborativeConfig, ContinualConfig, FeatureConfig
from hushstream.systems.colin.release import epoch_guarantee as colin_guarantee
from hushstream.systems.p2b.configuration import ContextConfig, EncoderConfig, LiftConfig, P2BConfig
from hushstream.systems.p2b.guarantee.promise import promises_of
from hushstream.systems.p2b.lift import lift_guarantee
from hushstream.systems.pdap.configuration import BlockConfig, PdapConfig, VendorConfig
from hushstream.systems.pdap.promise import release_guarantee
from hushstream.systems.pdol.advice import advise
from hushstream.systems.pdol.configuration import GossipConfig, PdolConfig, RecordConfig, SharingConfig
from hushstream.systems.pdol.guarantee import epoch_guarantee as pdol_guarantee

ONE_OF_MANY = re.compile(r"(?<![-.,\w(])(?<!\+ )1 (?!less\b|as\b|is\b|was\b|has\b|plus\b|this\b)[a-z]+s\b")
"""A one before a noun of many; not the last figure of a number, nor that of a sum."""


def pdol(**changes):
    records = RecordConfig(1, records_per_user=1)
    sharing = SharingConfig(slots_per_release=1, horizon=1, domains=1)
    return PdolConfig("one", 2, records, **{"sharing": sharing, **changes})


def colin():
    release = ContinualConfig(rewards_per_user=1, horizon=1, epsilon=1.0)
    return CollaborativeConfig("one", 1, FeatureConfig(1), release=release)


GUARANTEES = {
    "pdol": lambda: pdol_guarantee(pdol()),
    "pdol, gossip": lambda: pdol_guarantee(pdol(gossip=GossipConfig(1.0, rounds=1))),
    "pdap": lambda: release_guarantee(
        PdapConfig("one", (VendorConfig("a", 1),), 1, release=BlockConfig(events_per_person=1))
    ),
    "colin": lambda: colin_guarantee(colin().release, FeatureConfig(1), 1),
    "bgt": lambda: bgt_guarantee(BgtConfig("one", 2)),
    "p2b": lambda: (
        promises_of(P2BConfig("one", 2, ContextConfig(2), expected_slots=100, encoder=EncoderConfig(codes=2))).releases
    ),
    "lift": lambda: lift_guarantee(LiftConfig(holdout=0.5, decisions_per_user=1, releases=1), 1),
}


@pytest.mark.parametrize("name", GUARANTEES)
def test_a_guarantee_of_one_of_each_counts_in_english(name):
    promise = GUARANTEES[name]()
    said = (promise.mechanism, promise.unit, promise.relation, promise.norm, *promise.conditions)
    found = [match.group(0) for text in (*said, *promise.not_protected) for match in ONE_OF_MANY.finditer(text)]
    assert not found


def test_the_tree_of_one_level_says_so():
    tree = NegativeDigitTree(budget=PureEpsilon(1), dimension=1, sensitivity=1, horizon=1, base=3)
    assert ONE_OF_MANY.search("base 3, 1 levels")
    assert not ONE_OF_MANY.search(tree._shape_text())


def test_how_many_is_said_of_one_and_of_more():
    assert [count_text(count, "leaf") for count in (0, 1, 2)] == ["0 leaves", "1 leaf", "2 leaves"]
    assert count_text(12_345, "slot", ",") == "12,345 slots"
    assert count_text(1.2, "reward", ".0f") == "1 reward"


def test_what_is_close_to_call_is_not_said_to_bring_nothing():
    """Below the crossing nothing is left as it stands; as the crossing is known to a factor of four, some may be."""
    config = PdolConfig(
        "close", 64, RecordConfig(501), sharing=SharingConfig(epsilon=1.0, delta=1e-6, slots_per_release=32, horizon=32)
    )
    crossing = advise(config, 447).crossing
    advice = advise(config, crossing / 2)
    assert (advice.beats_isolated, advice.gain) == (None, 0)
    low, high = advice.gains
    assert low == 0 < high < 1
    assert f"about 0 % is left (0 to {100 * high:.0f} %, as far as the crossing is known)" in advice.as_text()
    more = advise(replace(config, sharing=replace(config.sharing, epsilon=8.0)), 447)
    assert more.gains[0] <= more.gain <= more.gains[1]
