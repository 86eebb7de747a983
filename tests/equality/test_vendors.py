"""The first and second form of equality for vendors that share, with one counter and with a counter of each home.

Some hundred visitors of two vendors come to two learner partitions of each in three phases, once on each runner, under
the same seeded keys. Learners and counters race, so the records between roles are cut and mixed otherwise on a stream;
what is decided, released at the end of a phase and published as a model must be the same bytes, offsets aside.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from two_runners import decoded, require_changes_found, require_export_recomputed, require_recomputed, with_records

from hushstream.agents.worker.deployment import KeySource, parse_as, prepare
from hushstream.engine.declare.declaration import System
from hushstream.ops.check.verify import verify
from hushstream.replay.runners.playing import Place, Recording, play_parties
from hushstream.replay.studies.pdap.run import PdapLoop, PdapOptions, PdapPlan, PdapPlayed, Visits, configured
from hushstream.replay.studies.pdap.worlds import vendors
from hushstream.schemas import codec
from hushstream.systems.pdap.configuration import PdapConfig, Schedule

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process(keep=["test_every_visitor_gets_the_same_decision_and_clicks_alike[serving]"]),
]

VENDORS, CONTEXTS, PHASES, SEED = 2, 450, 3, 11
KEYS = KeySource(seed=SEED)
PLACEMENTS = ("serving", "home")


@dataclass(frozen=True, slots=True)
class Both:
    """The same loop on both runners."""

    placement: str
    system: System
    direct: Recording[PdapPlayed]
    stream: Recording[PdapPlayed]


async def both(folder: Path, placement: str) -> Both:
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

    return Both(placement, system, await on("direct"), await on("stream"))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PLACEMENTS)
async def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Both:
    return await both(tmp_path_factory.mktemp(request.param), request.param)


def decisions(recording: Any) -> dict[str, tuple[int, ...]]:
    """By event id: arm, propensity, policy and version; the probes that wait for a model are no part of the loop."""
    found: dict[str, tuple[int, ...]] = {}
    for fields in decoded(recording, "decisions", "Decisions"):
        columns = (
            np.frombuffer(fields["arms"], "<i4").tolist(),
            np.frombuffer(fields["propensities"], "<u4").tolist(),
            list(fields["policies"]),
            np.frombuffer(fields["model_versions"], "<i4").tolist(),
        )
        for event_id, *row in zip(fields["event_ids"], *columns, strict=True):
            if not event_id.startswith("probe:"):
                assert event_id not in found, "decided once"
                found[event_id] = tuple(row)
    return found


@pytest.mark.process
def test_every_visitor_gets_the_same_decision_and_clicks_alike(run: Both) -> None:
    ours, theirs = decisions(run.direct), decisions(run.stream)
    assert ours == theirs
    assert len(ours) == CONTEXTS
    for name in ("chosen", "chances", "clicks"):
        np.testing.assert_array_equal(getattr(run.direct.played, name), getattr(run.stream.played, name))


def test_each_phase_decides_by_the_model_of_the_phase_before(run: Both) -> None:
    ends = [events.stop for events in PdapPlan(CONTEXTS, Schedule(200, 1.5)).phases()]
    for recording in (run.direct, run.stream):
        for event_id, (*_, version) in decisions(recording).items():
            assert version == int(np.searchsorted(ends, int(event_id.partition(":")[2]), side="right"))


def test_every_model_is_the_same_bytes(run: Both) -> None:
    names = ("version", "opened", "changed", "tickets", "pool", "observations", "epsilon_micro", "delta_units")
    ours, theirs = (
        [{name: model[name] for name in names} for model in decoded(recording, "models", "TicketModel")]
        for recording in (run.direct, run.stream)
    )
    assert ours == theirs
    assert [model["observations"] for model in ours] == [200, 300, 450]
    assert any(model["opened"] for model in ours), "the root has split"


def test_releases_are_the_same_bytes(run: Both) -> None:
    values = [
        sorted(codec.encode("BlockRelease", fields) for fields in decoded(recording, "releases", "BlockRelease"))
        for recording in (run.direct, run.stream)
    ]
    assert values[0] == values[1]
    assert len(values[0]) == PHASES * (VENDORS if run.placement == "home" else 1)


def test_every_outcome_is_in_one_block_or_waits(run: Both) -> None:
    for recording in (run.direct, run.stream):
        releases = list(decoded(recording, "releases", "BlockRelease"))
        assert sum(fields["outcomes"] for fields in releases) == CONTEXTS
        counted = sum(int(np.frombuffer(fields["counts"], "<i8").sum()) for fields in releases)
        assert 0.5 * CONTEXTS < counted <= CONTEXTS
        names = [fields["names"] for fields in decoded(recording, "outcomes", "Outcomes")]
        every = {part[at : at + 16] for part in names for at in range(0, len(part), 16)}
        assert len(every) == sum(map(len, names)) // 16 == CONTEXTS


def test_debits_are_the_same_in_both_ledgers(run: Both) -> None:
    ours, theirs = (
        sorted(entry["debit"]["scope"] for entry in decoded(recording, "ledger", "LedgerEntry"))
        for recording in (run.direct, run.stream)
    )
    counters = VENDORS if run.placement == "home" else 1
    assert ours == theirs == ["epoch/0/0"] * counters, "each counter has a ledger"
    for recording in (run.direct, run.stream):
        assert {e["debit"]["epsilon_micro"] for e in decoded(recording, "ledger", "LedgerEntry")} == {2_000_000}


# Recomputing.


def test_a_live_stream_a_direct_run_and_an_export_of_a_stream_verify(run: Both, tmp_path: Path) -> None:
    require_recomputed(run.system, KEYS, run.direct, run.stream)
    require_export_recomputed(run.system, KEYS, run.stream, tmp_path)


def test_a_changed_byte_in_any_record_of_any_kind_is_found(run: Both) -> None:
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


def test_an_outcome_in_two_blocks_is_found(run: Both) -> None:
    """A release whose block counts one outcome more than its counter was sent is no release that verify finds."""
    logs = run.stream.logs
    source = ("releases", 0)
    records = list(logs.part(source).records)
    index = next(i for i, record in enumerate(records) if len(codec.decode(record.value)[1].get("counts", b"")))
    name, fields = codec.decode(records[index].value)
    counts = np.frombuffer(fields["counts"], "<i8").copy()
    counts[0] += 1
    changed = codec.encode(name, {**fields, "counts": counts.tobytes()})
    records[index] = records[index]._replace(value=changed)
    found = verify(with_records(logs, source, records), run.system, KEYS)
    assert found.exit_code == 1
    assert any(finding.topic == "releases" for finding in found.findings)


def test_what_one_vendor_sends_to_another_is_the_same_but_for_probes(run: Both) -> None:
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
