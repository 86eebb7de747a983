"""Versions of a collaborative model: what they are made of, what counts once, and what is refused."""

import numpy as np
import pytest

from hushstream.schemas import codec
from textbook import TextbookCollaborative


def public(related, **changes):
    return related.make_system(release={"mechanism": "exact"}, public_dataset=True, **changes)


def arrays(model, related):
    n, d = len(related.USERS), related.DIMENSION
    parameters = np.frombuffer(model["parameters"], "<f8").reshape(n, d)
    return parameters, np.frombuffer(model["widths"], "<f4").reshape(n, d, d)


BATCHES = 4


def batches(related, seed=1):
    return [related.some_rewards(seed + number, 6) for number in range(BATCHES)]


@pytest.mark.parametrize("algorithm", ["linucb", "colin", "goblin"])
def test_without_noise_every_version_is_the_textbook_estimator_of_the_same_rows(related, algorithm):
    system = public(related, learner={"algorithm": algorithm, "ridge": 0.5})
    rig = related.RelatedAggregatorRig(system)
    textbook = TextbookCollaborative(system.relation, related.DIMENSION, 0.5)
    rig.give(related.release_values(system, batches(related)))
    models = rig.seen.journals
    assert [model["version"] for model in models] == list(range(1, BATCHES + 1))
    for number, (model, rows) in enumerate(zip(models, batches(related), strict=True), 1):
        for node, features, reward in rows:
            textbook.learn(node, np.array(features, np.float32).astype(np.float64), reward)
        parameters, widths = arrays(model, related)
        # A sum of 24 rows, each rounded to 2^-24, is off by at most 24 * 2^-24.
        np.testing.assert_allclose(parameters, textbook.parameters(), rtol=0, atol=1e-5)
        unit = np.eye(related.DIMENSION)
        for user in range(3):
            expected = [textbook.ucb(user, unit[[i]], 1.0)[0] - textbook.ucb(user, unit[[i]], 0.0)[0] for i in range(3)]
            np.testing.assert_allclose(np.sqrt(np.diag(widths[user])), expected, rtol=1e-5)
        assert model["observations"] == 6 * number


def test_noised_sums_stand_in_the_place_of_exact_ones_and_features_stay_exact(related):
    system = related.make_system(learner={"ridge": 2.0})
    values = related.release_values(system, batches(related), related.SECRET)
    rig = related.RelatedAggregatorRig(system)
    rig.give(values)
    textbook = TextbookCollaborative(system.relation, related.DIMENSION, 2.0)
    moment = np.zeros((3, related.DIMENSION))
    for value, rows in zip(values, batches(related), strict=True):
        for node, features, _ in rows:
            textbook.observe(node, np.array(features, np.float32).astype(np.float64))
        blocks, sums = related.arrays_of(codec.decode(value)[1])
        moment[blocks] = sums / 2.0**24
    textbook.set_moment(moment)
    last = rig.seen.journals[-1]
    np.testing.assert_allclose(arrays(last, related)[0], textbook.parameters(), rtol=1e-9, atol=1e-12)
    assert last["epsilon_micro"] == 1_000_000
    assert last["private_as_stated"]


def test_one_release_that_is_not_private_as_stated_marks_all_later_versions(related, rigs):
    system = related.make_system()
    values = related.release_values(system, batches(related), related.SECRET)
    values[1] = rigs.changed(values[1], private_as_stated=False)
    rig = related.RelatedAggregatorRig(system)
    rig.give(values)
    assert [model["private_as_stated"] for model in rig.seen.journals] == [True, False, False, False]


def test_a_release_that_is_sent_twice_counts_once(related):
    system = related.make_system()
    values = related.release_values(system, batches(related))
    rig, clean = related.RelatedAggregatorRig(system), related.RelatedAggregatorRig(system)
    seen = rig.give([values[0], values[0], *values, values[1]])
    assert seen.counts["repeated_release"] == 3
    assert seen.counts["model"] == BATCHES
    last, expected = seen.journals[-1], clean.give(values).journals[-1]
    assert (last["parameters"], last["widths"]) == (expected["parameters"], expected["widths"])
    assert last["observations"] == 24


BAD = {
    "no record": lambda value, rigs: (b"no record", "not_single_object"),
    "cut off": lambda value, rigs: (value[:-5], "truncated"),
    "another schema": lambda value, rigs: (codec.encode("Tick", {"config_digest": bytes(16)}), "unexpected_schema"),
    "another configuration": lambda value, rigs: (
        rigs.changed(value, config_digest=bytes(16)),
        "other_configuration",
    ),
    "sums without rows": lambda value, rigs: bent(value, rigs, nodes=b"", contexts=b""),
    "an unknown node": lambda value, rigs: bent(value, rigs, nodes=np.full(6, 3, "<i4").tobytes()),
    "too few features": lambda value, rigs: bent(value, rigs, contexts=bytes(5 * 12)),
    "features too long": lambda value, rigs: bent(value, rigs, contexts=np.full(18, 0.9, "<f4").tobytes()),
    "features that are none": lambda value, rigs: bent(value, rigs, contexts=np.full(18, np.nan, "<f4").tobytes()),
    "sums of others": lambda value, rigs: bent(value, rigs, blocks=np.array([0, 1, 3], "<i4").tobytes()),
    "a sum too few": lambda value, rigs: bent(value, rigs, sums=codec.decode(value)[1]["sums"][:-8]),
    "no lattice": lambda value, rigs: bent(value, rigs, grid_bits=63),
    "a negative lattice": lambda value, rigs: bent(value, rigs, grid_bits=-1),
}


