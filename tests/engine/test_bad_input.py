"""Bad records, missing values and users of other partitions: refused, counted, and nothing else is moved."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import KeySource, parse_config, prepare
from hushstream.agents.worker.roles import all_machines
from hushstream.engine.declare.outcomes import OUTCOMES, Outcome
from hushstream.engine.records import InputRecord, InputSlice
from hushstream.features.schema import declare
from hushstream.schemas import codec
from hushstream.schemas.batches import encode_context_batch
from hushstream.schemas.topics import partition_of
from hushstream.systems.p2b.slots import Report, pack

MARK = "payload-canary"


def context(x, **fields):
    record = {"event_id": MARK, "user": MARK, "context": np.asarray(x, "<f4").tobytes(), **fields}
    return codec.encode("Context", record)


GOOD = [0.25, 0.25, 0.25, 0.25]
NAN, INF = float("nan"), float("inf")
BAD_CONTEXTS = {
    "nan": (context([NAN, 0.5, 0.25, 0.25]), "not_finite"),
    "infinite": (context([INF, 0, 0, 0]), "not_finite"),
    "short": (context([0.5, 0.25, 0.25]), "wrong_dimension"),
    "long": (context([*GOOD, 0]), "wrong_dimension"),
    "sum below one": (context([0.25, 0.25, 0.25, 0.2]), "unnormalised_context"),
    "sum above one": (context([0.5, 0.5, 0.5, 0.5]), "unnormalised_context"),
    "negative entry": (context([1.2, -0.2, 0, 0]), "unnormalised_context"),
    "zeros": (context([0, 0, 0, 0]), "unnormalised_context"),
    "unknown arm in the mask": (context(GOOD, eligible=bytes([0b100000])), "unknown_arm"),
    "no eligible arm": (context(GOOD, eligible=bytes([0])), "no_eligible_arm"),
    "mask too long": (context(GOOD, eligible=bytes([1, 0])), "wrong_mask_length"),
    "unknown baseline": (context(GOOD, baseline=5), "unknown_arm"),
    "baseline not eligible": (context(GOOD, baseline=1, eligible=bytes([0b00101])), "baseline_not_eligible"),
    "unknown track": (context(GOOD, line=MARK), "unknown_line"),
    "track without privacy": (context(GOOD, line="nonprivate"), "unknown_line"),
    "no event id": (context(GOOD, event_id=""), "empty_id"),
    "no user": (context(GOOD, user=""), "empty_id"),
    "long event id": (context(GOOD, event_id=MARK * 10), "id_too_long"),
    "NUL in an event id": (context(GOOD, event_id=MARK + "\0"), "id_of_lines"),
    "bad after_click": (context(GOOD, after_click=-2), "bad_after_click"),
    "cut off": (context(GOOD)[:-3], "truncated"),
    "bytes to spare": (context(GOOD) + b"\0", "trailing_bytes"),
    "unknown fingerprint": (b"\xc3\x01" + b"\x55" * 8 + MARK.encode(), "unknown_fingerprint"),
    "no Avro": (MARK.encode() * 9, "not_single_object"),
    "nothing": (b"", "not_single_object"),
    "another topic's record": (codec.encode("Tick", {"config_digest": bytes(16)}), "unexpected_schema"),
    "too large": (context(GOOD) + bytes(10 << 20), "too_large"),
    "columns that disagree": (
        codec.encode("ContextBatch", {"event_ids": [MARK], "users": [], "dimension": 4, "contexts": b""}),
        "columns_disagree",
    ),
    "negative phase": (
        codec.encode("Seal", {"phase": -1, "origin": -1, "config_digest": bytes(16)}),
        "bad_phase",
    ),
}


@pytest.mark.parametrize("name", BAD_CONTEXTS)
def test_a_bad_context_is_a_dead_letter_with_its_reason_and_stops_nobody(rigs, name):
    value, reason = BAD_CONTEXTS[name]
    rig = rigs.LearnerRig()
    rig.context("before")
    rig.put("contexts", value)
    rig.context("after")
    seen = rig.fold()
    assert seen.reasons == [reason]
    assert sorted(seen.arms) == ["after", "before"]
    (letter,) = seen.letters
    assert (letter["zone"], letter["role"], letter["topic"], letter["offset"]) == ("edge", "learner", "contexts", 1)
    assert {output.topic for step in seen.steps for output in step.dead_letters} == {"dead-letters-edge"}


def test_no_payload_is_in_a_dead_letter_and_the_digest_needs_the_key(rigs):
    letters = []
    for seed in (1, 2):
        rig = rigs.LearnerRig(key=rigs.seeded_key(seed, "edge"))
        for value, _ in BAD_CONTEXTS.values():
            rig.put("contexts", value)
            rig.put("clicks", value)
        seen = rig.fold()
        outputs = [output.value for step in seen.steps for output in step.dead_letters]
        assert len(outputs) >= 2 * len(BAD_CONTEXTS) - 1
        assert not any(MARK.encode() in value for value in outputs)
        assert not any(np.float32(0.25).tobytes() * 2 in value for value in outputs)
        letters.append(seen.letters)
    for one, other in zip(*letters, strict=True):
        assert {**one, "digest": b""} == {**other, "digest": b""}
        assert one["digest"] != other["digest"]


def test_a_bad_row_of_a_batch_is_refused_alone(rigs):
    rig = rigs.LearnerRig()
    x = np.stack([rigs.point(row) for row in range(4)])
    x[1, 0], x[2] = NAN, 0
    value = encode_context_batch([f"e{row}" for row in range(4)], ["ann"] * 4, x, baselines=[-1, -1, -1, 7])
    rig.put("contexts", value)
    seen = rig.fold()
    assert sorted((letter["row"], letter["reason"]) for letter in seen.letters) == [
        (1, "not_finite"),
        (2, "unnormalised_context"),
        (3, "unknown_arm"),
    ]
    assert list(seen.arms) == ["e0"]


def test_a_batch_with_more_rows_than_a_journal_record_holds_is_refused_as_a_whole(rigs):
    rig = rigs.LearnerRig()
    rows = 4097
    ids = [f"e{row}" for row in range(rows)]
    rig.context("before")
    rig.put("contexts", encode_context_batch(ids, ["u"] * rows, np.full((rows, 4), 0.25)))
    rig.context("after")
    seen = rig.fold()
    assert [(letter["reason"], letter["row"]) for letter in seen.letters] == [("too_many_rows", -1)]
    assert list(seen.arms) == ["before", "after"]


def test_thousands_of_refusals_in_one_batch_take_no_quadratic_time(rigs):
    rig = rigs.LearnerRig()
    for _ in range(20_000):
        rig.put("clicks", b"no record")
    seen = rig.fold()
    assert seen.counts == {"rejected": 20_000}
    assert [letter["offset"] for letter in seen.letters] == list(range(20_000))


def test_an_eligible_mask_restricts_the_arms_shown(rigs):
    rig = rigs.LearnerRig()
    for number in range(12):
        assert rig.decide(f"e{number}", f"u{number}", eligible=bytes([0b01010])) in (1, 3)


def slot(rigs, rig, **changes):
    return {"report": Report(1, 2, 1), **changes}


BAD_SLOTS = {
    "another configuration": ({"config_digest": bytes(16)}, "other_configuration"),
    "a period gone by": ({"period": (2).to_bytes(8, "little")}, "stale_period"),
    "a period to come": ({"period": (10**9).to_bytes(8, "little")}, "stale_period"),
    "a negative period": ({"period": b"\xff" * 8}, "stale_period"),
    "code outside": ({"content": pack(Report(4, 0, 0))}, "malformed_slot"),
    "arm outside": ({"content": pack(Report(0, 5, 0))}, "malformed_slot"),
    "level outside": ({"content": pack(Report(0, 0, 2))}, "malformed_slot"),
    "padding": ({"content": pack(None)[:-1] + b"\1"}, "malformed_slot"),
    "garbage": ({"content": b"\xa5" * 32}, "malformed_slot"),
}


@pytest.mark.parametrize("name", BAD_SLOTS)
def test_a_bad_slot_is_a_dead_letter_and_the_window_closes_without_it(rigs, name):
    fields, reason = BAD_SLOTS[name]
    rig = rigs.ShufflerRig()
    for number in range(3):
        rig.slot(number, Report(1, 2, 1))
    rig.slot(99, **fields)
    rig.slot(3, Report(1, 2, 1))
    seen = rig.fold()
    assert seen.reasons == [reason]
    (window,) = rig.sums_of(seen)
    assert window["slots"] == 4
    (letter,) = seen.letters
    assert (letter["zone"], letter["topic"], letter["offset"]) == ("shuffler", "reports", 3)


def test_a_phase_end_of_an_unknown_partition_or_configuration_closes_nothing(rigs):
    rig = rigs.ShufflerRig()
    rig.slot(0)
    rig.end_phase(origin=7)
    rig.end_phase(digest=bytes(range(16)))
    rig.end_phase(phase=-1)
    seen = rig.fold()
    assert seen.reasons == ["unknown_origin", "other_configuration", "unknown_origin"]
    assert not rig.sums_of(seen)


def test_an_aggregator_refuses_what_is_no_sum_of_its_configuration(rigs):
    system = rigs.make_system()
    rig = rigs.AggregatorRig(system)
    (window,) = rigs.window_sums_values(system, 1)
    bad = [
        rigs.changed(window, config_digest=bytes(16)),
        rigs.changed(window, arms=6),
        rigs.changed(window, codes=5),
        rigs.changed(window, levels=2),
        rigs.changed(window, ones=bytes(8)),
        rigs.changed(window, ones=bytes(7)),
        rigs.changed(window, variance=NAN),
        rigs.changed(window, ones=(np.ones(20, "<i8") << 62).tobytes()),
        window[:-1],
        b"",
    ]
    seen = rig.give([*bad, window])
    assert seen.reasons == ["other_configuration"] * 8 + ["truncated", "not_single_object"]
    assert seen.counts["model"] == 1
    assert [letter["zone"] for letter in seen.letters] == ["server"] * 10


def test_a_malformed_model_on_the_chain_is_refused_and_the_next_one_adopted(rigs):
    system = rigs.make_system()
    track = rigs.AggregatorRig(system)
    track.give(rigs.window_sums_values(system, 1))
    machine = track.machine
    bad = machine.chain.append({**codec.decode(track.journal[0])[1], **_next_head(machine), "gram": bytes(8)})
    rig = rigs.LearnerRig(system)
    for value in (track.genesis, track.journal[0], bad):
        rig.put("models", value)
    seen = rig.fold()
    assert seen.reasons == ["malformed_model"]
    assert seen.counts["model_adopted"] == 1
    assert rig.machine.terms.policy.shared("private").version == 1


def _next_head(machine):
    low = machine.position
    part = {"topic": "window-sums", "partition": 0, "low": low, "high": low + 1}
    head = {"epoch": 0, "inputs": [part], "input_digest": bytes(16), "release_digest": bytes(16)}
    return {"head": {"sequence": machine.chain.sequence + 1, **head}}


def test_models_that_do_not_continue_their_chain_are_passed_over(rigs):
    system = rigs.make_system()
    track = rigs.AggregatorRig(system)
    track.give(rigs.window_sums_values(system, 2))
    first, second = track.journal
    rig = rigs.LearnerRig(system)
    for value in (b"junk", track.genesis, second, first, track.genesis, first, second):
        rig.put("models", value)
    assert rig.fold().counts["model_adopted"] == 2
    assert rig.machine.terms.policy.shared("private").version == 2


FEATURES = {
    "country": {"kind": "category", "vocabulary": ["de", "fr"]},
    "age": {"kind": "number", "range": [16, 96]},
    "spend": {"kind": "number", "range": [1, 1000], "scale": "log"},
    "member": {"kind": "boolean"},
    "hour": {"kind": "time_of_day"},
    "day": {"kind": "day_of_week"},
}
WHOLE = {"country": "de", "age": 40, "spend": 30, "member": False, "hour": 12.5, "day": "mon"}


def losses(schema, rows):
    return [*zip(*(column.tolist() for column in schema.compiled.checked(rows)[1:]), strict=True)]


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({}, (0, 0)),
        ({"country": "it"}, (1, 0)),
        ({"age": None, "hour": None}, (2, 0)),
        (dict.fromkeys(WHOLE), (6, 0)),
        ({"age": 120, "spend": 0.5}, (0, 2)),
        ({"age": 16, "spend": 1000}, (0, 2)),
        ({"age": 1, "member": None}, (1, 1)),
    ],
)
def test_a_row_says_how_many_of_its_values_are_missing_or_at_an_end(changes, lost):
    schema = declare(FEATURES)
    row = schema.encode({**WHOLE, **changes}).row
    assert losses(schema, row) == [lost]
    assert losses(schema, schema.encode(WHOLE).row + row) == [(0, 0), lost]


def test_tags_and_vectors_have_no_sign_of_it():
    declared = {
        "likes": {"kind": "tags", "vocabulary": ["a"], "most": 1},
        "taste": {"kind": "embedding", "dimension": 2},
    }
    schema = declare({**declared, "member": {"kind": "boolean"}})
    assert losses(schema, schema.encode({}).row) == [(1, 0)]


@pytest.mark.parametrize("system", ["p2b", "pdap"])
def test_learners_count_them_once_for_each_context(system, tmp_path):
    own = {"items": {"capacity": 3}, "expected_slots": 40} if system == "p2b" else {}
    vendors = {"vendors": [{"name": "one", "items": {"capacity": 3}}]} if system == "pdap" else {}
    values = {"system": system, "deployment": "d", "features": FEATURES, **own, **vendors}
    deployed = prepare(tmp_path, parse_config(values))
    rules, keys = deployed.requests, KeySource(seed=1)
    learner = next(
        one
        for one in all_machines(deployed, keys)
        if "learner" in f"{type(one).__module__}.{type(one).__name__}".lower()
    )
    learner.start(learner.genesis(bytes(32)))
    topic, counts = learner.inputs[0][0], Counter[str]()
    changes: list[dict[str, Any]] = [{"country": "it"}, {"age": None, "spend": 5000}, {}]
    line = "one" if system == "pdap" else "private"
    for offset, one in enumerate(changes):
        fields = {"event_id": f"e{offset}", "user": "ann", "line": line, "features_digest": rules.features.digest}
        value = codec.encode("FeatureContext", {**fields, "row": rules.row_of({**WHOLE, **one})})
        part = InputSlice(topic, 0, offset, offset + 1, [InputRecord(offset, 1_700_000_000_000 + offset, value)])
        for step in learner.fold(learner.ready([part])):
            counts.update(step.counts)
    assert (counts[Outcome.VALUE_MISSING], counts[Outcome.VALUE_AT_END], counts[Outcome.DECIDED]) == (2, 1, 3)


def test_they_are_the_zones_own():
    assert {OUTCOMES[one] for one in (Outcome.VALUE_MISSING, Outcome.VALUE_AT_END)} == {"zone-private"}


NAMES = [f"user-{number}" for number in range(20)]


def of_home(home):
    return next(name for name in NAMES if partition_of(name, 2) == home)


def test_p2b_decides_for_no_user_of_another_partition(rigs):
    system = rigs.make_system(partitions={"learner": 2}, slot={"after_interactions": 1})
    rig = rigs.LearnerRig(system, partition=0)
    rig.context("own", of_home(0), rigs.point(0))
    rig.context("foreign", of_home(1), rigs.point(0))
    seen = rig.fold()
    assert seen.reasons == ["foreign_user"]
    assert [answer.event_id for answer in seen.answers] == ["own"]


@pytest.mark.parametrize(("home", "own", "foreign"), [(0, "bob", "ann"), (1, "ann", "bob")])
def test_a_collaborative_learner_takes_no_reward_of_a_user_of_another_partition(related, home, own, foreign):
    system = related.edge_system(partitions={"learner": 2}, rewards_per_user=1)
    rig = related.RelatedLearnerRig(system, related.SECRET, home)
    rig.interact("own", own)
    rig.context("foreign", foreign)
    rig.end_phase()
    rig.fold()
    assert rig.seen.reasons == ["foreign_user"]
    (release,) = rig.seen.records("releases", "Release")
    assert related.arrays_of(release)[0].tolist() == [system.graph.index[own]]
