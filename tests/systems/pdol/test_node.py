"""A domain's sums in whole numbers, and the node's role: what is answered, which labels count, what leaves when."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.systems.pdol.conftest import (
    DIMENSION,
    HORIZON,
    SLOTS,
    config_of,
    counters_of,
    join_rows,
    node_of,
    random_model,
    records,
)

from hushstream.engine.records import InputRecord, ReplayMismatch
from hushstream.privacy.key_files import KeyRing, next_key
from hushstream.schemas import codec
from hushstream.schemas.batches import encode_label_batch, encode_record_batch
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.pdol.algorithm.counters import NodeRelease
from hushstream.systems.pdol.algorithm.local import NodePredictors
from hushstream.systems.pdol.algorithm.moments import RIDGE, TRUST, C, Solved, add_moments, leaf_of, solve
from hushstream.systems.pdol.algorithm.rows import (
    LeafFull,
    PdolError,
    Rows,
    add_gradients,
    null_rows,
    predictions,
    quantise,
    scores,
    unit_rows,
)
from hushstream.systems.pdol.configuration import UNIT, PdolConfig
from hushstream.systems.pdol.nodes.home import MAX_RECORDS, HomeMachine


def releases(config: PdolConfig, count: int, seed: int = 0) -> list[NodeRelease]:
    node, found = node_of(config), []
    rows = records(count * SLOTS, seed)
    for step in range(count):
        node.fold(rows.part(step * SLOTS, (step + 1) * SLOTS), random_model(step))
        found.append(node.release())
    return found


def test_a_release_is_that_of_the_counter_over_the_sums_of_gradients(config):
    rows, exact = records(HORIZON * SLOTS), np.zeros(DIMENSION, dtype=np.int64)
    counter = counters_of(config).open(0)
    for step, release in enumerate(releases(config, HORIZON)):
        leaf = np.zeros(DIMENSION, dtype=np.int64)
        add_gradients(leaf, rows.part(step * SLOTS, (step + 1) * SLOTS), random_model(step))
        counter.add(leaf[None])
        exact += leaf
        assert release.values.tolist() == counter.release().values.tolist()
        assert (release.leaves, release.slots) == (step + 1, (step + 1) * SLOTS)
        assert (release.values.tolist() == exact.tolist()) == (config.sharing.counter == "exact")


def test_at_the_horizon_the_sum_stands_and_a_new_counter_has_noise_of_its_own():
    found = releases(config_of(), HORIZON + 2)
    assert [release.last for release in found] == [False] * (HORIZON - 1) + [True, False, False]
    assert [(release.generation, release.leaves) for release in found[-2:]] == [(1, 1), (1, 2)]
    node = node_of(config_of())
    quiet = []
    for _ in range(HORIZON + 1):
        node.fold(null_rows(SLOTS), random_model())
        quiet.append(node.release().values)
    assert quiet[0].tolist() != quiet[HORIZON].tolist()


def test_domains_and_epochs_have_unrelated_noise():
    found = []
    for domain, seed in ((0, 1), (1, 1), (0, 2)):
        node = node_of(config_of(), domain, seed)
        node.fold(null_rows(SLOTS), random_model())
        found.append(node.release().values.tolist())
    assert found[0] != found[1] != found[2] != found[0]


def test_a_leaf_closes_on_its_count_and_on_nothing_else():
    node = node_of(config_of())
    with pytest.raises(LeafFull, match=f"full leaf of {SLOTS} slots, got 0"):
        node.release()
    node.fold(records(SLOTS - 1), random_model())
    with pytest.raises(LeafFull, match=f"got {SLOTS - 1}"):
        node.release()
    with pytest.raises(LeafFull, match="at most 1 slots, got 2"):
        node.fold(records(2), random_model())
    assert node.capacity_left == 1


@pytest.mark.parametrize("model", [np.zeros(DIMENSION), np.zeros(DIMENSION, dtype=np.int64), np.zeros(3, np.int32)])
def test_only_a_published_model_is_taken(model):
    with pytest.raises(PdolError, match="expected int32 of shape"):
        node_of(config_of()).fold(records(1), model)


def dense_rows(records: np.ndarray, labels: np.ndarray) -> Rows:
    """Slots of whole numbers (m, n); all of them within the bound."""
    place, indices = np.nonzero(records)
    ends = np.searchsorted(place, np.arange(len(records) + 1)).astype(np.int64)
    return Rows(ends, indices.astype(np.int32), records[place, indices].astype(np.int64), labels.astype(np.int8))


def added(record: np.ndarray, label: int = 1) -> np.ndarray:
    leaf = np.zeros(leaf_of(len(record)).cells, dtype=np.int64)
    add_moments(leaf, dense_rows(record[None], np.array([label])), len(record))
    return leaf


def longest_records(dimension: int, count: int, seed: int) -> np.ndarray:
    """Whole records of norm 2^12 or a little less: dense ones, sparse ones, and ones of equal coordinates."""
    draw = np.random.default_rng(seed)
    real = draw.normal(size=(count, dimension)) * (draw.random((count, dimension)) < draw.choice([0.05, 0.3, 1.0]))
    real[:, 0] += 1e-3
    real[::5] = np.sign(real[::5]) + 0.0
    return np.trunc(real / np.linalg.norm(real, axis=1, keepdims=True) * UNIT).astype(np.int64)


def test_a_record_adds_its_label_and_its_products_rounded_toward_zero():
    record, label = np.array([1001, -2002, 0, 303]), -1
    expected = [16 * label * value for value in record.tolist()]
    for row in range(4):
        for column in range(row, 4):
            product = Fraction(int(record[row]) * int(record[column]), 1 << 24)
            expected.append(math.trunc(product * (78_643 if row == column else 111_218)))
    assert added(record, label).tolist() == expected
    both = np.zeros(len(expected), dtype=np.int64)
    add_moments(both, dense_rows(np.stack([record, record]), np.array([1, -1])), 4)
    add_moments(both, null_rows(70), 4)
    assert both.tolist() == [0] * 4 + [2 * value for value in expected[4:]]


@pytest.mark.parametrize("dimension", [1, 2, 9, 128])
def test_no_record_moves_a_sum_by_more_than_is_priced(dimension):
    """In whole numbers, with the pairs that are worst: x.x' = -.347 of two records, and a label that is flipped."""
    leaf, records = leaf_of(dimension), longest_records(dimension, 40, dimension)
    most, unit = leaf.longest**2, Fraction(leaf.unit) ** 2
    moved = [added(record) for record in records]
    assert all(int(one @ one) <= most for one in moved)
    assert max(int(one @ one) for one in moved) > 0.99 * most, "the bound is reached"
    assert most <= unit * Fraction(244, 100) * Fraction(100_003, 100_000)
    for one, other in itertools.pairwise(moved):
        assert int((one - other) @ (one - other)) <= most * leaf.apart
    flipped = added(records[0], -1) - moved[0]
    assert int(flipped @ flipped) <= most * Fraction(164, 100)
    if dimension > 1:
        one, other = np.zeros((2, dimension))
        one[0], other[:2] = 1, (-0.347, math.sqrt(1 - 0.347**2))
        apart = np.subtract(*(added(np.trunc(x * UNIT).astype(np.int64)) for x in (one, other)))
        assert 2.138 * most < int(apart @ apart) <= leaf.apart * most
    # For any two records: the exact maximum, and less than a unit for each coordinate that is rounded.
    exact = (2 + 2 * 1.44 + 1 / 2.88) * float(unit)
    assert (math.sqrt(exact) + math.sqrt(leaf.cells)) ** 2 <= float(leaf.apart * most)


