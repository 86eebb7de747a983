"""Converts the log records of one partition to columns, whether a record holds one event or a batch.

Events, columnar batches, phase ends and erasures may alternate. Rows come out in log order, and a position is (offset,
row). A refused record or row becomes a `Reject`, and all others are kept: no content of a record raises an error.
"""

from __future__ import annotations

from hushstream.schemas.context_columns import (
    ContextColumns,
    ForgetMark,
    PhaseEndMark,
    RowForm,
    gather_contexts,
)
from hushstream.schemas.feedback_columns import REWARD, SHOWN, FeedbackColumns, gather_feedback
from hushstream.schemas.rows import MAX_ID_BYTES, LogRecord, Reject

__all__ = [
    "MAX_ID_BYTES",
    "REWARD",
    "SHOWN",
    "ContextColumns",
    "FeedbackColumns",
    "ForgetMark",
    "LogRecord",
    "PhaseEndMark",
    "Reject",
    "RowForm",
    "gather_contexts",
    "gather_feedback",
]
