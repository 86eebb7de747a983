from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.schemas import context_columns, feedback_columns
from hushstream.schemas.batches import encode_context_batch, encode_feedback_batch
from hushstream.schemas.codec import CodecError, encode
from hushstream.schemas.context_columns import ContextColumns, gather_contexts
from hushstream.schemas.feedback_columns import FeedbackColumns, gather_feedback
from hushstream.schemas.rows import HARM, REWARD, SHOWN, Reason, Reject

D, K = 3, 10
X = np.array([1.0, -2.0, 0.5], dtype="<f4")
CONFIG = bytes(range(16))
FULL = b"\xff\x03"


def event(event_id: str = "e", user: str = "u", context: Any = X, **rest: Any) -> bytes:
    return encode("Context", {"event_id": event_id, "user": user, "context": context.tobytes(), **rest})


def feedback(**change: Any) -> bytes:
    return encode("Feedback", {"kind": "reward", "event_id": "e", "user": "u", "arm": 1, **change})


def batch(**change: Any) -> bytes:
    fields = {
        "event_ids": ["a", "b"],
        "users": ["u", "v"],
        "dimension": D,
        "contexts": X.tobytes() * 2,
        **change,
    }
    return encode("ContextBatch", fields)


def log(*values: bytes) -> list[tuple[int, int, bytes]]:
    return [(100 + at, 5_000 + at, value) for at, value in enumerate(values)]


def test_events_batches_and_phase_ends_keep_their_order_around_bad_records():
    phase_end = encode("Seal", {"phase": 7, "origin": -1, "config_digest": CONFIG})
    contexts = np.stack([X, X * np.float32(np.nan), X + 1])
    found = gather_contexts(
        log(
            event("a", context=X * 2),
            encode_context_batch(["b", "c", "d"], ["v"] * 3, contexts, track="cold", baselines=[1, 2, -1]),
            b"garbage",
            phase_end,
            event("e", eligible=b"\x01\x02", baseline=9, after_click=4),
            feedback(),
            phase_end,
        ),
        D,
        K,
    )
    assert found.event_ids == ["a", "b", "d", "e"]
    assert found.users == ["u", "v", "v", "u"]
    assert found.tracks == ["private", "cold", "cold", "private"]
    assert found.contexts.tolist() == [(X * 2).tolist(), X.tolist(), (X + 1).tolist(), X.tolist()]
    assert found.eligible == [b"", b"", b"", b"\x01\x02"]
    assert found.baselines == [-1, 1, -1, 9]
    assert found.after_clicks == [-1, -1, -1, 4]
    assert list(zip(found.offsets, found.rows, strict=True)) == [(100, 0), (101, 0), (101, 2), (104, 0)]
    assert found.timestamps_ms == [5000, 5001, 5001, 5004]
    assert [(mark.position, mark.offset, mark.phase) for mark in found.marks] == [(3, 103, 7), (4, 106, 7)]
    assert found.marks[0][3:] == (5003, -1, CONFIG, -1)
    assert found.rejects == [
        Reject(101, 1, Reason.NOT_FINITE),
        Reject(102, -1, Reason.NOT_SINGLE_OBJECT),
        Reject(105, -1, Reason.UNEXPECTED_SCHEMA),
    ]


def test_contexts_are_one_contiguous_float32_array():
    found = gather_contexts(log(event(), batch()), D, K).contexts
    assert found.shape == (3, D)
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    assert not found.flags.writeable


