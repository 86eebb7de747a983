"""Converts the feedback of one partition, as events or in batches, to columns; refusals as in `gather_contexts`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np

from hushstream.schemas import batches
from hushstream.schemas.codec import CodecError, decode
from hushstream.schemas.rows import MAX_ID_BYTES, LogRecord, Reason, Reject, all_plain, feedback_fault

SHOWN, REWARD = 0, 1
"""The kinds of feedback, as in the columns of a batch record."""

_FEEDBACK = frozenset({"Feedback", "FeedbackBatch"})
_KINDS = {"shown": SHOWN, "reward": REWARD}


@dataclass(frozen=True, slots=True)
class FeedbackColumns:
    """n accepted feedback rows in log order; every list has n items."""

    kinds: list[int]
    """`SHOWN` or `REWARD`."""
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
    return columns


def _feedback_event(columns: FeedbackColumns, offset: int, timestamp_ms: int, fields: dict[str, Any]) -> None:
    event_id, user, arm, reward = fields["event_id"], fields["user"], fields["arm"], fields["reward"]
    names = event_id + user
    # A cheap test, which nearly all good events pass: if both names together are short enough, each of them is.
    short = event_id.strip() and user.strip() and len(names) <= MAX_ID_BYTES and names.isascii() and names.isprintable()
    if not (short and arm >= 0 and 0.0 <= reward <= 1.0):
        fault = feedback_fault(event_id, user, arm, reward)
        if fault is not None:
            columns.rejects.append(Reject(offset, 0, fault))
            return
    columns.kinds.append(_KINDS[fields["kind"]])
    columns.event_ids.append(event_id)
    columns.users.append(user)
    columns.arms.append(arm)
    columns.rewards.append(reward)
    columns.offsets.append(offset)
    columns.rows.append(0)
    columns.timestamps_ms.append(timestamp_ms)


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
    vectors = (kinds <= REWARD) & (arms >= 0) & (rewards >= 0.0) & (rewards <= 1.0)
    if not (bool(vectors.all()) and all_plain(event_ids) and all_plain(users)):
        faults = [_feedback_row_fault(*row) for row in zip(*table, strict=True)]
        columns.rejects.extend(Reject(offset, row, fault) for row, fault in enumerate(faults) if fault)
        keep = [fault is None for fault in faults]
        table = [list(compress(column, keep)) for column in table]
        rows = list(compress(rows, keep))
    event_ids, users, arm_list, reward_list, kind_list = table
    columns.kinds.extend(kind_list)
    columns.event_ids.extend(event_ids)
    columns.users.extend(users)
    columns.arms.extend(arm_list)
    columns.rewards.extend(reward_list)
    columns.offsets.extend([offset] * len(rows))
    columns.rows.extend(rows)
    columns.timestamps_ms.extend([timestamp_ms] * len(rows))


def _feedback_row_fault(event_id: str, user: str, arm: int, reward: float, kind: int) -> Reason | None:
    return feedback_fault(event_id, user, arm, reward) or (Reason.UNKNOWN_KIND if kind > REWARD else None)
