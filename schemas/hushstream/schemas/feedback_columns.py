"""Converts the feedback of one partition, as events or in batches, to columns; refusals as in `gather_contexts`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from itertools import compress
from typing import Any, NamedTuple, cast

import numpy as np

from hushstream.schemas import batches
from hushstream.schemas.codec import HEADER_BYTES, CodecError, decode, encode
from hushstream.schemas.rows import (
    HARM,
    REWARD,
    SHOWN,
    LogRecord,
    Reason,
    Reject,
    all_plain,
    feedback_fault,
    take_runs,
)

_FEEDBACK = frozenset({"Feedback", "FeedbackBatch"})
_KINDS = {"shown": SHOWN, "reward": REWARD, "harm": HARM}


class FeedbackColumns(NamedTuple):
    """n accepted feedback rows in log order; every list has n items."""

    kinds: list[int]
    """`SHOWN`, `REWARD` or `HARM`."""
    event_ids: list[str]
    users: list[str]
    arms: list[int]
    rewards: list[float]
    offsets: list[int]
    rows: list[int]
    timestamps_ms: list[int]
    rejects: list[Reject]
    """In log order."""


def gather_feedback(records: Sequence[LogRecord]) -> FeedbackColumns:
    """Read feedback and batches of feedback of one partition.

    Args:
        records: (offset, log time in milliseconds, value), in offset order.
    """
    columns = FeedbackColumns([], [], [], [], [], [], [], [], [])
    cuts = [_cut(value) for _, _, value in records]
    if not records or None in cuts or not _take_cut(columns, records, cast(Sequence[_Cut], cuts)):
        take_runs(records, cuts, partial(_take_cut, columns), partial(_take_decoded, columns))
    return columns


def _take_decoded(columns: FeedbackColumns, records: Sequence[LogRecord]) -> None:
    for offset, timestamp_ms, value in records:
        try:
            name, fields = decode(value, _FEEDBACK)
        except CodecError as error:
            columns.rejects.append(Reject(offset, -1, error.reason))
            continue
        if name == "Feedback":
            _feedback_event(columns, offset, timestamp_ms, fields)
        else:
            _feedback_batch(columns, offset, timestamp_ms, fields)


# Most records have short ids, an arm below 8,192 and a reward from 0 to 1: their fields are cut out, without the codec.

_Cut = tuple[int, str, str, int, float]
"""The fields of a `Feedback`, in order."""

_HEAD = encode("Feedback", {"kind": "shown", "event_id": "", "user": "", "arm": 0})[:HEADER_BYTES]
_REWARD = struct.Struct("<d")
_LEAST = HEADER_BYTES + 4 + _REWARD.size
"""The shortest record: a kind, two empty ids, an arm and a reward."""


def _cut(value: bytes) -> _Cut | None:
    """The fields of a record of one event, with ids not yet checked; None if it needs the codec."""
    last = len(value) - _REWARD.size
    if len(value) < _LEAST or not value.startswith(_HEAD):
        return None
    kind, length = value[HEADER_BYTES], value[HEADER_BYTES + 1]
    middle = HEADER_BYTES + 2 + length // 2
    if kind not in (0, 2) or length % 2 or length > 127 or middle >= last - 1:
        return None
    length = value[middle]
    end = middle + 1 + length // 2
    if length % 2 or length > 127 or not end < last <= end + 2 or value[end] % 2 or value[last - 1] > 127:
        return None
    arm = value[end] >> 1 if last == end + 1 else (value[end] & 127) >> 1 | value[end + 1] << 6
    (reward,) = _REWARD.unpack_from(value, last)
    # The arm has one byte, or two if the first says so; and NaN is not from 0 to 1.
    if (value[end] > 127) != (last == end + 2) or not 0.0 <= reward <= 1.0:
        return None
    ids = value[HEADER_BYTES + 2 : end].decode("latin-1")
    first = middle - HEADER_BYTES - 2
    return kind >> 1, ids[:first], ids[first + 1 :], arm, reward


def _take_cut(columns: FeedbackColumns, records: Sequence[LogRecord], cuts: Sequence[_Cut]) -> bool:
    """Take records that were cut; False, and nothing is taken, if an id needs a closer look."""
    kinds, event_ids, users, arms, rewards = map(list, zip(*cuts, strict=True))
    if not (all_plain(event_ids) and all_plain(users)):
        return False
    offsets, times_ms, _ = zip(*records, strict=True)
    given = (kinds, event_ids, users, arms, rewards, offsets, [0] * len(cuts), times_ms)
    _extend(columns, given)
    return True


def _extend(columns: FeedbackColumns, given: Sequence[Sequence[Any]]) -> None:
    """Append rows, given as columns in the order of `FeedbackColumns`."""
    kept: tuple[list[Any], ...] = (columns.kinds, columns.event_ids, columns.users, columns.arms, columns.rewards)
    for column, more in zip((*kept, columns.offsets, columns.rows, columns.timestamps_ms), given, strict=True):
        column.extend(more)


def _feedback_event(columns: FeedbackColumns, offset: int, timestamp_ms: int, fields: dict[str, Any]) -> None:
    given = fields["event_id"], fields["user"], fields["arm"], fields["reward"]
    fault = feedback_fault(*given)
    if fault is not None:
        columns.rejects.append(Reject(offset, 0, fault))
        return
    _extend(columns, [[one] for one in (_KINDS[fields["kind"]], *given, offset, 0, timestamp_ms)])


def _feedback_batch(columns: FeedbackColumns, offset: int, timestamp_ms: int, fields: dict[str, Any]) -> None:
    event_ids, users = fields["event_ids"], fields["users"]
    n = len(event_ids)
    lengths = (len(users), len(fields["kinds"]), len(fields["arms"]), len(fields["rewards"]))
    if lengths != (n, n, 4 * n, 8 * n):
        columns.rejects.append(Reject(offset, -1, Reason.COLUMNS_DISAGREE))
        return
    kinds = np.frombuffer(fields["kinds"], dtype=np.uint8)
    arms = np.frombuffer(fields["arms"], dtype=batches.INT32)
    rewards = np.frombuffer(fields["rewards"], dtype=batches.FLOAT64)
    table: list[list[Any]] = [event_ids, users, arms.tolist(), rewards.tolist(), kinds.tolist()]
    rows: Sequence[int] = range(n)
    vectors = (kinds <= HARM) & (arms >= 0) & (rewards >= 0.0) & (rewards <= 1.0)
    if not (bool(vectors.all()) and all_plain(event_ids) and all_plain(users)):
        faults = [_feedback_row_fault(*row) for row in zip(*table, strict=True)]
        columns.rejects.extend(Reject(offset, row, fault) for row, fault in enumerate(faults) if fault)
        keep = [fault is None for fault in faults]
        table = [list(compress(column, keep)) for column in table]
        rows = list(compress(rows, keep))
    event_ids, users, arm_list, reward_list, kind_list = table
    n = len(rows)
    _extend(columns, (kind_list, event_ids, users, arm_list, reward_list, [offset] * n, rows, [timestamp_ms] * n))


def _feedback_row_fault(event_id: str, user: str, arm: int, reward: float, kind: int) -> Reason | None:
    return feedback_fault(event_id, user, arm, reward) or (Reason.UNKNOWN_KIND if kind > HARM else None)