def test_nothing_gives_empty_columns():
    found = gather_contexts([], D, K)
    assert found.contexts.shape == (0, D)
    assert found.event_ids == found.marks == found.rejects == []
    assert gather_contexts(log(batch(event_ids=[], users=[], contexts=b"")), D, K).rejects == []
    assert gather_feedback([]).rewards == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (event(context=X[:2]), Reason.WRONG_DIMENSION),
        (event(context=np.zeros(0, "<f4")), Reason.WRONG_DIMENSION),
        (event(context=np.array([1, np.inf, 0], "<f4")), Reason.NOT_FINITE),
        (event(context=np.array([1, np.nan, 0], "<f4")), Reason.NOT_FINITE),
        (event(event_id=""), Reason.EMPTY_ID),
        (event(user=""), Reason.EMPTY_ID),
        (event(user="  "), Reason.EMPTY_ID),
        (event(user="a\u2066b"), Reason.ID_OF_LINES),
        (event(event_id="x" * 129), Reason.ID_TOO_LONG),
        (event(user="é" * 65), Reason.ID_TOO_LONG),
        (event(user="a\u2028b"), Reason.ID_OF_LINES),
        (event(line=""), Reason.BAD_TRACK),
        (event(line="l" * 129), Reason.BAD_TRACK),
        (event(eligible=b"\x01\x00\x00"), Reason.WRONG_MASK_LENGTH),
        (event(eligible=b"\x01\x04"), Reason.UNKNOWN_ARM),
        (event(eligible=b"\x00\x00"), Reason.NO_ELIGIBLE_ARM),
        (event(baseline=10), Reason.UNKNOWN_ARM),
        (event(baseline=-2), Reason.UNKNOWN_ARM),
        (event(after_click=-2), Reason.BAD_AFTER_CLICK),
    ],
)
def test_each_fault_of_a_context_has_its_reason_and_its_neighbours_stay(value, reason):
    found = gather_contexts(log(event("before"), value, event("after")), D, K)
    assert found.event_ids == ["before", "after"]
    assert found.offsets == [100, 102]
    assert found.rejects == [Reject(101, 0, reason)]


def test_the_longest_ids_and_a_full_mask_are_accepted():
    found = gather_contexts(log(event("x" * 128, "é" * 64, eligible=FULL, baseline=9)), D, K)
    assert found.rejects == []
    assert found.eligible == [b""]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dimension": 4}, Reason.WRONG_DIMENSION),
        ({"users": ["u"]}, Reason.COLUMNS_DISAGREE),
        ({"contexts": X.tobytes()}, Reason.COLUMNS_DISAGREE),
        ({"contexts": X.tobytes() * 2 + b"\0"}, Reason.COLUMNS_DISAGREE),
        ({"eligible": b"\x01\x01\x01"}, Reason.COLUMNS_DISAGREE),
        ({"baselines": bytes(4)}, Reason.COLUMNS_DISAGREE),
        ({"after_clicks": bytes(8)}, Reason.COLUMNS_DISAGREE),
        ({"line": ""}, Reason.BAD_TRACK),
    ],
)
def test_a_batch_that_is_bad_as_a_whole_is_one_reject(change, reason):
    found = gather_contexts(log(event("before"), batch(**change), event("after")), D, K)
    assert found.event_ids == ["before", "after"]
    assert found.rejects == [Reject(101, -1, reason)]


def test_a_dimension_of_another_deployment_is_refused_even_when_the_bytes_could_be_cut_otherwise():
    value = batch(event_ids=["a"] * 3, users=["u"] * 3, dimension=2, contexts=X.tobytes() * 2)
    assert gather_contexts(log(value), D, K).rejects == [Reject(100, -1, Reason.WRONG_DIMENSION)]


ids = st.sampled_from(["", "a", "b", "user", "é" * 64, "é" * 65, "x" * 128, "x" * 129])
masks = st.sampled_from([b"", FULL, b"\x01\x00", b"\x00\x02", b"\x00\x00", b"\x00\x04"])
numbers = st.floats(width=32, allow_nan=True, allow_infinity=True)
context_rows = st.lists(
    st.fixed_dictionaries(
        {
            "event_id": ids,
            "user": ids,
            "context": st.lists(numbers, min_size=D, max_size=D).map(lambda x: struct.pack("<3f", *x)),
            "eligible": masks,
            "baseline": st.sampled_from([-1, 0, 9, -2, 10]),
            "after_click": st.sampled_from([-1, 0, 2**62, -2]),
        }
    ),
    max_size=6,
)


