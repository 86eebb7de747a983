"""Rules of slots that two places keep, so that no single line breaks them: an attack finds each as soon as both fail.

A mechanism that keeps its claim fails with probability 1e-6 at most (the audit's own rate). At epsilon 8 a user lies
some 1.5 deviations from null, so the attacker is right in Phi(.75) = .77 of the runs. Twice the distance (a second
slot) makes it .93, 12 deviations of 1,200 runs further.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hushstream.replay.studies.bgt import audits
from hushstream.systems.bgt.configuration import UNIT
from hushstream.systems.bgt.edge.agent import RatingAgent
from hushstream.systems.bgt.shuffler import Collector, Inadmissible

RUNS, FALSE_ALARM = 1_200, 1e-6


class CountsTwice(Collector):
    def repeated(self, ids):
        return np.zeros(len(ids), dtype=bool)


class ChecksEachRow(Collector):
    def refusals(self, slots):
        why = super().refusals(slots)
        return np.where(why == Inadmissible.NORM, Inadmissible.TAKEN, why).astype(np.int8)


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


MUTANTS = {
    "the allowance refilled after an erasure": (RefilledByForget, Collector),
    "a second slot counted": (SendsTwice, CountsTwice),
    "clipped by rows": (ClipsEachRow, ChecksEachRow),
}


@pytest.fixture
def attacked(monkeypatch):
    """The audit of a deployment of broken parts, by an attacker who knows how far sound slots move the sums."""

    def made(agent, collector=Collector):
        config = audits.audited_config()
        audits.slots_family(config)
        monkeypatch.setattr(audits, "RatingAgent", agent)
        monkeypatch.setattr(audits, "Collector", collector)
        return audits.audit_slots(config)(RUNS, FALSE_ALARM)

    return made


@pytest.mark.slow_statistics(keep=["a second slot counted"])
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", list(MUTANTS))
def test_every_mutant_fails(attacked, mutant):
    assert not attacked(*MUTANTS[mutant]).passed


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("agent", [SendsTwice, ClipsEachRow])
def test_a_malicious_device_gains_nothing_at_a_sound_collector(attacked, agent):
    """What the device does wrong voids no more than its own user's slots: they are counted once, or as null."""
    assert attacked(agent).passed
