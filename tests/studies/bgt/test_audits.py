"""The product passes its audits; every mutant fails the same attack.

A mechanism that keeps its claim fails with probability 1e-6 at most (the audit's own rate). At epsilon 8 a user lies
some 1.5 deviations from null, so the attacker is right in Phi(.75) = .77 of the runs. Twice the distance (half the
noise, a second slot) makes it .93, 12 deviations of 1,200 runs further; twice the rho of pairs .85, 11 of 3,500.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hushstream.replay.studies.bgt.audits.rows import OWN_ITEMS, Rig, audit_slots, audited_config, audits
from hushstream.systems.bgt.configuration import UNIT
from hushstream.systems.bgt.edge.agent import RatingAgent
from hushstream.systems.bgt.shuffler.admission import Refusal
from hushstream.systems.bgt.shuffler.collector import Collector

FALSE_ALARM = 1e-6
PAIRS = (0.01, 0.98, 0.01)


class HalfNoise(Collector):
    def noise(self, size, naming):
        return super().noise(size, naming) // 2


class ForgottenFactor(Collector):
    """Delta^2 = C^4 / 4 for the triangle, where it is C^4 / 2."""

    def noise(self, size, naming):
        drawn = super().noise(size, naming)
        return (drawn / 2**0.5).astype(np.int64) if self.asked.kind == "pairs" else drawn


class CountsTwice(Collector):
    def repeated(self, ids):
        return np.zeros(len(ids), dtype=bool)


class ChecksEachRow(Collector):
    def refusals(self, slots):
        why = super().refusals(slots)
        return np.where(why == Refusal.NORM, Refusal.TAKEN, why).astype(np.int8)


class ClipsEachRow(RatingAgent):
    """Each residual is brought to half the clip by itself."""

    def answer(self, asked, digest):
        sent = super().answer(asked, digest)
        values = np.sign(sent.slot.values) * np.int32(UNIT // 2)
        return replace(sent, slot=replace(sent.slot, values=values))


class RefilledByForget(RatingAgent):
    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.lives = 0

    def forget(self, items=None) -> None:
        super().forget(items)
        self._answered = 0
        self.lives += 1

    def answer(self, asked, digest):
        sent = super().answer(asked, digest)
        return replace(sent, slot_id=sent.slot_id[:8] + self.lives.to_bytes(8, "big"))


class SendsTwice(RatingAgent):
    """Nothing remembers that a round was answered; the ids are equal."""

    def forget(self, items=None) -> None:
        super().forget(items)
        self._answered = 0


@pytest.mark.slow_statistics(keep=["shares0"])
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shares", [audited_config().release.shares, PAIRS])
def test_the_product_passes_and_its_attacker_is_not_blind(shares) -> None:
    result = audit_slots(Rig(audited_config(shares)))(2_000, FALSE_ALARM)
    assert result.passed
    assert result.strongest > 4.0


MUTANTS = {
    "half the noise": (Rig(audited_config(), collector=HalfNoise), 1_200),
    "the allowance refilled after an erasure": (Rig(audited_config(), agent=RefilledByForget), 1_200),
    "a second slot counted": (Rig(audited_config(), SendsTwice, CountsTwice), 1_200),
    "clipped by rows": (Rig(audited_config(), ClipsEachRow, ChecksEachRow), 1_200),
    "a factor forgotten in the triangle": (Rig(audited_config(PAIRS), collector=ForgottenFactor), 3_500),
}


@pytest.mark.slow_statistics(keep=["a second slot counted"])
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", list(MUTANTS))
def test_every_mutant_fails(mutant: str) -> None:
    rig, runs = MUTANTS[mutant]
    assert not audit_slots(rig)(runs, FALSE_ALARM).passed


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("agent", [SendsTwice, ClipsEachRow])
def test_a_malicious_device_gains_nothing_at_a_sound_collector(agent) -> None:
    """What the device does wrong voids no more than its own user's slots: they are counted once, or as null."""
    assert audit_slots(Rig(audited_config(), agent))(1_200, FALSE_ALARM).passed


def test_the_papers_ids_break_its_claim() -> None:
    (paper,) = (audit for audit in audits() if audit.name == "bgt-paper")
    row = paper("quick", FALSE_ALARM)
    assert row.claim_broken
    assert row.passed


def test_own_items_fill_a_slot() -> None:
    assert audited_config().release.pairs == OWN_ITEMS
