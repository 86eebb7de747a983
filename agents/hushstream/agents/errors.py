"""Why a worker or one of its partitions stops; every message is one line that an operator can act on."""

from __future__ import annotations

from hushstream.schemas.errors import HushstreamError


class WorkerError(HushstreamError):
    """The whole worker cannot go on; the process exits non-zero with this message."""


class BrokerUnreachable(WorkerError):
    """No broker answered within the stated time."""


class TopicMissing(WorkerError):
    """A topic that the role needs does not exist."""


class PartitionCountWrong(WorkerError):
    """A topic has another number of partitions than its role was set up with."""


class NoPartition(WorkerError):
    """The worker held no partition within the stated time."""


class PartitionError(HushstreamError):
    """One partition cannot go on; the others do."""


class InputsDeleted(PartitionError):
    """Records that must be read (again) are no longer in their log."""


class JournalTruncated(PartitionError):
    """The journal's first records were deleted and no snapshot covers them."""


class TopicsReplaced(PartitionError):
    """A log is shorter than what was already folded from it: it was wiped or replaced."""


class JournalLost(HushstreamError):
    """An append failed, or another writer continued the chain first: the partition reloads."""