def test_without_noise_the_model_is_ridge_regression():
    draw = np.random.default_rng(3)
    records = np.array([one / np.linalg.norm(one) for one in draw.normal(size=(500, 7))])
    labels = np.where(records @ draw.normal(size=7) > 0, 1, -1)
    ends = 7 * np.arange(501)
    slots, _ = quantise(ends, np.tile(np.arange(7), 500), unit_rows(ends, records.ravel()), labels, 7)
    leaf = np.zeros(leaf_of(7).cells, dtype=np.int64)
    add_moments(leaf, slots, 7)
    found = solve(leaf << 16, 0.0, 7)
    second = records.T @ records
    expected = np.linalg.solve(second + RIDGE * np.eye(7), records.T @ labels)
    assert found.weights / UNIT == pytest.approx(expected, abs=2e-2)
    assert found.precision == pytest.approx(TRUST * second, rel=2e-2, abs=0.3)


def test_directions_within_the_noise_are_shrunk_and_little_is_known_of_them():
    cells, deviation = leaf_of(5).cells, 1000.0 * 2**32
    sums = np.zeros(cells, dtype=np.int64)
    sums[:5] = int(deviation)
    edge = math.sqrt(10) * 1000 / C
    found = solve(sums, deviation, 5)
    assert found.weights / UNIT == pytest.approx(1000 / (edge / 2 + RIDGE), abs=1e-3)
    assert found.precision is not None
    assert float(np.linalg.eigvalsh(found.precision).max()) < TRUST * 2