def context_table(found: ContextColumns) -> list[tuple[Any, ...]]:
    vectors = [row.tobytes() for row in found.contexts]
    columns = (found.event_ids, found.users, found.tracks, vectors, found.eligible)
    return list(zip(*columns, found.baselines, found.after_clicks, strict=True))


@settings(max_examples=300, deadline=None)
@given(rows=context_rows, sparse=st.booleans())
def test_both_forms_of_contexts_give_the_same_rows_and_the_same_rejects(rows, sparse):
    if sparse:  # Columns that are left out stand for their defaults.
        for row in rows:
            row.update(eligible=b"", baseline=-1, after_click=-1)
    events = [encode("Context", {**row, "line": "l"}) for row in rows]
    packed = encode(
        "ContextBatch",
        {
            "event_ids": [row["event_id"] for row in rows],
            "users": [row["user"] for row in rows],
            "line": "l",
            "dimension": D,
            "contexts": b"".join(row["context"] for row in rows),
            "eligible": b"" if sparse else b"".join(row["eligible"] or FULL for row in rows),
            "baselines": b"" if sparse else struct.pack(f"<{len(rows)}i", *(r["baseline"] for r in rows)),
            "after_clicks": b"" if sparse else struct.pack(f"<{len(rows)}q", *(r["after_click"] for r in rows)),
        },
    )
    one = gather_contexts([(at, 9, value) for at, value in enumerate(events)], D, K)
    many = gather_contexts([(0, 9, packed)], D, K)
    assert context_table(one) == context_table(many)
    assert one.offsets == many.rows
    assert one.timestamps_ms == many.timestamps_ms
    assert many.offsets == one.rows
    assert [(r.offset, r.reason) for r in one.rejects] == [(r.row, r.reason) for r in many.rejects]
    assert len(one.event_ids) + len(one.rejects) == len(rows)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"event_id": ""}, Reason.EMPTY_ID),
        ({"user": "\u2003 "}, Reason.EMPTY_ID),
        ({"user": " "}, Reason.EMPTY_ID),
        ({"user": "u" * 129}, Reason.ID_TOO_LONG),
        ({"user": "u\n"}, Reason.ID_OF_LINES),
        ({"arm": -1}, Reason.UNKNOWN_ARM),
        ({"reward": 1.0000001}, Reason.REWARD_OUT_OF_RANGE),
        ({"reward": -0.1}, Reason.REWARD_OUT_OF_RANGE),
        ({"reward": float("nan")}, Reason.REWARD_OUT_OF_RANGE),
        ({"reward": float("inf")}, Reason.REWARD_OUT_OF_RANGE),
    ],
)
def test_each_fault_of_feedback_has_its_reason_and_its_neighbours_stay(change, reason):
    found = gather_feedback(log(feedback(kind="shown"), feedback(**change), feedback(reward=1.0), b"junk"))
    assert found.kinds == [SHOWN, REWARD]
    assert found.rewards == [0.0, 1.0]
    assert found.offsets == [100, 102]
    assert found.rejects == [Reject(101, 0, reason), Reject(103, -1, Reason.NOT_SINGLE_OBJECT)]


def test_a_feedback_batch_whose_columns_disagree_is_one_reject():
    good = {"kinds": b"\1", "event_ids": ["e"], "users": ["u"], "arms": bytes(4), "rewards": bytes(8)}
    for name, value in [("kinds", b""), ("users", []), ("arms", bytes(5)), ("rewards", bytes(4))]:
        found = gather_feedback(log(encode("FeedbackBatch", {**good, name: value})))
        assert found.rejects == [Reject(100, -1, Reason.COLUMNS_DISAGREE)], name


def test_an_unknown_kind_in_a_feedback_batch_refuses_its_row():
    value = encode_feedback_batch([0, 3, 2], ["a", "b", "c"], ["u"] * 3, [1, 2, 0], [0.0, 0.5, 1.0])
    found = gather_feedback(log(value))
    assert (found.event_ids, found.kinds, found.rows) == (["a", "c"], [SHOWN, HARM], [0, 2])
    assert found.rejects == [Reject(100, 1, Reason.UNKNOWN_KIND)]


