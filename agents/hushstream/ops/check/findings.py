"""The findings of `verify`, for each record and in total. They contain no payloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from hushstream.engine.journal.notes import Note
from hushstream.engine.records import TopicPartition

_SHOWN = 20


class Status(StrEnum):
    """The result of `verify` for one record."""

    EQUAL = "equal"
    """It was recomputed, and the bytes are equal."""
    FLOAT_TIE = "float_tie"
    """A decision with another arm; the scores nearly tie, so another processor's rounding may be the reason."""
    REPEATED = "repeated"
    """It is equal to a record that was explained before: each output is sent at least once."""
    OFF_CHAIN = "off_chain"
    """A journal record that was made with the zone's key, but is off the chain, because another record came first;
    readers skip it."""
    ERASED = "erased"
    """Its inputs were erased from this copy for a user whose deletion request is in it, so it cannot be checked."""
    CHANGED = "changed"
    """It differs from what the logs and the key give, or is missing, or is not explained by any journal."""
    UNSENT = "unsent"
    """It follows from one of the journal's last records, is missing, and no later output is there: a worker ended
    before it had sent it. The next worker will send it."""
    NOTED = "noted"
    """An operator's note under the key of the zone, or a foreign record that a note names."""
    SKIPPED = "skipped"
    """It is from before the checkpoint with which the check began, and was not recomputed."""
    UNCHECKABLE = "uncheckable"
    """Its inputs were deleted by retention, its key was not given, or it follows a changed record."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A record that is changed, missing or cannot be checked.

    Attributes:
        status: `Status.CHANGED` or `Status.UNCHECKABLE`.
        topic, partition: where the record is, or should be.
        offset: the record's offset; None if it is missing, or for a whole partition.
        reason: the reason, in one line.
    """

    status: Status
    topic: str
    partition: int
    offset: int | None
    reason: str

    def __str__(self) -> str:
        """One line."""
        place = "" if self.offset is None else f" offset {self.offset}"
        return f"{self.status}: {self.topic}/{self.partition}{place}: {self.reason}"


@dataclass(slots=True)
class Tally:
    """The counts and findings of one partition, for one role.

    Attributes:
        role: the role whose output or journal it is.
        source: topic and partition.
        counts: records by status.
        findings: the records that are changed, missing or cannot be checked.
        uncovered: how many input records the journal does not cover yet, by input partition; only for a journal. They
            have no outputs yet, so they cannot be checked.
        key_ids: the public ids of the journal's keys, in hexadecimal, the current one last; empty for outputs, and for
            roles without a key.
        note: where the check of a journal began, and what it did not recompute; empty if it began at the first record.
        lost: the input whose loss an operator has accepted; only for a journal.
    """

    role: str
    source: TopicPartition
    counts: Counter[Status] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    uncovered: dict[TopicPartition, int] = field(default_factory=dict)
    key_ids: list[str] = field(default_factory=list)
    note: str = ""
    lost: list[Note] = field(default_factory=list)

    def count(self, status: Status, number: int = 1) -> None:
        """Count records that need no reason."""
        self.counts[status] += number

    def find(self, status: Status, offset: int | None, reason: str, number: int = 1) -> None:
        """Count records, and add a finding with the reason."""
        self.counts[status] += number
        self.findings.append(Finding(status, *self.source, offset, reason))

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "role": self.role, "topic": self.source[0], "partition": self.source[1],
            **{str(status): self.counts[status] for status in Status},
            "uncovered": {f"{topic}/{partition}": number for (topic, partition), number in self.uncovered.items()},
            "key_ids": self.key_ids, "note": self.note, "accepted_losses": [note.as_json() for note in self.lost],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of `verify`.

    Attributes:
        deployment: the name of the deployment.
        tallies: one for each journal and each output partition of the requested roles.
        unchecked: the requested roles that could not be checked: their key was not given, or a check can begin neither
            at the first record of one of their journals nor at a published state.
    """

    deployment: str
    tallies: tuple[Tally, ...]
    unchecked: tuple[str, ...] = ()

    @property
    def totals(self) -> Mapping[Status, int]:
        """Records by status, in total."""
        return {status: sum(tally.counts[status] for tally in self.tallies) for status in Status}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every finding; changes first."""
        found = [finding for tally in self.tallies for finding in tally.findings]
        return tuple(sorted(found, key=lambda finding: finding.status is not Status.CHANGED))

    @property
    def ok(self) -> bool:
        """Whether every role was checked and nothing is changed (single records may be uncheckable: see `Status`)."""
        return not self.exit_code

    @property
    def exit_code(self) -> int:
        """1 if something is changed; otherwise 2 if a role was not checked or an output is not there yet; otherwise 0.

        An output that was cut off the end of a log looks like one that was not sent yet, so this does not pass. A
        worker of the role sends such an output when it starts.
        """
        return 1 if self.totals[Status.CHANGED] else 2 if self.unchecked or self.totals[Status.UNSENT] else 0

    def of(self, topic: str) -> Mapping[Status, int]:
        """Records of one topic by status."""
        return _sum(tally for tally in self.tallies if tally.source[0] == topic)

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "deployment": self.deployment, "ok": self.ok, "unchecked": list(self.unchecked),
            "totals": {str(status): number for status, number in self.totals.items()},
            "partitions": [tally.as_json() for tally in self.tallies],
            "findings": list(map(asdict, self.findings)),
        }  # fmt: skip

    def as_text(self) -> str:
        """A verdict, one line a partition, and the first findings."""
        totals = self.totals
        said = ", ".join(f"{totals[status]} {status}" for status in Status if totals[status]) or "nothing to check"
        verdict = " and ".join(
            (["CHANGED"] if totals[Status.CHANGED] else [])
            + ([f"NOT CHECKED: {', '.join(self.unchecked)}"] if self.unchecked else [])
        )
        lines = [f"verify {self.deployment}: {verdict or 'ok'} ({said})"]
        lines += [f"  {_in_words(tally)}" for tally in self.tallies]
        lines += [str(finding) for finding in self.findings[:_SHOWN]]
        if len(self.findings) > _SHOWN:
            lines.append(f"and {len(self.findings) - _SHOWN} more")
        return "\n".join(lines) + "\n"


def _sum(tallies: Iterable[Tally]) -> Mapping[Status, int]:
    total: Counter[Status] = Counter()
    for tally in tallies:
        total.update(tally.counts)
    return {status: total[status] for status in Status}


def _in_words(tally: Tally) -> str:
    said = ", ".join(f"{tally.counts[status]} {status}" for status in Status if tally.counts[status]) or "empty"
    waiting = sum(tally.uncovered.values())
    note = f"; {waiting} input records came after its last one" if waiting else ""
    keys = f"; key {' then '.join(tally.key_ids)}" if tally.key_ids else ""
    begun = f"; {tally.note}" if tally.note else ""
    return f"{tally.role} {tally.source[0]}/{tally.source[1]}: {said}{note}{keys}{begun}"
