"""The first and second form of equality for vendors that share, with one counter and with a counter of each home.

Some hundred visitors of two vendors come to two learner partitions of each in three phases, once on each runner, under
the same seeded keys. Learners and counters race, so the records between roles are cut and mixed otherwise on a stream;
what is decided, released at the end of a phase and published as a model must be the same bytes, offsets aside.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from two_runners import (
    Both,
    decoded,
    require_changes_found,
    require_export_recomputed,
    require_recomputed,
)

from hushstream.agents.worker.deployment import KeySource, parse_as, prepare
from hushstream.replay.runners.playing import Place, Recording, play_parties
from hushstream.replay.studies.pdap.play import PdapLoop, PdapOptions, PdapPlan, PdapPlayed, Visits, configured
from hushstream.replay.studies.pdap.worlds import vendors
from hushstream.systems.pdap.configuration import PdapConfig, Schedule

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process(keep=["test_every_visitor_gets_the_same_decision_and_clicks_alike[serving]"]),
]

VENDORS, CONTEXTS, PHASES, SEED = 2, 450, 3, 11
KEYS = KeySource(seed=SEED)
PLACEMENTS = ("serving", "home")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PLACEMENTS)
async def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Both[PdapPlayed]:
    placement, folder = request.param, tmp_path_factory.mktemp(request.param)
    world = vendors(vendors=VENDORS, arms=8, seed=SEED)
    settings = {
        "deployment": f"equal-{placement}",
        "release": {"placement": placement},
        "privacy": {"epsilon": 2.0},
        "cells": {"split_at": 60.0},
        "partitions": {"learner": 2},
    }
    config = parse_as(PdapConfig, configured(PdapOptions(contexts=CONTEXTS, config=settings), world))
    system = prepare(folder, config, public_dataset=world.name)
    plan = PdapPlan(CONTEXTS, Schedule(200, 1.5))
    visits = Visits.of(world, CONTEXTS, SEED)
    assert len(list(plan.phases())) == PHASES

    async def on(runner: Any) -> Recording[PdapPlayed]:
        return await play_parties(system, Place(runner, folder, None, SEED), PdapLoop(config, world, visits, plan).run)

    return Both(system, await on("direct"), await on("stream"))


def counters(run: Both[Any]) -> int:
    return VENDORS if run.system.config.release.placement == "home" else 1


@pytest.mark.process
def test_every_visitor_gets_the_same_decision_and_clicks_alike(run):
    assert len(run.equal_decisions()) == CONTEXTS
    run.require_played("chosen", "chances", "clicks")


def test_each_phase_decides_by_the_model_of_the_phase_before(run):
    ends = [events.stop for events in PdapPlan(CONTEXTS, Schedule(200, 1.5)).phases()]
    for event_id, (*_, version) in run.equal_decisions().items():
        assert version == int(np.searchsorted(ends, int(event_id.partition(":")[2]), side="right"))


def test_every_model_is_the_same_bytes(run):
    names = ("version", "opened", "changed", "tickets", "pool", "observations", "epsilon_micro", "delta_units")
    models = run.equal("models", "TicketModel", *names)
    assert [model["observations"] for model in models] == [200, 300, 450]
    assert any(model["opened"] for model in models), "the root has split"


def test_releases_are_the_same_bytes(run):
    assert len(run.equal("releases", "BlockRelease", ordered=False)) == PHASES * counters(run)


def test_debits_are_the_same_in_both_ledgers(run):
    run.require_debits(["epoch/0/0"] * counters(run), 2_000_000)  # each counter has a ledger


# Recomputing.


def test_a_live_stream_a_direct_run_and_an_export_of_a_stream_verify(run, tmp_path):
    require_recomputed(run.system, KEYS, run.direct, run.stream)
    require_export_recomputed(run.system, KEYS, run.stream, tmp_path)


def test_a_changed_byte_in_any_record_of_any_kind_is_found(run):
    there = {
        "contexts",
        "clicks",
        "decisions",
        "outcomes",
        "forwards",
        "journal-counter",
        "releases",
        "ledger",
        "models",
    }
    assert require_changes_found(run.system, KEYS, run.stream.logs) == there


def test_what_one_vendor_sends_to_another_is_the_same_but_for_probes(run):
    """Every context that got another vendor's arm is forwarded to that vendor, with its home."""
    owners = run.system.config.owners
    homes = Visits.of(vendors(vendors=VENDORS, arms=8, seed=SEED), CONTEXTS, SEED).arrivals.homes
    serving = owners[run.stream.played.chosen]
    expected = {(int(h), int(s)): 0 for h in range(VENDORS) for s in range(VENDORS) if h != s}
    for home, server in zip(homes.tolist(), serving.tolist(), strict=True):
        if home != server:
            expected[home, server] += 1
    for recording in (run.direct, run.stream):
        found = dict.fromkeys(expected, 0)
        for fields in decoded(recording, "forwards", "Forwards"):
            for home in np.frombuffer(fields["homes"], "<i4").tolist():
                found[home, fields["serving"]] += 1
        # Probes, which wait for a model, are forwarded too.
        assert all(found[key] >= expected[key] > 0 for key in expected)
