"""Versions of a model from crowds, and from raw interactions of public data."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.learners.linucb import LinUCB, LinUCBModel
from hushstream.schemas import codec
from hushstream.systems.p2b.server.estimate import model_from_sums, onehot_from_sums
from hushstream.systems.p2b.server.totals import CrowdTotals


def arrays(record, rigs, features="centroid"):
    shape = (rigs.ARMS, rigs.CODES) if features == "onehot" else (rigs.ARMS, rigs.DIMENSION, rigs.DIMENSION)
    gram, moment = (np.frombuffer(record[name], "<f8") for name in ("gram", "moment"))
    return gram.reshape(shape), moment.reshape(rigs.ARMS, -1)


@pytest.mark.parametrize("features", ["centroid", "onehot"])
def test_each_crowd_gives_one_version_from_the_totals_of_all(rigs, features):
    system = rigs.make_system(encoder={"features": features})
    rig = rigs.AggregatorRig(system)
    crowds = rigs.crowd_values(system, 3)
    published = rig.give(crowds).journals
    assert [record["version"] for record in published] == [1, 2, 3]
    totals = CrowdTotals(rigs.CODES, rigs.ARMS)
    for value, record in zip(crowds, published, strict=True):
        crowd = codec.decode(value)[1]
        ones, zeros = (
            np.frombuffer(crowd[name], "<i8").astype(np.int64).reshape(rigs.CODES, rigs.ARMS)
            for name in ("ones", "zeros")
        )
        totals.add(ones, zeros, crowd["variance"], crowd["slots"])
        sums = (totals.ones, totals.zeros, 1, totals.variance)
        if features == "onehot":
            expected = onehot_from_sums(*sums, 1.0)
        else:
            expected = model_from_sums(*sums, system.encoder.centroids, 1.0)
        gram, moment = arrays(record, rigs, features)
        np.testing.assert_array_equal(gram, expected.gram)
        np.testing.assert_array_equal(moment, expected.moment)
        assert record["observations"] == expected.observations


def test_a_crowd_sent_twice_counts_once(rigs):
    system = rigs.make_system()
    rig = rigs.AggregatorRig(system)
    first, second = rigs.crowd_values(system, 2)
    seen = rig.give([first, first, second, first])
    assert seen.counts == {"crowd": 2, "model": 2, "repeated_crowd": 2}
    once = rigs.AggregatorRig(system)
    once.give([first, second])
    assert rig.machine.totals.dump() == once.machine.totals.dump()


def test_a_model_says_its_price_and_whether_all_under_it_is_private(rigs):
    system = rigs.make_system()
    secret, seeded = rigs.crowd_values(system, 1, rigs.Key(b"\x21" * 31 + b"\1")), rigs.crowd_values(system, 1)
    published = rigs.AggregatorRig(system).give([*secret, *seeded]).journals
    assert [record["epsilon_micro"] for record in published] == [1_000_000] * 2
    assert [record["private_as_stated"] for record in published] == [True, False]
    paper = rigs.make_system(release={"mode": "paper", "sampling": 0.5, "threshold": 1, "window_slots": 4})
    assert not rigs.AggregatorRig(paper).give(rigs.crowd_values(paper, 1)).journals[0]["private_as_stated"]


def interactions(contexts, arms, rewards, batch_id=b""):
    fields = {
        "batch_id": batch_id,
        "phase": 0,
        "dimension": 4,
        "contexts": np.asarray(contexts, "<f4").tobytes(),
        "arms": np.asarray(arms, "<i4").tobytes(),
        "rewards": np.asarray(rewards, "<f8").tobytes(),
    }
    return codec.encode("Interactions", fields)


def phase_end(system, phase, origin):
    return codec.encode("Seal", {"phase": phase, "origin": origin, "config_digest": system.digest})


def test_the_raw_track_publishes_when_every_partition_has_ended_the_phase(rigs):
    system = rigs.make_system(public_dataset=True, partitions={"learner": 2})
    rig = rigs.AggregatorRig(system, track=1)
    assert not rig.give(
        [interactions([rigs.point(0)], [1], [1.0]), phase_end(system, 0, 0), phase_end(system, 0, 0)]
    ).journals
    (record,) = rig.give([phase_end(system, 0, 1)]).journals
    assert (record["line"], record["private_as_stated"], record["features"]) == ("nonprivate", False, "raw")
    assert not rig.give([phase_end(system, 0, 1)]).journals


def test_interactions_sent_again_after_a_crash_count_once(rigs):
    system = rigs.make_system(public_dataset=True)
    rig = rigs.AggregatorRig(system, track=1)
    one, alike = (interactions([rigs.point(0)], [1], [1.0], batch_id) for batch_id in (b"a", b"b"))
    given = rig.give([one, alike, one, phase_end(system, 0, 0)])
    assert given.journals[0]["observations"] == 2
    assert given.counts["repeated_interactions"] == 1


def test_the_raw_model_is_that_of_a_learner_that_saw_everything(rigs):
    system = rigs.make_system(public_dataset=True)
    generator = np.random.default_rng(2)
    contexts = np.stack([rigs.point(i) for i in generator.integers(0, 4, 50)])
    arms, rewards = generator.integers(0, rigs.ARMS, 50), generator.integers(0, 2, 50).astype(float)
    rig = rigs.AggregatorRig(system, track=1)
    half = [interactions(contexts[:20], arms[:20], rewards[:20]), interactions(contexts[20:], arms[20:], rewards[20:])]
    (record,) = rig.give([*half, phase_end(system, 0, 0)]).journals
    reference = LinUCBModel.cold(rigs.ARMS, rigs.DIMENSION).state()
    kernel = LinUCB(rigs.ARMS, rigs.DIMENSION, 1.0)
    for x, arm, reward in zip(contexts, arms, rewards, strict=True):
        kernel.learn(reference, x, int(arm), float(reward))
    gram, moment = arrays(record, rigs)
    np.testing.assert_allclose(np.linalg.inv(gram), reference.inverse, atol=1e-4)
    np.testing.assert_allclose(np.linalg.solve(gram, moment[:, :, None])[:, :, 0], reference.theta, atol=1e-4)


def test_new_users_start_from_the_newest_model_of_their_line_and_old_ones_keep_theirs(rigs):
    system = rigs.make_system()
    track = rigs.AggregatorRig(system)
    track.give(rigs.crowd_values(system, 2))
    rig = rigs.LearnerRig(system)
    rig.interact("old", 1)
    for value in (track.genesis, *track.journal):
        rig.put("models", value)
    rig.fold()
    for user, model_track, version in (("old", "private", 0), ("new", "private", 2), ("cold", "cold", 0)):
        rig.context(f"{user}:9", user, line=model_track)
        (answer,) = rig.fold().answers
        assert answer.model_version == version, user
    gram, _ = rig.knows("new")
    np.testing.assert_allclose(gram, arrays(codec.decode(track.journal[-1])[1], rigs)[0], rtol=1e-3, atol=1e-3)


def test_a_learner_never_writes_into_the_shared_model(rigs):
    system = rigs.make_system()
    track = rigs.AggregatorRig(system)
    track.give(rigs.crowd_values(system, 1))
    rig = rigs.LearnerRig(system)
    for value in (track.genesis, *track.journal):
        rig.put("models", value)
    rig.fold()
    shared = rig.machine.terms.policy.shared("private").state
    before = shared.packed.copy()
    rig.interact("ann", 3)
    np.testing.assert_array_equal(shared.packed, before)