def test_a_node_goes_on_from_the_published_model_with_its_own_exact_moments():
    draw = np.random.default_rng(8)
    learners, records = NodePredictors(1, 4), longest_records(4, 30, 2)
    labels = draw.choice([-1, 1], 30)
    prior = Solved(np.array([900, -400, 0, 4096], dtype=np.int32), np.diag([3.0, 5.0, 0.4, 9.0]))
    node, rows = np.zeros(1, dtype=np.int64), dense_rows(records, labels)
    for place in range(30):
        if place == 17:
            learners.adopt(prior)
        learners.step(node, rows.part(place, place + 1), prior.weights, np.zeros(1))
    real, mean = records / UNIT, prior.weights / UNIT
    assert prior.precision is not None
    precision = prior.precision + real.T @ real
    expected = np.linalg.solve(precision, prior.precision @ mean + real.T @ labels)
    restored = NodePredictors(1, 4)
    restored.load(learners.dump())
    for one in (learners, restored):
        assert one._hybrid is not None
        assert one._hybrid.weights[0] == pytest.approx(expected, rel=1e-6)


def plainly(rows: Rows, model: np.ndarray) -> tuple[list[int], list[int]]:
    found, leaf = [], [0] * len(model)
    for row in range(len(rows)):
        places = range(int(rows.indptr[row]), int(rows.indptr[row + 1]))
        score = sum(int(model[rows.indices[place]]) * int(rows.values[place]) for place in places)
        found.append(score)
        if int(rows.labels[row]) * score < 1 << 24:
            for place in places:
                leaf[rows.indices[place]] -= int(rows.labels[row]) * int(rows.values[place])
    return found, leaf


@pytest.mark.parametrize("seed", range(5))
def test_scores_and_sums_are_those_of_unbounded_integers(seed):
    rows = join_rows([null_rows(1), records(40, seed), null_rows(2), records(3, seed + 50)])
    model = random_model(seed)
    leaf = np.zeros(DIMENSION, dtype=np.int64)
    add_gradients(leaf, rows, model)
    found, expected = plainly(rows, model)
    assert scores(rows, model).tolist() == found
    assert leaf.tolist() == expected
    assert 0 < np.count_nonzero(np.array(found) * rows.labels >= 1 << 24) < len(rows)


def test_the_largest_weights_do_not_overflow():
    rows = records(20)
    model = np.full(DIMENSION, -(1 << 31), dtype=np.int32)
    assert scores(rows, model).tolist() == plainly(rows, model)[0]


def test_one_record_moves_a_sum_by_its_own_length_at_most_and_null_by_nothing():
    for row in range(30):
        one = records(30, seed=9).part(row, row + 1)
        leaf = np.zeros(DIMENSION, dtype=np.int64)
        add_gradients(leaf, one, random_model(row))
        assert int((leaf**2).sum()) in (0, int((one.values**2).sum()))
        assert int((leaf**2).sum()) <= UNIT * UNIT
    leaf = np.zeros(DIMENSION, dtype=np.int64)
    add_gradients(leaf, null_rows(5), random_model())
    assert not leaf.any()


def test_the_margin_is_one_and_belongs_to_no_loss():
    """y w.x = 1 exactly has no gradient; one unit less has."""
    row = Rows(
        np.array([0, 1], dtype=np.int64),
        np.array([0], dtype=np.int32),
        np.array([UNIT], dtype=np.int64),
        np.array([-1], dtype=np.int8),
    )
    for weight, moved in ((-UNIT, 0), (-UNIT + 1, UNIT), (-UNIT - 1, 0)):
        leaf = np.zeros(1, dtype=np.int64)
        add_gradients(leaf, row, np.array([weight], dtype=np.int32))
        assert leaf.tolist() == [moved]


def test_a_score_of_nothing_is_a_minus():
    assert predictions(np.array([0, 1, -1, 1 << 40])).tolist() == [-1, 1, -1, 1]


CASES = settings(max_examples=12, deadline=None)
EPOCH_NONCE = bytes(range(16))


@pytest.fixture(scope="session")
def pdol(pdol_rigs):
    return pdol_rigs


@pytest.fixture
def rig(pdol):
    return pdol.NodeRig()


def by_topic(outputs):
    topics = {}
    for output in outputs:
        topics.setdefault((output.topic, output.partition), []).append(output.value)
    return topics


def outputs(seen):
    return [output for step in seen.steps for output in step.releases]


# What is predicted, and counted.


