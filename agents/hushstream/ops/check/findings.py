"""The findings of verify, by record and in total, without payloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hushstream.engine.journal.notes import Note
from hushstream.engine.records import TopicPartition

_SHOWN = 20


class Status(StrEnum):
    """What verify says of one record."""

    EQUAL = "equal"
    """Recomputed, with the same bytes."""
    FLOAT_TIE = "float_tie"
    """A decision whose arm another CPU's rounding may have chosen: both scores are as good as equal."""
    REPEATED = "repeated"
    """Identical to a record that was explained before: sends are at least once."""
    OFF_CHAIN = "off_chain"
    """A journal record made with the zone's key that another record forestalled; every reader skips it."""
    ERASED = "erased"
    """Its inputs were taken out of this copy for a user whose tombstone is in it: not to be checked any more."""
    CHANGED = "changed"
    """Not what the logs and the key give; missing where it must be; or there without a reason."""
    UNSENT = "unsent"
    """It follows from one of the journal's last records, and is not there: a worker ended before it had sent it, and
    the next one will. Nothing that came later is there."""
    NOTED = "noted"
    """An operator's note under the key of the zone, or a record of nobody that one names."""
    SKIPPED = "skipped"
    """From before the checkpoint with which the check began: not recomputed."""
    UNCHECKABLE = "uncheckable"
    """Its inputs were taken by retention, its key is not at hand, or it follows something changed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One record, or one that is missing, that is changed or cannot be checked.

    Attributes:
        status: `Status.CHANGED` or `Status.UNCHECKABLE`.
        topic, partition: where.
        offset: of the record; None for one that is missing, or for a whole partition.
        reason: why, in one line.
    """

    status: Status
    topic: str
    partition: int
    offset: int | None
    reason: str

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "status": str(self.status),
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "reason": self.reason,
        }

    def __str__(self) -> str:
        """One line."""
        place = "" if self.offset is None else f" offset {self.offset}"
        return f"{self.status}: {self.topic}/{self.partition}{place}: {self.reason}"


@dataclass(slots=True)
class Tally:
    """Counts and findings of one partition, as one role sees it.

    Attributes:
        role: whose output or journal it is.
        source: topic and partition.
        counts: records by status.
        findings: what is not equal, with its reason.
        uncovered: records of the role's own inputs that its journal does not cover yet, by input partition;
            only on a journal's tally. Nothing followed from them, so nothing can be said of them.
        key_ids: public ids of the keys that a journal has been under, in hexadecimal, the one in force last; empty
            for outputs, and for roles without a key.
        note: where the check of a journal began, and what therefore was not recomputed; empty at its first record.
        lost: input that an operator has let the role go on without; only on a journal's tally.
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
        """Count records and say why."""
        self.counts[status] += number
        self.findings.append(Finding(status, *self.source, offset, reason))

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "role": self.role,
            "topic": self.source[0],
            "partition": self.source[1],
            **{str(status): self.counts[status] for status in Status},
            "uncovered": {f"{topic}/{partition}": number for (topic, partition), number in self.uncovered.items()},
            "key_ids": self.key_ids,
            "note": self.note,
            "accepted_losses": [note.as_json() for note in self.lost],
        }


@dataclass(frozen=True, slots=True)
class Verified:
    """What verify found.

    Attributes:
        deployment: whose logs.
        tallies: one for each journal and each output partition of the roles that were asked for.
        unchecked: the roles that were asked for and of which nothing is known: their key is not at hand, or a journal
            of theirs has no beginning that a check could begin with.
    """

    deployment: str
    tallies: tuple[Tally, ...]
    unchecked: tuple[str, ...] = ()

    @property
    def totals(self) -> Mapping[Status, int]:
        """Records by status, over everything."""
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
        """0; 1 when something is changed; 2 when nothing is, and a role was not checked, or an output is not there yet.

        An output that was cut off the end of a log looks like one that was not sent: so this is no pass. A worker of
        the role sends it when it starts.
        """
        return 1 if self.totals[Status.CHANGED] else 2 if self.unchecked or self.totals[Status.UNSENT] else 0

    def of(self, topic: str) -> Mapping[Status, int]:
        """Records of one topic by status."""
        return _sum(tally for tally in self.tallies if tally.source[0] == topic)

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "deployment": self.deployment,
            "ok": self.ok,
            "unchecked": list(self.unchecked),
            "totals": {str(status): number for status, number in self.totals.items()},
            "partitions": [tally.as_json() for tally in self.tallies],
            "findings": [finding.as_json() for finding in self.findings],
        }

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
    note = f"; {waiting} input records not covered yet" if waiting else ""
    keys = f"; key {' then '.join(tally.key_ids)}" if tally.key_ids else ""
    begun = f"; {tally.note}" if tally.note else ""
    return f"{tally.role} {tally.source[0]}/{tally.source[1]}: {said}{note}{keys}{begun}"
