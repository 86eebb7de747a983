"""The first and second form of equality for PDOL, and what sharing brings on a stream, beside nodes that learn alone.

Eight nodes with a counter each, and eight that share two counters, play the same records once on each runner,
under the same seeded keys, on the embedded broker. Domains race; what is predicted, released and published must be the
same.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from two_runners import decoded, require_changes_found, require_export_recomputed, require_recomputed

from hushstream.agents.worker.deployment import KeySource, prepare
from hushstream.engine.declare.declaration import System
from hushstream.replay.runners.playing import Place, Recording, play
from hushstream.replay.studies.pdol.play import alone_labels
from hushstream.replay.studies.pdol.run import RecordLoop, RecordsPlayed, records_per_phase
from hushstream.replay.studies.pdol.worlds import RecordStream, sparse_synthetic
from hushstream.schemas import codec
from hushstream.systems.pdol.configuration import (
    GossipConfig,
    ModelConfig,
    PdolConfig,
    PredictionConfig,
    RecordConfig,
    SharingConfig,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process(keep=["test_every_record_gets_the_same_prediction_at_the_same_version[domains]"]),
    pytest.mark.timeout(600),
]

NODES, RECORDS, HORIZON = 8, 640, 16
KEYS = KeySource(seed=11)
DOMAINS = {"counters": NODES, "domains": 2, "votes": NODES}


@dataclass(frozen=True, slots=True)
class Both:
    """The same loop on both runners."""

    system: System
    stream: RecordStream
    direct: Recording[RecordsPlayed]
    streamed: Recording[RecordsPlayed]


async def both(folder: Path, kind: str) -> Both:
    stream = sparse_synthetic(records=RECORDS, dimension=20, features=5, nodes=NODES, seed=11)
    domains = DOMAINS[kind]
    config = PdolConfig(
        f"equal-{kind}",
        NODES,
        RecordConfig(stream.dimension, label_slots=4096),
        SharingConfig(epsilon=16.0, slots_per_release=RECORDS // domains // HORIZON, horizon=HORIZON, domains=domains),
        ModelConfig(releases_per_version=1 << 20),
        PredictionConfig("node" if kind == "votes" else "released"),
    )
    system = prepare(folder, config, public_dataset=stream.name)

    async def on(runner: Any) -> Recording[RecordsPlayed]:
        loop = RecordLoop(stream, system.core, records_per_phase(stream, config))
        return await play(system, Place(runner, folder, None, 11), loop.run)

    direct, streamed = await asyncio.gather(on("direct"), on("stream"))
    return Both(system, stream, direct, streamed)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(DOMAINS))
async def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Both:
    return await both(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.process
def test_every_record_gets_the_same_prediction_at_the_same_version(run: Both) -> None:
    np.testing.assert_array_equal(run.direct.played.predicted, run.streamed.played.predicted)
    np.testing.assert_array_equal(run.direct.played.versions, run.streamed.played.versions)
    assert sorted(set(run.direct.played.versions.tolist())) == list(range(HORIZON))
    assert np.all(np.abs(run.direct.played.predicted) == 1)


def test_every_model_is_the_same_bytes(run: Both) -> None:
    names = ("version", "phase", "weights", "releases", "screened", "epsilon_micro", "delta_units", "digest")
    ours, theirs = (
        [{name: model[name] for name in names} for model in decoded(recording, "models", "LinearModel")]
        for recording in (run.direct, run.streamed)
    )
    assert ours == theirs
    assert [model["releases"] for model in ours] == [run.system.core.config.domains * n for n in range(1, HORIZON + 1)]


def test_releases_are_the_same_bytes_whatever_their_order(run: Both) -> None:
    ours, theirs = (
        sorted(codec.encode("GradientSum", fields) for fields in decoded(recording, "releases", "GradientSum"))
        for recording in (run.direct, run.streamed)
    )
    assert ours == theirs
    assert len(ours) == run.system.core.config.domains * HORIZON


def test_debits_are_the_same_in_both_ledgers(run: Both) -> None:
    domains = run.system.core.config.domains
    for recording in (run.direct, run.streamed):
        entries = list(decoded(recording, "ledger", "LedgerEntry"))
        assert sorted(entry["debit"]["scope"] for entry in entries) == sorted(f"epoch/{d}/0" for d in range(domains))
        assert {entry["debit"]["epsilon_micro"] for entry in entries} == {run.system.core.guarantee().epsilon_micro}


@pytest.mark.parametrize("run", ["domains"], indirect=True)
def test_sharing_on_the_stream_beats_nodes_that_learn_alone(run: Both) -> None:
    """Seeded: no chance is in it. Two counters of four nodes each, at epsilon 16."""
    labels = run.stream.rows.labels
    shared = np.mean(run.streamed.played.predicted == labels)
    alone = np.mean(alone_labels(run.stream) == labels)
    print(f"shared {shared:.4f}, isolated {alone:.4f}, constant {run.stream.constant:.4f}")
    assert shared > alone > run.stream.constant


# Recomputing.


def test_a_live_stream_a_direct_run_and_an_export_of_a_stream_verify(run: Both, tmp_path: Path) -> None:
    require_recomputed(run.system, KEYS, run.direct, run.streamed)
    require_export_recomputed(run.system, KEYS, run.streamed, tmp_path)


@pytest.mark.parametrize("run", ["domains"], indirect=True)
def test_a_changed_byte_in_any_record_of_any_kind_is_found(run: Both) -> None:
    there = {"records", "predictions", "releases", "ledger", "models"}
    assert require_changes_found(run.system, KEYS, run.streamed.logs) == there


# The form of the paper.


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gossip(tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = tmp_path_factory.mktemp("gossip")
    stream = sparse_synthetic(records=16 * NODES, dimension=20, features=5, nodes=NODES, seed=11)
    form = GossipConfig(100.0, 16, "torus", gradient_at="sent")
    records = RecordConfig(stream.dimension, label_slots=64)
    config = PdolConfig("equal-gossip", NODES, records, gossip=form)
    system = prepare(folder, config, public_dataset=stream.name)

    async def on(runner: Any) -> Recording[RecordsPlayed]:
        loop = RecordLoop(stream, system.core, NODES)
        return await play(system, Place(runner, folder, None, 11), loop.run)

    direct, streamed = await asyncio.gather(on("direct"), on("stream"))
    return Both(system, stream, direct, streamed)


def test_nodes_of_the_papers_form_predict_and_send_the_same(gossip: Both) -> None:
    np.testing.assert_array_equal(gossip.direct.played.predicted, gossip.streamed.played.predicted)
    ours, theirs = (
        sorted(codec.encode("Parameters", fields) for fields in decoded(recording, "parameters", "Parameters"))
        for recording in (gossip.direct, gossip.streamed)
    )
    assert ours == theirs
    assert len(ours) == 16 * NODES


def test_the_papers_form_verifies(gossip: Both) -> None:
    require_recomputed(gossip.system, KEYS, gossip.direct, gossip.streamed)