def test_a_record_is_answered_by_the_published_model_before_its_label(pdol, rig):
    rig.play(0, 5)
    other = pdol.NodeRig(rig.system, partition=1)
    other.play(0, 5)
    aggregator = pdol.AggregatorRig(rig.system)
    aggregator.take_from(rig, other)
    model = aggregator.models[-1]
    for value in (aggregator.genesis, *aggregator.journal):
        rig.put("models", value)
    rig.fold()
    weights = solve(np.frombuffer(model["weights"], "<i8"), model["deviation"], pdol.DIMENSION).weights
    for number in range(50, 70):
        rig.record(f"e{number}", number, f"user-{number}")
        row = pdol.some_row(number)
        score = int(weights[row.indices].astype(np.int64) @ row.values)
        seen = rig.fold()
        assert rig.said(seen) == {f"e{number}": 1 if score > 0 else -1}
        assert seen.journals[-1]["model_version"] == model["version"]


def test_a_label_changes_no_answer_and_no_time_of_a_release(pdol):
    """When sums leave follows from how many records came; labels move what is in them alone."""
    runs = [pdol.NodeRig(), pdol.NodeRig()]
    runs[0].play(0, 17)
    runs[1].play(0, 17, label=False)
    assert runs[0].said() == runs[1].said()
    closings = [[len(fields["debits"]) for fields in run.seen.journals] for run in runs]
    assert closings[0] == closings[1]
    counts = [[(one["leaf"], one["slots"], one["generation"]) for one in run.sums()] for run in runs]
    assert counts[0] == counts[1] == [(1, 3, 0), (2, 6, 0), (3, 9, 0), (4, 12, 0), (1, 3, 1)]


def test_sums_are_those_of_the_moments_of_labelled_slots(pdol):
    rig = pdol.NodeRig(pdol.make_system(sharing={"counter": "exact"}))
    rig.play(0, 3)
    rig.record("unlabelled", 3, "dan")
    rig.record("late", 4, "eve")
    rig.play(5, 4)
    rig.label("late", 1, "eve")
    assert rig.fold().steps[-1].counts["late_label"] == 1
    expected = np.zeros(leaf_of(pdol.DIMENSION).cells, dtype=np.int64)
    sums = [np.frombuffer(one["sums"], "<i8") for one in rig.sums()]
    for number in range(3):
        row, label = pdol.some_row(number), 1 if number % 3 else -1
        add_moments(expected, replace(row, labels=np.array([label], np.int8)), pdol.DIMENSION)
    assert sums[0].tolist() == expected.tolist()
    add_moments(expected, pdol.some_row(5), pdol.DIMENSION)
    assert sums[1].tolist() == expected.tolist(), "the two without a label in time are null"


BAD = {
    "an index twice": {"indices": np.array([1, 1], "<i4").tobytes(), "values": np.array([9, 9], "<i4").tobytes()},
    "an index beyond": {"indices": np.array([1, 12], "<i4").tobytes(), "values": np.array([9, 9], "<i4").tobytes()},
    "a negative index": {"indices": np.array([-1, 3], "<i4").tobytes(), "values": np.array([9, 9], "<i4").tobytes()},
    "too long": {"indices": np.array([1, 2], "<i4").tobytes(), "values": np.array([4096, 1], "<i4").tobytes()},
    "far too long": {"indices": b"\0\0\0\0", "values": np.array([-(2**31)], "<i4").tobytes()},
    "columns that do not match": {"indices": bytes(8), "values": bytes(4)},
    "half a number": {"indices": bytes(3), "values": bytes(3)},
}


@pytest.mark.parametrize("name", BAD)
def test_a_record_that_breaks_a_bound_is_a_null_slot_and_is_told_so(pdol, name):
    runs = [pdol.NodeRig(pdol.make_system(sharing={"counter": "exact"})) for _ in range(2)]
    for rig, fields in zip(runs, (BAD[name], {"indices": b"", "values": b""}), strict=True):
        rig.record("bad", 0, "mal", **fields)
        rig.label("bad", 1, "mal")
        rig.play(1, 5)
    assert runs[0].said()["bad"] == 0
    assert runs[0].sums() == runs[1].sums(), "it counts as a slot and moves nothing"


