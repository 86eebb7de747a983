"""The first and second form of equality for PDOL, and what sharing brings on a stream, beside nodes that learn alone.

Eight nodes with a counter each, and eight that share two counters, play the same records once on each runner,
under the same seeded keys, on the embedded broker. Domains race; what is predicted, released and published must be the
same.
"""

from __future__ import annotations

import numpy as np
import pytest
import pytest_asyncio
from two_runners import Both, on_both, require_changes_found, require_export_recomputed, require_recomputed

from hushstream.agents.worker.deployment import KeySource, prepare
from hushstream.replay.studies.pdol.play import RecordLoop, RecordsPlayed, alone_labels, records_per_phase
from hushstream.replay.studies.pdol.worlds import RecordStream, sparse_synthetic
from hushstream.systems.pdol.configuration import (
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


def records() -> RecordStream:
    return sparse_synthetic(records=RECORDS, dimension=20, features=5, nodes=NODES, seed=11)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(DOMAINS))
async def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Both[RecordsPlayed]:
    kind, folder, stream = request.param, tmp_path_factory.mktemp(request.param), records()
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
    phase = records_per_phase(config)
    return await on_both(system, folder, 11, lambda: RecordLoop(stream, system.core, phase))


@pytest.mark.process
def test_every_record_gets_the_same_prediction_at_the_same_version(run):
    run.require_played("predicted", "versions")
    assert sorted(set(run.direct.played.versions.tolist())) == list(range(HORIZON))
    assert np.all(np.abs(run.direct.played.predicted) == 1)


def test_every_model_is_the_same_bytes(run):
    names = ("version", "phase", "weights", "releases", "screened", "epsilon_micro", "delta_units", "digest")
    models = run.equal("models", "LinearModel", *names)
    assert [model["releases"] for model in models] == [
        run.system.core.config.domains * n for n in range(1, HORIZON + 1)
    ]


def test_releases_are_the_same_bytes_whatever_their_order(run):
    assert len(run.equal("releases", "GradientSum", ordered=False)) == run.system.core.config.domains * HORIZON


def test_debits_are_the_same_in_both_ledgers(run):
    domains = run.system.core.config.domains
    scopes = sorted(f"epoch/{domain}/0" for domain in range(domains))
    run.require_debits(scopes, run.system.core.guarantee().epsilon_micro)


@pytest.mark.parametrize("run", ["domains"], indirect=True)
def test_sharing_on_the_stream_beats_nodes_that_learn_alone(run):
    """Seeded: no chance is in it. Two counters of four nodes each, at epsilon 16."""
    stream = records()
    shared = np.mean(run.stream.played.predicted == stream.rows.labels)
    alone = np.mean(alone_labels(stream) == stream.rows.labels)
    print(f"shared {shared:.4f}, isolated {alone:.4f}, constant {stream.constant:.4f}")
    assert shared > alone > stream.constant


# Recomputing.


def test_a_live_stream_a_direct_run_and_an_export_of_a_stream_verify(run, tmp_path):
    require_recomputed(run.system, KEYS, run.direct, run.stream)
    require_export_recomputed(run.system, KEYS, run.stream, tmp_path)


@pytest.mark.parametrize("run", ["domains"], indirect=True)
def test_a_changed_byte_in_any_record_of_any_kind_is_found(run):
    there = {"records", "predictions", "releases", "ledger", "models"}
    assert require_changes_found(run.system, KEYS, run.stream.logs) == there