feedback_rows = st.lists(
    st.tuples(
        st.sampled_from(["shown", "reward", "harm"]),
        ids,
        ids,
        st.sampled_from([0, 3, 2**31 - 1, -1]),
        st.sampled_from([0.0, -0.0, 0.25, 1.0, 1.5, -1.0, float("nan"), float("inf")]),
    ),
    max_size=6,
)


def feedback_table(found: FeedbackColumns) -> list[tuple[Any, ...]]:
    columns = (found.kinds, found.event_ids, found.users, found.arms, found.rewards)
    return list(zip(*columns, found.timestamps_ms, strict=True))


@settings(max_examples=200, deadline=None)
@given(rows=feedback_rows)
def test_both_forms_of_feedback_give_the_same_rows_and_the_same_rejects(rows):
    names = ("kind", "event_id", "user", "arm", "reward")
    events = [encode("Feedback", dict(zip(names, row, strict=True))) for row in rows]
    kinds, event_ids, users, arms, rewards = zip(*rows, strict=True) if rows else ((),) * 5
    packed = encode_feedback_batch(
        np.array([("shown", "reward", "harm").index(kind) for kind in kinds], dtype=np.uint8),
        event_ids,
        users,
        np.array(arms, dtype=np.int64),
        np.array(rewards),
    )
    one = gather_feedback([(at, 9, value) for at, value in enumerate(events)])
    many = gather_feedback([(0, 9, packed)])
    assert feedback_table(one) == feedback_table(many)
    assert one.offsets == many.rows
    assert [(r.offset, r.reason) for r in one.rejects] == [(r.row, r.reason) for r in many.rejects]


def test_a_writer_cannot_pack_columns_that_disagree():
    with pytest.raises(CodecError, match="2 users"):
        encode_context_batch(["a", "b"], ["u"], np.zeros((2, D)))
    with pytest.raises(CodecError, match=r"contexts: expected shape \(2, 3\)"):
        encode_context_batch(["a", "b"], ["u", "v"], np.zeros((3, D)))
    with pytest.raises(CodecError, match=r"\(n, d\)"):
        encode_context_batch(["a"], ["u"], np.zeros(D))
    with pytest.raises(CodecError, match="one length"):
        encode_context_batch(["a", "b"], ["u", "v"], np.zeros((2, D)), eligible=[b"\1\0", b"\1"])
    with pytest.raises(CodecError, match="baselines: expected int32, got float64"):
        encode_context_batch(["a"], ["u"], np.zeros((1, D)), baselines=[0.5])
    with pytest.raises(CodecError, match="arms"):
        encode_feedback_batch([1], ["a"], ["u"], [1, 2], [0.5])


def test_a_writer_cannot_pack_a_number_that_its_column_would_wrap():
    with pytest.raises(CodecError, match="baselines"):
        encode_context_batch(["a"], ["u"], np.zeros((1, D)), baselines=[2**32])
    with pytest.raises(CodecError, match="kinds"):
        encode_feedback_batch([257], ["a"], ["u"], [1], [0.5])
    with pytest.raises(CodecError, match="kinds"):
        encode_feedback_batch([-1], ["a"], ["u"], [1], [0.5])


