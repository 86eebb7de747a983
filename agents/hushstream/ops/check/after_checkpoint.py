"""Checks a journal that was followed from a checkpoint against topics that are kept for ever: marks and ledger.

These checks replace those of the records before the checkpoint. Marks show whether a journal was rolled back, whatever
state the check begins with. Ledger entries from before the checkpoint cannot be compared with journal records, but
their sum may not be less than what the state was charged.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from hushstream.agents.kafka.commits import journal_name
from hushstream.agents.worker.roles import MachineMaker, role_topics
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.role import Role
from hushstream.engine.journal.marks import MarkSeal, ReleaseEvidence
from hushstream.engine.journal.notes import NoteSeal, is_noted, notes_in
from hushstream.engine.machine import releasing
from hushstream.ops.check.checkpoints import Restored
from hushstream.ops.check.findings import Status
from hushstream.ops.check.journal import Walk
from hushstream.ops.log_copy import LogCopy
from hushstream.ops.spending.copied_marks import copied_marks
from hushstream.ops.spending.ledger_book import LedgerBook, LedgerRecord
from hushstream.privacy.amounts import Cost

_SHOWN_BYTES = 8


def described(begun: Restored, logs: LogCopy, sealed: bool) -> str:
    """Say where a check began and what it did not recompute; ``sealed``: the state is under a key of the zone."""
    checkpoint, low = begun.checkpoint, logs.part(begun.machine.journal).low
    published = datetime.fromtimestamp(begun.time_ms / 1000, UTC).isoformat(timespec="seconds")
    deleted = f": what lay before offset {low} was deleted, the rest" if low else ","
    unsealed = "" if sealed else "; the state is under no key, so whoever may write its topic could have made it"
    return (
        f"begun behind record {checkpoint.sequence} with the state {begun.publication[:_SHOWN_BYTES].hex()} published "
        f"at {published}; records 0 to {checkpoint.sequence} were not recomputed{deleted} skipped on request"
        f"{unsealed}"
    )


def compare_with_kept_topics(found: Walk, role: Role, system: System, make: MachineMaker, logs: LogCopy) -> None:
    """Compare a journal, which was followed to its end, with marks and ledger; report what contradicts it."""
    assert found.begun is not None
    # In a copy of a busy deployment the journal may be ahead of marks and ledger, or behind them.
    status = Status.CHANGED if logs.consistent else Status.UNCHECKABLE
    for why in (*_by_marks(found, found.begun, role, system, make, logs), *_by_ledger(found.begun, role, system, logs)):
        found.tally.find(status, None, why)


def _by_marks(
    found: Walk, begun: Restored, role: Role, system: System, make: MachineMaker, logs: LogCopy
) -> Iterator[str]:
    if role.marks is None:
        return
    home = begun.machine.journal[1]
    place, marks = (system.config.deployment, role.name, home), (role.marks, home)
    notes = notes_in(logs.part(begun.machine.journal).records, NoteSeal(*place, make.state_keys())).values()
    unpack = MarkSeal(*place, make.mark_keys()).unpack
    read = copied_marks(logs.part(marks), unpack, role.name, home, lambda offset: is_noted(notes, marks, offset))
    if read.missing:
        yield f"{role.marks}/{home}: {read.missing}"
    suspicion = ReleaseEvidence(read.marks).suspicion(journal_name(begun.genesis), found.sequence)
    if suspicion:
        yield f"by the marks on {role.marks}/{home}: {suspicion}"


def _by_ledger(begun: Restored, role: Role, system: System, logs: LogCopy) -> Iterator[str]:
    machine, home = begun.machine, begun.machine.journal[1]
    spends = releasing(machine)
    charged = None if spends is None else spends.charged
    topics = [topic for topic in role_topics(role, system).writes if topic in system.ledgers]
    if charged is None or not topics:
        return
    entered = _entered(topics[0], home, system, logs)
    if not charged.fits(entered):
        yield f"{topics[0]}/{home} holds {entered}, less than the {charged} that the state was charged by its end"


def _entered(topic: str, home: int, system: System, logs: LogCopy) -> Cost:
    """The sum of the entries in one partition of a ledger."""
    terms = system.ledgers[topic]
    book = LedgerBook(terms)
    for value in dict.fromkeys(record.value for record in logs.part((topic, home)).records):
        seen = LedgerRecord(value, system, terms)
        if not seen.problem:
            book.enter(seen.entry)
    return next((account.spent for account in book.deployments()), Cost(0))
