"""The first and second form of equality for a collaborative system, with noise at a trusted counter and at the edge.

At the counter it is Laplace noise, at the edge K-norm noise; the models' ridge is the one that either asks for.

Six users on two learner partitions play twelve rounds in three phases, once on each runner, under the same seeded
keys. Learners race, so the records between roles are cut otherwise on a stream; what is decided, released at the
end of a phase and published as a model must be the same bytes, offsets aside.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from two_runners import (
    Both,
    decoded,
    on_both,
    require_changes_found,
    require_export_recomputed,
    require_recomputed,
    with_records,
)

from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.ops.check.verify import verify
from hushstream.replay.catalogue import make_world
from hushstream.replay.studies.colin.play import (
    CollaborativeLoop,
    CollaborativePlan,
    CollaborativePlayed,
    relation_graph,
)
from hushstream.schemas import codec
from hushstream.systems.colin.deployment import inputs_of

pytestmark = [pytest.mark.slow, pytest.mark.process(keep=["server"])]

USERS, ROUNDS, PHASES = 6, 12, 3
KEYS = KeySource(seed=11)
RELEASES: dict[str, dict[str, Any]] = {
    "server": {"noise_at": "server"},
    "learner": {"noise_at": "learner", "noise": "k-norm"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(RELEASES))
async def run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Both[CollaborativePlayed]:
    noise_at, folder = request.param, tmp_path_factory.mktemp(request.param)
    world = make_world("colin", seed=11, users=USERS, rounds=ROUNDS, arms=5, dimension=4, pool=40)
    longest = float(np.ceil(world.largest_feature_norm(2) * 1e6) / 1e6)
    values = {
        "system": "colin",
        "deployment": f"equal-{noise_at}",
        "items": {"capacity": world.arms},
        "features": {"dimension": world.feature_dimension, "norm": longest},
        "feedback": {"settle_seconds": 10.0**7, "attribution_window_seconds": 10.0**7},
        "privacy": {"epsilon": 4.0, "units_per_person": 14},
        "release": {"window_units": 1000, "horizon": 16, **RELEASES[noise_at]},
        "partitions": {"learner": 2},
    }
    config = parse_config(values)
    system = prepare(folder, config, inputs_of(relation_graph(world, "colin")), public_dataset="colin")
    plan = CollaborativePlan(ROUNDS, ROUNDS // PHASES)
    return await on_both(system, folder, 11, lambda: CollaborativeLoop(world, plan))


def at_server(run: Both[Any]) -> bool:
    return bool(run.system.config.release.noise_at == "server")


@pytest.mark.process
def test_every_user_gets_the_same_decisions_rewards_and_regret(run):
    assert len(run.equal_decisions()) == USERS * ROUNDS
    run.require_played("chosen", "rewards", "regret", "random_regret")


def test_each_phase_decides_by_the_model_of_the_phase_before(run):
    for event_id, (*_, version) in run.equal_decisions().items():
        assert version == int(event_id.partition(":")[2]) // (ROUNDS // PHASES)


def test_every_model_is_the_same_bytes(run):
    assert run.system.config.learner.ridge == "auto"
    assert run.system.core.ridge > 2
    names = ("version", "parameters", "widths", "observations", "epsilon_micro", "delta_units", "digest")
    models = run.equal("models", "CollaborativeModel", *names)
    assert [model["observations"] for model in models] == [USERS * ROUNDS // PHASES * n for n in (1, 2, 3)]


def last_sums(recording: Any) -> dict[int, bytes]:
    """The newest noised sum of each user."""
    newest: dict[int, bytes] = {}
    for release in decoded(recording, "releases", "Release"):
        blocks = np.frombuffer(release["blocks"], "<i4").tolist()
        sums = np.frombuffer(release["sums"], "<i8").reshape(len(blocks), -1)
        newest.update({block: row.tobytes() for block, row in zip(blocks, sums, strict=True)})
    return newest


def test_releases_are_the_same_bytes(run):
    ours, theirs = last_sums(run.direct), last_sums(run.stream)
    assert ours == theirs
    assert set(ours) == set(range(USERS))
    if at_server(run):
        assert len(run.equal("releases", "Release")) == PHASES


def test_debits_are_the_same_in_both_ledgers(run):
    run.require_debits(["epoch/0/0"] if at_server(run) else ["epoch/0/0", "epoch/1/0"], 4_000_000)


# Recomputing.


def test_a_live_stream_a_direct_run_and_an_export_of_a_stream_verify(run, tmp_path):
    require_recomputed(run.system, KEYS, run.direct, run.stream)
    require_export_recomputed(run.system, KEYS, run.stream, tmp_path)


def test_a_changed_byte_in_any_record_of_any_kind_is_found(run):
    own = {"rewards", "journal-counter"} if at_server(run) else set()
    there = {"contexts", "clicks", "decisions", "releases", "ledger", "models", *own}
    assert require_changes_found(run.system, KEYS, run.stream.logs) == there


def test_sums_with_half_the_noise_are_found_though_the_record_is_well_formed(run):
    logs, source = run.stream.logs, ("releases", 0)
    records = list(logs.part(source).records)
    index = next(i for i, record in enumerate(records) if codec.decode(record.value)[0] == "Release")
    name, fields = codec.decode(records[index].value)
    sums = np.frombuffer(fields["sums"], "<i8") // 2
    records[index] = records[index]._replace(value=codec.encode(name, {**fields, "sums": sums.astype("<i8").tobytes()}))
    found = verify(with_records(logs, source, records), run.system, KEYS)
    assert found.exit_code == 1
    assert any(finding.topic == "releases" for finding in found.findings)
