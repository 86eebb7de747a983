"""Errors that stop a worker or one of its partitions; each message is one line that an operator can act on."""

from __future__ import annotations

from collections.abc import Callable

from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    OutOfOrderSequenceNumber,
    TopicAuthorizationFailedError,
)

from hushstream.schemas.errors import HushstreamError

DENIED = (ClusterAuthorizationFailedError, GroupAuthorizationFailedError, TopicAuthorizationFailedError)
"""The broker's errors when an access rule forbids something: trying again does not help."""


class WorkerError(HushstreamError):
    """The whole worker cannot go on; the process exits non-zero with this message."""


class BrokerUnreachable(WorkerError):
    """No broker answered within the stated time."""


class BrokerVersionWrong(WorkerError):
    """The broker speaks another version of the protocol."""


class LogsMoved(WorkerError):
    """The deployment's logs were moved to another broker; what goes on here would be a second copy of it."""


class TopicMissing(WorkerError):
    """A topic that the role needs does not exist."""


class PartitionCountWrong(WorkerError):
    """A topic has another number of partitions than its role was set up with."""


class TopicSettingsWrong(WorkerError):
    """A topic's settings on the broker differ from its declaration, such as a shorter retention."""


class AccessDenied(WorkerError):
    """The broker's access rules forbid what the role must do."""


class ProducerOutOfStep(WorkerError):
    """The broker refuses all further records of this producer for a partition. Only a new producer can go on."""


class SessionRefused(WorkerError):
    """The broker does not accept the configured length of the group session."""


class AllStopped(WorkerError):
    """Every partition of the worker was stopped.

    Attributes:
        reason: why the last partition was stopped, as a code.
    """

    def __init__(self, message: str, reason: str) -> None:
        """Keep the message, and the reason code of the last partition that was stopped."""
        super().__init__(message)
        self.reason = reason


class NoPartition(WorkerError):
    """The group gave this worker no partition within the stated time."""


class PartitionError(HushstreamError):
    """One partition cannot go on; the other partitions of the worker go on."""


class InputsDeleted(PartitionError):
    """Records that must be read (again) are no longer in their log."""


class JournalTruncated(PartitionError):
    """The journal's first records were deleted or altered, and no snapshot covers them."""


Command = Callable[[str], str]
"""Turns a subcommand, such as ``topics check``, into a whole command for this deployment (`WorkerSettings.command`)."""


class TopicsReplaced(PartitionError):
    """A log is shorter than what was already folded from it: it was wiped or replaced."""


def replaced(command: Command, source: tuple[str, int], folded: int, why: str) -> TopicsReplaced:
    """The error for an input that is not the log that was folded.

    Args:
        command: completes a subcommand.
        source: the input.
        folded: the offset up to which it was folded, by the state and by the journal.
        why: what shows it, as the rest of the sentence.
    """
    repair = command(f"logs repair input {source[0]} --partition {source[1]} --at {folded} --write")
    return TopicsReplaced(
        f"{source[0]}/{source[1]}: was folded up to offset {folded}{why}. Bring the topic back; or, if it was deleted "
        f"and created again, continue its offsets with `{repair}` and start this worker again: it then says what to "
        f"give to --accept-loss, to go on without the lost records"
    )


def ends_at(end: int) -> str:
    """What shows that a log was replaced (`replaced`): it ends at this offset."""
    return f", but the log ends at {end}; the topic was wiped or replaced"


class JournalLost(HushstreamError):
    """An append failed, or another writer continued the chain first: the partition reloads."""


class DiskRefused(JournalLost):
    """The disk of the state folder refused a write: the partition is reloaded, or given up if writes keep failing."""


def code_of(reason: BaseException) -> str:
    """A reason code for logs and metrics: the error's name in snake case; for `AllStopped` its own reason code."""
    if isinstance(reason, AllStopped):
        return reason.reason
    name = type(reason).__name__
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def from_client(error: Exception, doing: str) -> HushstreamError:
    """Turn an error of the Kafka client into ours: `JournalLost` reloads the partition, the others end the worker."""
    if isinstance(error, DENIED):
        return AccessDenied(f"{doing}: the broker's access rules forbid it ({error})")
    if isinstance(error, OutOfOrderSequenceNumber):
        return ProducerOutOfStep(
            f"{doing}: a batch was given up after the broker had not answered for long, and the broker refuses what "
            f"follows it; start this worker again"
        )
    return JournalLost(f"{type(error).__name__} while {doing}")
