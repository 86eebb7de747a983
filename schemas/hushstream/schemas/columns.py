"""From the log records of one partition to columns, whichever of the two forms the records have.

Events, columnar batches, phase ends and erasures may alternate; rows come out in log order, and a position is (offset,
row). What is refused becomes a `Reject` and the rest goes on: nothing here raises because of what a record holds.
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