def test_damaged_records_become_rejects_and_nothing_raises():
    rng = np.random.default_rng(20260102)
    masked = encode_context_batch(["a", "b"], ["u", "v"], np.ones((2, D)), eligible=[FULL, b"\1\0"])
    phase_end = encode("Seal", {"phase": 7, "origin": -1, "config_digest": CONFIG})
    shown = encode_feedback_batch([0, 1], ["a", "b"], ["u", "v"], [1, 2], [0.0, 0.5])
    sources = [event(), batch(), masked, phase_end, feedback(), shown]
    values = []
    for _ in range(12_000):
        value = bytearray(sources[int(rng.integers(len(sources)))])
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(10, len(value)))
            value[at : at + int(rng.integers(0, 3))] = rng.bytes(int(rng.integers(0, 3)))
        values.append(bytes(value))
    contexts = gather_contexts(log(*values), D, K)
    clicks = gather_feedback(log(*values))
    assert contexts.rejects == sorted(contexts.rejects)
    assert np.isfinite(contexts.contexts).all()
    assert {r.reason for r in contexts.rejects} >= {Reason.TRUNCATED, Reason.MALFORMED, Reason.NOT_FINITE}
    assert all(0.0 <= reward <= 1.0 for reward in clicks.rewards)
    for accepted in (contexts.event_ids, contexts.rejects, contexts.marks, clicks.event_ids, clicks.rejects):
        assert len(accepted) > 100


def test_what_is_cut_out_of_usual_records_is_what_the_codec_reads(monkeypatch):
    """Ids, kinds, arms and lengths at the edges of what is cut, and records with damaged, missing or further bytes."""
    rng = np.random.default_rng(20260103)
    form, row = context_columns.RowForm(5, bytes(range(16))), {"features_digest": bytes(range(16)), "row": b"12345"}
    named = [("e", "u"), ("e" * 63, "u" * 63), ("e" * 64, "u"), ("e", "u" * 64), ("\u00e9", "u"), ("", "u"), (" ", "u")]
    numbers, rows, clicks = [], [], []
    for event_id, user in named:
        who = {"event_id": event_id, "user": user}
        numbers += [event(**who), event(**who, eligible=b"\1\0"), event(**who, baseline=K - 1, after_click=2**40)]
        numbers += [event(**who, after_click=after_click) for after_click in (0, 63, 64, 2**61, 2**62, 2**63 - 1)]
        numbers += [event(**who, line=track) for track in ("", " ", "cold", "t" * 63, "t" * 64, "\u00e9", "a\nb")]
        rows += [encode("FeatureContext", {**row, **who}), encode("FeatureContext", {**row, **who, "line": "cold"})]
        clicks += [feedback(**who, arm=arm) for arm in (0, 63, 64, 127, 128, 8191, 8192, -1, 2**31 - 1)]
        clicks += [
            feedback(**who, kind=kind, reward=reward) for kind in ("shown", "reward") for reward in (-0.0, 1.0, 2.0)
        ]

    def damaged(values: list[bytes]) -> bytes:
        value = bytearray(values[int(rng.integers(len(values)))])
        for _ in range(int(rng.integers(0, 3))):
            at = int(rng.integers(0, len(value) + 1))
            value[at : at + int(rng.integers(0, 3))] = rng.bytes(int(rng.integers(0, 3)))
        return bytes(value)

    logs = [log(*[damaged(values) for _ in range(4000)]) for values in (numbers, rows, clicks)]

    def read() -> list[Any]:
        found = (gather_contexts(logs[0], D, K), gather_contexts(logs[1], 5, K, form), gather_feedback(logs[2]))
        return [[value.tolist() if isinstance(value, np.ndarray) else value for value in columns] for columns in found]

    cut = read()
    assert min(len(columns[0]) for columns in cut) > 400
    monkeypatch.setattr(context_columns._Usual, "cuts", lambda usual, records: [None] * len(records))
    monkeypatch.setattr(feedback_columns, "_cut", lambda value: None)
    assert cut == read()


@pytest.mark.parametrize("change", [{"baseline": K}, {"baseline": -2}, {"after_click": -2}])
def test_a_number_that_no_context_may_have_is_refused_where_it_is_cut_out(change):
    found = gather_contexts(log(event(), event("f", **change), event("g", baseline=0, after_click=7)), D, K)
    assert found.event_ids == ["e", "g"]
    assert (found.baselines, found.after_clicks) == ([-1, 0], [-1, 7])
    assert len(found.rejects) == 1