def bent(value, rigs, **fields):
    return rigs.changed(value, release_id=b"\xee" * 16, **fields), "malformed_release"


@pytest.mark.parametrize("name", BAD)
def test_a_bad_release_is_a_dead_letter_with_its_reason_and_gives_no_version(related, rigs, name):
    system = related.make_system()
    values = related.release_values(system, batches(related))
    value, reason = BAD[name](values[1], rigs)
    rig, clean = related.RelatedAggregatorRig(system), related.RelatedAggregatorRig(system)
    seen = rig.give([values[0], value, *values[1:]])
    assert seen.reasons == [reason]
    (letter,) = seen.letters
    assert (letter["zone"], letter["role"], letter["topic"], letter["offset"]) == (
        "server",
        "aggregator",
        "releases",
        1,
    )
    models, expected = seen.journals, clean.give(values).journals
    assert [model["parameters"] for model in models] == [model["parameters"] for model in expected]


# Learners that release.


def edge_system(related, **release):
    values = {**related.DEFAULTS["release"], "noise_at": "learner", "rows": 5, **release}
    return related.make_system(release=values, partitions={"learner": 2})


def edge_releases(related, system, partition, user, rounds=3):
    """What one learner sends: a release for each interaction, then its phase end."""
    rig = related.RelatedLearnerRig(system, related.SECRET, partition)
    for number in range(rounds):
        rig.interact(f"{user}:{number}", user, features=related.some_features(number))
        rig.wait(11)
        rig.decide(f"{user}:{number}:next", user)
    rig.end_phase()
    rig.fold()
    return [output.value for output in rig.seen.releases("releases")]


def test_where_learners_release_a_version_follows_by_rows_or_when_all_have_ended_the_phase(related):
    system = edge_system(related)
    one = edge_releases(related, system, 0, "bob")
    two = edge_releases(related, system, 1, "ann")
    rig = related.RelatedAggregatorRig(system)
    rig.give(one)
    assert not rig.seen.journals, "three rows, and one phase end of two"
    rig.give(two[:2])
    assert [model["observations"] for model in rig.seen.journals] == [5]
    rig.give(two[2:])
    assert [model["observations"] for model in rig.seen.journals] == [5, 6]
    rig.end_phase(0, 0)
    assert not rig.fold().journals


def test_how_learners_raced_changes_no_version(related):
    system = edge_system(related, rows=100)
    one = edge_releases(related, system, 0, "bob")
    two = edge_releases(related, system, 1, "ann")
    mixed = [value for pair in zip(two, one, strict=True) for value in pair]
    models = []
    for values in ([*one, *two], [*two, *one], mixed):
        rig = related.RelatedAggregatorRig(system)
        (model,) = rig.give(values).journals
        models.append({name: model[name] for name in ("version", "parameters", "widths", "digest", "observations")})
    assert models[0] == models[1] == models[2]


def test_phase_ends_of_no_learner_are_refused_and_an_empty_phase_gives_the_version_before_again(related):
    rig = related.RelatedAggregatorRig(edge_system(related))
    for phase, origin in ((0, 2), (0, -1), (-1, 0)):
        rig.end_phase(phase, origin)
    assert rig.fold().reasons == ["unknown_origin"] * 3
    for origin in (0, 1):
        rig.end_phase(0, origin)
    (model,) = rig.fold().journals
    assert (model["version"], model["observations"]) == (1, 0)
    assert not np.any(arrays(model, related)[0])
    rig.end_phase(0, 1)
    assert not rig.fold().journals, "that phase had ended before"


def test_a_release_without_rows_waits_for_no_version(related, rigs):
    """No state holds what has no rows: a version that waited for it would depend on where it was restored."""
    system = edge_system(related, rows=2)
    values = [*edge_releases(related, system, 0, "bob"), *edge_releases(related, system, 1, "ann")]
    empty = rigs.changed(values[0], release_id=b"\xee" * 16, blocks=b"", sums=b"", nodes=b"", contexts=b"")
    rig = related.RelatedAggregatorRig(system)
    assert len(rig.give([*values, empty]).journals) == 3
    for origin in (0, 1):
        rig.end_phase(1, origin)
    assert not rig.fold().journals


# Cuts, restores, replays.