REFUSED = {
    "another node": (lambda rig: rig.record("e", node=1), "unknown_node"),
    "no node": (lambda rig: rig.record("e", node=-1), "unknown_node"),
    "no id": (lambda rig: rig.record(""), "empty_id"),
    "no record": (lambda rig: rig.put("records", b"junk"), "not_single_object"),
    "a label of nothing": (lambda rig: rig.label("nothing"), "label_without_record"),
    "a label of another user": (lambda rig: rig.label("known", 1, "bob"), "event_of_another_user"),
    "a label of 0": (lambda rig: rig.label("known", 0), "unknown_label"),
    "a label of 2": (lambda rig: rig.label("known", 2), "unknown_label"),
    "an event of another user": (lambda rig: rig.record("known", user="bob"), "event_of_another_user"),
    "a phase twice": (lambda rig: (rig.end_phase(0), rig.end_phase(0)), "bad_phase"),
    "a phase of another origin": (lambda rig: rig.end_phase(0, origin=3), "bad_phase"),
    "an erasure elsewhere": (lambda rig: rig.forget("ann", bytes(16)), "other_configuration"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_record_goes_to_the_dead_letters_and_is_no_slot(rig, name):
    rig.record("known")
    send, reason = REFUSED[name]
    send(rig)
    seen = rig.fold()
    assert len(seen.letters) == 1
    if name != "no record":
        assert seen.reasons == [reason]
    assert list(rig.said()) == ["known"]
    assert [*rig.machine.pending] == (["known"] if "phase twice" not in name else [])


PLAIN_ROWS = [(f"e{number}", f"user-{number}", 0, number) for number in range(9)]
MIXED_ROWS = [
    *PLAIN_ROWS[:4],
    ("e1", "user-1", 0, 1),
    ("e2", "mal", 0, 2),
    ("", "mal", 0, 2),
    ("é" * 60, "x" * 200, 0, 2),
    ("far", "mal", 1, 2),
    *PLAIN_ROWS[4:],
]
"""(event, user, node, seed), with a repeated event, another person's, bad names and another node among them."""


def columns(pdol, rows):
    slots = [pdol.some_row(seed) for *_, seed in rows]
    held = np.concatenate([slot.indices for slot in slots]), np.concatenate([slot.values for slot in slots])
    return [[row[place] for row in rows] for place in range(3)] + [[len(slot.values) for slot in slots], *held]


def test_columnar_records_are_the_events_in_them_refused_rows_too(pdol):
    labels = [("e0", "user-0", 1), ("e3", "user-3", -1), ("e4", "mal", 1), ("none", "x", 1), ("e5", "user-5", 3)]
    single, batched = pdol.NodeRig(key=pdol.SECRET), pdol.NodeRig(key=pdol.SECRET)
    for event_id, user, node, seed in MIXED_ROWS:
        single.record(event_id, seed, user, node=node)
    for event_id, user, label in labels:
        single.label(event_id, label, user)
    names, users, nodes, lengths, indices, values = columns(pdol, MIXED_ROWS)
    batched.put("records", encode_record_batch(names, users, nodes, lengths, indices, values), 0)
    batched.put("records", encode_label_batch(*map(list, zip(*labels, strict=True))), 0)
    for rig in (single, batched):
        rig.end_phase(0)
        rig.fold()
    assert batched.sums() == single.sums() != []
    assert batched.said() == single.said()
    assert batched.seen.reasons == single.seen.reasons
    assert [step.counts for step in batched.seen.steps] == [step.counts for step in single.seen.steps]
    rows = [(letter["offset"], letter["row"]) for letter in batched.seen.letters]
    assert rows == [(0, 5), (0, 6), (0, 7), (0, 8), (1, 2), (1, 3), (1, 4)]
    assert {letter["row"] for letter in single.seen.letters} == {-1}
    assert [again["repeated"] for again in batched.seen.journals] == [bytes([0] * 4 + [1] + [0] * 5)]


def packed(*numbers):
    return np.array(numbers, "<i4").tobytes()


WHOLE = {"event_ids": ["a", "b"], "users": ["u", "v"], "nodes": packed(0, 0), "lengths": packed(1, 1)}
WHOLE |= {"indices": packed(1, 2), "values": packed(5, 6), "after_phase": -1}
DISAGREE = {
    "a user too few": {"users": ["u"]},
    "a node too few": {"nodes": packed(0)},
    "a length too many": {"lengths": packed(1, 1, 0)},
    "lengths that say more": {"lengths": packed(1, 2)},
    "a length below 0": {"lengths": packed(3, -1)},
    "half a number": {"indices": bytes(7), "values": bytes(7)},
    "values that do not match": {"values": packed(5)},
}


@pytest.mark.parametrize("name", DISAGREE)
def test_a_batch_whose_columns_disagree_is_refused_as_a_whole(rig, name):
    rig.put("records", codec.encode("RecordBatch", {**WHOLE, **DISAGREE[name]}), 0)
    rig.put("records", codec.encode("LabelBatch", {"event_ids": ["a"], "users": ["u"], "labels": b"\1\1"}), 0)
    rig.record("good")
    seen = rig.fold()
    assert seen.reasons == ["columns_disagree"] * 2
    assert [letter["row"] for letter in seen.letters] == [-1, -1]
    assert list(rig.said()) == ["good"]


def test_a_fold_holds_no_more_rows_than_its_journal_record_may_name(pdol, rig):
    def batch(rows, prefix):
        names = [f"{prefix}{number}" for number in range(rows)]
        return encode_record_batch(names, names, [0] * rows, [0] * rows, [], [])

    rig.put("records", batch(MAX_RECORDS + 1, "over"), 0)
    for prefix in "ab":
        rig.put("records", batch(MAX_RECORDS, prefix), 0)
    seen = rig.fold()
    assert seen.reasons == ["too_many_rows"]
    assert [len(journal["event_ids"]) for journal in rig.seen.journals] == [0, MAX_RECORDS, MAX_RECORDS]


def test_a_batch_waits_for_its_phase_as_a_record_does(pdol, rig):
    rig.end_phase(0)
    rig.fold()
    rig.put("records", codec.encode("RecordBatch", {**WHOLE, "after_phase": 0}), 0)
    assert rig.fold().steps == []


def test_a_person_beyond_the_allowance_is_answered_and_counted_as_null_at_all_nodes_of_a_domain(pdol):
    """So with one domain the promise is for a person."""
    exact = pdol.make_system(sharing={"counter": "exact", "domains": 1}, records={"records_per_user": 2})
    runs = [pdol.NodeRig(exact), pdol.NodeRig(exact)]
    for number in range(8):
        for rig, seed in zip(runs, (number, number if number < 2 else 99), strict=True):
            rig.record(f"e{number}", seed, "ann", node=number % 2)
            rig.label(f"e{number}")
    for rig in runs:
        rig.fold()
        assert all(rig.said().values())
    assert runs[0].sums() == runs[1].sums(), "only the first two records of one person move anything"
    assert any(np.frombuffer(runs[0].sums()[0]["sums"], "<i8"))


def test_an_erasure_makes_open_slots_null_and_refills_no_allowance(pdol):
    exact = pdol.make_system(sharing={"counter": "exact"}, records={"records_per_user": 1})
    rig = pdol.NodeRig(exact)
    rig.record("a", 1, "ann")
    rig.label("a", 1, "ann")
    rig.record("b", 2, "bob")
    rig.label("b", 1, "bob")
    rig.forget("ann")
    rig.record("again", 1, "ann")
    rig.label("again", 1, "ann")
    rig.end_phase(0)
    rig.fold()
    expected = np.zeros(leaf_of(pdol.DIMENSION).cells, dtype=np.int64)
    add_moments(expected, pdol.some_row(2), pdol.DIMENSION)
    assert np.frombuffer(rig.sums()[0]["sums"], "<i8").tolist() == expected.tolist()
    assert b"ann" not in rig.machine.snapshot()


def test_a_phase_ends_with_all_slots_counted_and_is_passed_on(pdol, rig):
    rig.play(0, 4)
    assert len(rig.sums()) == 0
    assert len(rig.machine.pending) == 2
    rig.end_phase(0)
    seen = rig.fold()
    assert len(rig.sums(seen)) == 1
    (ended,) = seen.records("releases", "Seal")
    assert (ended["phase"], ended["origin"], ended["config_digest"]) == (0, 0, rig.system.digest)
    assert not rig.machine.pending


def test_a_record_waits_for_the_model_of_a_phase_that_has_ended_here(pdol, rig):
    rig.play(0, 3)
    rig.end_phase(0)
    rig.fold()
    rig.record("waits", 7, "zoe", after_phase=0)
    rig.record("behind", 8, "zoe")
    assert rig.fold().steps == [], "the model of phase 0 has not come"
    other = pdol.NodeRig(rig.system, partition=1)
    other.end_phase(0)
    other.fold()
    aggregator = pdol.AggregatorRig(rig.system)
    aggregator.take_from(rig, other)
    for value in (aggregator.genesis, *aggregator.journal):
        rig.put("models", value)
    assert list(rig.said(rig.fold())) == ["waits", "behind"]
    rig.record("unreachable", 9, "zoe", after_phase=5)
    assert list(rig.said(rig.fold())) == ["unreachable"], "nothing says that such a phase will ever be"


def test_a_node_that_has_left_is_refused_until_it_joins_again_and_its_open_slots_count(pdol):
    rig = pdol.NodeRig(pdol.make_system(nodes=4, sharing={"domains": 2}), key=pdol.SECRET)
    rig.record("before", 1, "ann")
    rig.member(0, present=False)
    rig.record("refused", 2, "bob")
    rig.record("neighbour", 3, "eve", node=1)
    seen = rig.fold()
    assert seen.reasons == ["absent_node"]
    assert list(rig.said()) == [*rig.machine.pending] == ["before", "neighbour"]
    (told,) = seen.records("releases", "Membership")
    assert told == {"node": 0, "present": False, "config_digest": rig.system.digest}
    again = rig.fresh()
    assert outputs(rig.replayed(again)) == outputs(rig.seen)
    restored = rig.fresh()
    restored.start(rig.genesis)
    restored.restore(rig.machine.snapshot())
    assert restored.absent == again.absent == {0}
    rig.member(0, present=True)
    rig.member(2, present=False)
    rig.record("after", 4, "bob")
    assert rig.fold().reasons == ["unknown_node"], "node 2 has its home elsewhere"
    assert list(rig.said()) == ["before", "neighbour", "after"]


# What a release costs.


def test_all_releases_of_an_epoch_are_paid_with_the_first(pdol):
    rig = pdol.NodeRig(key=pdol.SECRET)
    rig.play(0, 17)
    debits = [debit for fields in rig.seen.journals for debit in fields["debits"]]
    price = rig.system.guarantee().price
    assert [debit["epsilon_micro"] for debit in debits] == [price.epsilon_micro, 0, 0, 0, 0]
    assert {debit["scope"] for debit in debits} == {"epoch/0/0"}
    (entry,) = rig.seen.records("ledger", "LedgerEntry")
    assert entry["debit"]["epsilon_micro"] == price.epsilon_micro
    assert entry["private_as_stated"]
    assert all(one["private_as_stated"] for one in rig.sums())


# Cuts, restores, replays.


def script(rig, seed):
    draw = np.random.default_rng(seed)
    for number in range(24):
        way, user = draw.integers(9), f"user-{draw.integers(5)}"
        if way < 6:
            rig.record(f"e{number}", number, user)
            if draw.random() < 0.7:
                rig.label(f"e{number}", int(draw.choice([1, -1])), user)
        elif way == 6:
            rig.end_phase(number)
        elif way == 7:
            rig.forget(user)
        else:
            rig.put("records", b"no record")


def pieces(rig, sizes):
    (whole,) = rig.arrived()
    low = 0
    for size in [*sizes, *[sizes[-1]] * whole.high]:
        high = min(low + size, whole.high)
        if low < high:
            yield [whole._replace(low=low, high=high, records=whole.records[low:high])]
        low = high


@CASES
@given(seed=st.integers(0, 10**6), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
@pytest.mark.parametrize("place", ["released", "node"])
def test_where_a_batch_was_cut_changes_no_answer_and_no_release(pdol, place, seed, sizes):
    system = pdol.make_system(place=place)
    whole, cut = pdol.NodeRig(system), pdol.NodeRig(system)
    for rig in (whole, cut):
        script(rig, seed)
    for part in pieces(cut, sizes):
        cut.take(part)
    whole.fold()
    assert cut.said() == whole.said()
    assert by_topic(outputs(cut.seen)) == by_topic(outputs(whole.seen))
    assert cut.machine.sharing.node.dump() == whole.machine.sharing.node.dump()


# Inputs that changed, rollbacks, turned keys.


def altered(rig, offset, value=b""):
    log = rig.logs["records", 0]
    log[offset] = InputRecord(offset, log[offset].timestamp_ms, value)


def recorded(pdol, batches=6, **changes):
    rig = pdol.NodeRig(pdol.make_system(**changes), key=pdol.SECRET)
    for number in range(batches):
        rig.play(3 * number, 3)
    return rig


def test_a_changed_input_gives_nothing_again_and_the_next_release_pays_for_noise_of_its_own(pdol):
    rig = recorded(pdol)
    altered(rig, 7)
    machine = rig.fresh()
    machine.start(rig.genesis)
    value = rig.journal[0]
    machine.replay(value, [rig.slice(part) for part in machine.recovery_ranges(value)])
    before = machine.snapshot()
    value = rig.journal[1]
    slices = [rig.slice(part) for part in machine.recovery_ranges(value)]
    with pytest.raises(ReplayMismatch, match="nothing is sent"):
        machine.replay(value, slices)
    assert machine.snapshot() == before
    steps = pdol.recover(rig, rig.fresh())
    assert [step.counts.get("diverged", 0) for step in steps][1] == 1
    assert not outputs_of(steps[1:2])
    heir = rig.fresh()
    pdol.recover(rig, heir)
    released = rig.sums()[-1]
    rig.machine = heir
    rig.play(40, 6)
    fresh = [one for one in rig.sums() if one["epoch"] == 1]
    assert fresh
    assert fresh[0]["generation"] > released["generation"], "another counter takes the slots from here on"
    assert heir.spending.redraws == 2
    entries = rig.seen.records("ledger", "LedgerEntry")
    assert [entry["debit"]["epsilon_micro"] > 0 for entry in entries] == [True, True]
    assert entries[1]["debit"]["scope"].startswith("epoch/0/1")


def outputs_of(steps):
    return [output for step in steps for output in step.releases]


def test_whoever_follows_a_journal_with_a_diverged_record_comes_to_the_same_state(pdol):
    rig = recorded(pdol)
    altered(rig, 7)
    heir = rig.fresh()
    pdol.recover(rig, heir)
    rig.machine = heir
    rig.play(40, 6)
    rig.play(50, 6)
    other = rig.fresh()
    pdol.recover(rig, other)
    assert other.snapshot() == heir.snapshot()


def test_a_suspected_rollback_opens_an_epoch_where_noise_is_drawn_ahead_or_a_fork_is_known(pdol):
    for counter, forked, opens in (("blt", False, False), ("blt", True, True), ("negative-digit", False, True)):
        rig = pdol.NodeRig(pdol.make_system(sharing={"counter": counter}), key=pdol.SECRET)
        rig.play(0, 6)
        assert rig.machine.request_epoch(EPOCH_NONCE, forked) is opens
        rig.play(10, 6)
        last = rig.sums()[-1]
        assert (last["epoch"], last["generation"] > 0) == ((1, True) if opens else (0, False))
        assert rig.machine.spending.redraws == 1 + opens
        again = rig.fresh()
        assert outputs(rig.replayed(again)) == outputs(rig.seen)


def test_a_suspected_rollback_that_the_budget_cannot_pay_for_withholds_all_that_follows(pdol):
    rig = pdol.NodeRig(pdol.make_system(sharing={"epochs": 1}), key=pdol.SECRET)
    rig.play(0, 6)
    rig.machine.request_epoch(EPOCH_NONCE, forked=True)
    seen = rig.play(10, 9)
    assert rig.machine.refused is not None
    assert rig.sums(seen) == []
    assert sum(step.counts.get("release_withheld", 0) for step in seen.steps) == 3
    assert list(rig.said(seen)) == [f"e{number}" for number in range(10, 19)], "it goes on answering"


def test_a_turned_key_begins_another_counter_that_nobody_pays_twice_for(pdol):
    ring = KeyRing(0, 1, (), pdol.SECRET)
    rig = pdol.NodeRig(key=pdol.SECRET)
    rig.machine = HomeMachine(rig.system, 0, pdol.SECRET, ring)
    rig.machine.start(rig.genesis)
    rig.play(0, 6)
    assert rig.machine.key.key_id == next_key(pdol.SECRET, 1).key_id
    rig.play(10, 6)
    assert {one["epoch"] for one in rig.sums()} == {0, 1}
    assert rig.machine.spending.redraws == 1, "no record is in two counters, so none pays again"
    again = HomeMachine(rig.system, 0, pdol.SECRET, ring)
    assert outputs(rig.replayed(again)) == outputs(rig.seen)
    restored = HomeMachine(rig.system, 0, pdol.SECRET, ring)
    restored.start(rig.genesis)
    restored.restore(rig.machine.snapshot())
    assert restored.snapshot() == rig.machine.snapshot()


def follow(rig):
    for value in rig.journal:
        rig.machine.replay(value, [rig.slice(part) for part in rig.machine.recovery_ranges(value)])


def test_another_program_is_not_taken_for_a_change_of_inputs(pdol, monkeypatch):
    """By a model of gradients, which predicts the same on every machine: of moments the journal's answers stand."""
    rig = recorded(pdol, 3, records={"dimension": 130})
    fresh = rig.fresh()
    fresh.start(rig.genesis)
    monkeypatch.setattr(
        "hushstream.systems.pdol.nodes.counter_sharing.predictions", lambda found: np.ones(len(found), np.int8)
    )
    rig.machine = fresh
    with pytest.raises(HushstreamError, match="another program wrote it") as found:
        follow(rig)
    assert not isinstance(found.value, ReplayMismatch)


# What stands where.


def test_no_release_names_a_person_an_event_or_an_offset(pdol):
    rig = pdol.NodeRig(key=pdol.SECRET)
    for number in range(9):
        rig.record(f"canary-event-{number}", number, "canary-person")
        rig.label(f"canary-event-{number}", 1, "canary-person")
    rig.end_phase(0)
    rig.fold()
    released = outputs(rig.seen)
    assert released
    assert not any(b"canary" in output.value for output in released)
    known = {"GradientSum", "LedgerEntry", "Seal"}
    assert {codec.decode(output.value)[0] for output in released} == known
