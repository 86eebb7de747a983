"""What a collaborative learner refuses, with its reason and without a byte of it."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.schemas import codec
from hushstream.schemas.batches import encode_context_batch

MARK = "payload-canary"


@pytest.fixture
def rig(related):
    return related.RelatedLearnerRig()


# Refusals.

NAN, INF = float("nan"), float("inf")
GOOD = [[0.3, 0.3, 0.3]] * 4


def context(features=GOOD, **fields):
    record = {"event_id": MARK, "user": "ann", "context": np.array(features, "<f4").tobytes(), **fields}
    return codec.encode("Context", record)


BAD_CONTEXTS = {
    "not a number": (context([*GOOD[:3], [NAN, 0, 0]]), "not_finite"),
    "infinite": (context([*GOOD[:3], [INF, 0, 0]]), "not_finite"),
    "too few arms": (context(GOOD[:3]), "wrong_dimension"),
    "too many arms": (context(GOOD + GOOD[:1]), "wrong_dimension"),
    "longer than L (L2)": (context([*GOOD[:3], [1.0, 0.1, 0.0]]), "too_long_features"),
    "longer than L (L1)": (context([*GOOD[:3], [0.5, 0.5, 0.3]]), "too_long_features"),
    "unknown user": (context(user=MARK), "unknown_user"),
    "unknown track": (context(line=MARK), "unknown_line"),
    "non-private track": (context(line="nonprivate"), "unknown_line"),
    "no user": (context(user=""), "empty_id"),
    "unknown arm in the mask": (context(eligible=bytes([0b10000])), "unknown_arm"),
    "no eligible arm": (context(eligible=bytes([0])), "no_eligible_arm"),
    "baseline not eligible": (context(baseline=1, eligible=bytes([0b0101])), "baseline_not_eligible"),
    "bad after_click": (context(after_click=-2), "bad_after_click"),
    "cut off": (context()[:-3], "truncated"),
    "no Avro": (MARK.encode() * 9, "not_single_object"),
    "another topic's record": (codec.encode("Tick", {"config_digest": bytes(16)}), "unexpected_schema"),
    "negative phase": (codec.encode("Seal", {"phase": -1, "origin": -1, "config_digest": bytes(16)}), "bad_phase"),
    "too many rows": (
        encode_context_batch([f"e{i}" for i in range(4097)], ["ann"] * 4097, np.zeros((4097, 12), np.float32)),
        "too_many_rows",
    ),
}


@pytest.mark.parametrize("name", BAD_CONTEXTS)
def test_a_bad_context_is_a_dead_letter_with_its_reason_and_stops_nobody(related, name):
    value, reason = BAD_CONTEXTS[name]
    system = related.make_system(features={"dimension": 3, "norm": 1.0, "norm_l1": 1.2})
    rig = related.RelatedLearnerRig(system)
    small = related.some_features(0) / np.float32(2)
    rig.context("before", features=small)
    rig.put("contexts", value)
    rig.context("after", features=small)
    seen = rig.fold()
    assert seen.reasons == [reason]
    assert sorted(seen.arms) == ["after", "before"]
    (letter,) = seen.letters
    assert (letter["zone"], letter["role"], letter["topic"], letter["offset"]) == ("edge", "learner", "contexts", 1)
    assert not any(MARK.encode() in output.value for output in seen.outputs)


def test_features_of_exactly_the_allowed_length_are_taken(related):
    system = related.make_system(features={"dimension": 3, "norm": 1.0, "norm_l1": 1.0})
    rig = related.RelatedLearnerRig(system)
    rig.context("axis", features=[[1, 0, 0], [0, -1, 0], [0, 0, 1], [0.5, 0.25, -0.25]])
    assert not rig.fold().reasons
    above = np.nextafter(np.float32(1), np.float32(2))
    rig.context("above", features=[[above, 0, 0]] * 4)
    assert rig.fold().reasons == ["too_long_features"]


def test_an_event_of_another_user_is_refused(related, rig):
    rig.decide("e")
    rig.context("e", "bob")
    rig.shown("e", 0, "bob")
    rig.shown("e", 0, "nobody")
    assert rig.fold().reasons == ["event_of_another_user"] * 3


@pytest.mark.parametrize(("reward", "arm"), [(1.5, 0), (-0.1, 0), (NAN, 0), (INF, 0), (1.0, 4), (1.0, -1)])
def test_feedback_that_cannot_be_is_refused_and_the_row_is_as_without_it(related, rig, reward, arm):
    rig.interact("e", reward=None)
    rig.reward("e", arm, reward)
    rig.end_phase()
    seen = rig.fold()
    assert len(seen.reasons) == 1
    assert [row[2] for row in rig.rows(seen)] == [0.0]
    assert seen.letters[0]["topic"] == "clicks"


def test_a_model_of_other_users_or_with_numbers_that_are_none_is_refused_and_the_old_one_stands(related, rigs):
    system = related.make_system(release={"mechanism": "exact"}, public_dataset=True)
    rig = related.RelatedLearnerRig(system)
    genesis, model = related.model_of(system, related.some_rewards(1, 9))
    rig.model(genesis)
    rig.model(b"no model")
    rig.model(rigs.changed(model, chain=bytes(16)))
    rig.context("e")
    seen = rig.fold()
    assert [answer.model_version for answer in seen.answers] == [0], "what does not continue the chain does not count"
    rig.model(model)
    rig.context("f")
    assert [answer.model_version for answer in rig.fold().answers] == [1]
