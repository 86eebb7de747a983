"""The experiments of BGTplanner: quick runs write rows, targets and pictures, and rows say what they promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hushstream.privacy.promises.promise import NOT_PRIVATE, REPRODUCIBLE
from hushstream.replay.experiments.findings import Findings, Scale
from hushstream.replay.studies.bgt import audits, experiments
from hushstream.replay.studies.bgt.experiments import run_table, run_three_slots
from hushstream.replay.studies.bgt.study import bgt_rows
from hushstream.systems.bgt.configuration import UNIT
from hushstream.systems.bgt.edge.agent import RatingAgent
from hushstream.systems.bgt.shuffler import Collector, Inadmissible


@pytest.fixture(scope="module")
def table() -> Findings:
    return run_table(Scale(quick=True))


@pytest.mark.slow_statistics
@pytest.mark.slow
def test_every_private_row_says_what_it_promises(table):
    joining = run_three_slots(Scale(quick=True))
    noised = [row for row in (*table.rows, *joining.rows) if row.get("marks")]
    assert noised
    for row in noised:
        assert REPRODUCIBLE in row["marks"]
        if NOT_PRIVATE not in row["marks"]:
            assert 9.99 < row["epsilon"] <= 10
            assert row["delta"] <= 1e-5
    beside = [row for row in joining.rows if "epsilon_asked" in row]
    assert all(row["mixture"] == row["rmse"] and {"joined", "alone", "without_privacy"} <= row.keys() for row in beside)


@pytest.mark.slow_statistics
@pytest.mark.slow
def test_the_papers_form_is_marked_and_stands_beside_what_costs_nothing(table):
    rows = {row["form"]: row for row in table.rows}
    assert NOT_PRIVATE in rows["planner, gaussian"]["marks"]
    assert rows["planner, gaussian"]["delta"] == 1
    assert {"constant", "alone", "all positive", "three slots"} <= set(rows)
    assert rows["three slots"]["rmse"] < rows["planner, gaussian"]["rmse"]


@pytest.mark.slow
def test_printed_figures_stand_beside_their_schedules():
    assert experiments.PRINTED["ml-100k", "planner", "gaussian"] == (0.3223, 0.6444)
    assert experiments.PRINTED["filmtrust", "fedsgd", "gaussian"] == (0.2905, 0.8354)


@pytest.mark.slow
def test_targets_judge_the_rows_that_they_name():
    rows = [
        {"world": world, "schedule": name, "law": "gaussian", "form": name, "rmse": value}
        for world in experiments.WORLDS
        for name, value in (("planner", 0.31), ("random", 0.32), ("even-100", 0.30), ("even-82", 0.309))
    ]
    rows += [{"world": world, "form": "three slots", "rmse": 0.2} for world in experiments.WORLDS]
    reached = {row.name: row.reached for row in experiments.table_targets(rows)}
    assert not reached["filmtrust, planner against random"]
    assert reached["filmtrust, even-82 minus planner"]
    assert not reached["filmtrust, planner minus even-100"]


@pytest.mark.slow
def test_the_benchmark_has_rows_with_names_units_and_targets():
    told: list[str] = []
    rows = bgt_rows(told.append, rounds=1)
    assert all(row.value > 0 for row in rows)
    assert [row.target for row in rows if row.target][:2] == ["at least 5000", "at least 100000"]
    assert told == ["BGTplanner"]


# Rules of slots that two places keep, so that no single line breaks them: an attack finds each as soon as both fail.

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
