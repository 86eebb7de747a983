"""`verify` recomputes everything that was published from the logs and the journals, and compares.

For each role and home partition, a fresh machine follows the journal from its genesis and replays every record from the
inputs that the record names. The output topics must hold the outputs of these records with the same bytes, and nothing
else. A role is checked with its own zone's key; the aggregator needs none. Inputs that no journal record covers yet are
not checked, as they have no outputs yet.

A check may begin with a published state instead of the genesis (`hushstream.ops.check.checkpoints.From`). Then it says
that the records before it were not recomputed. Instead, journal and ledger are compared with the topics that are kept
for ever: release marks and the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from pathlib import Path

from hushstream.agents.kafka.administration import journal_name
from hushstream.agents.process import no_full_collections
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import role_topics
from hushstream.engine.declare.declaration import System, topic_of
from hushstream.engine.declare.role import Role
from hushstream.engine.journal.marks import ReleaseEvidence
from hushstream.engine.journal.notes import is_noted, notes_in
from hushstream.engine.records import TopicPartition
from hushstream.ops.budget import LedgerBook, LedgerRecord
from hushstream.ops.check.checkpoints import From, Restored, beginner, begun
from hushstream.ops.check.findings import Status, Tally, Verified
from hushstream.ops.check.journal import Walk, Walker, value_digest
from hushstream.ops.check.matching import Writer, match
from hushstream.ops.connection import Connection
from hushstream.ops.export import open_export
from hushstream.ops.log_copy import (
    LogCopy,
    Progress,
    RoleLogs,
    Steps,
    copied_marks,
    copy,
    joined,
    lacking_zones,
    mark_topics,
    roles_asked,
    unreported,
)
from hushstream.privacy.amounts import Cost, count_text
from hushstream.privacy.errors import KeyFileError, RetiredKey
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import PartitionRule, Topic

_SHOWN_BYTES = 8


def verify(
    logs: LogCopy,
    system: System,
    keys: KeySource,
    roles: Collection[str] | None = None,
    start: From = From.GENESIS,
    progress: Progress = unreported,
) -> Verified:
    """Verify what roles published.

    Args:
        logs: a copy of the roles' topics (`verified_topics`).
        system: the deployment.
        keys: the given keys; a role whose key is missing is not checked, and is named in the result.
        roles: the roles; None for all, which is for an owner who holds all keys.
        start: where the check of each journal begins.
        progress: gets the number of journal records that were recomputed.

    Raises:
        KeyFileError: a key file is there but cannot be used.
        HushstreamError: the deployment has no such role.
    """
    tallies: list[Tally] = []
    unchecked = []
    walked: dict[str, Mapping[int, Walk]] = {}
    asked = roles_asked(system, roles)
    steps = Steps(progress, _journal_records(asked, logs), "recomputing journal records")
    for place, role in enumerate(asked, start=1):
        if lacking := lacking_zones(role.key_zones, keys):
            unchecked.append(role.name)
            tallies += _without_key(role, system, lacking, logs)
        else:
            walked[role.name] = _walks(role, system, keys, logs, start, steps)
            unchecked += [role.name] if _has_no_beginning(walked[role.name], logs) else []
        steps.up_to(_journal_records(asked[:place], logs))
    shown: set[str] = set()
    for role in (role for role in system.roles if role.name in walked):
        tallies += [found.tally for found in walked[role.name].values()]
        tallies += _beyond_partitions(role, system.partitions[role.journal], logs)
        for topic in role_topics(role, system).writes:
            if topic not in shown:
                tallies += _topic(role, topic, walked, system, logs)
        shown |= set(role.writes)
    return Verified(system.config.deployment, tuple(tallies), tuple(unchecked))


def verify_export(
    directories: Path | Sequence[Path],
    system: System,
    keys: KeySource,
    roles: Collection[str] | None = None,
    start: From = From.GENESIS,
    progress: Progress = unreported,
) -> Verified:
    """Verify an export (`hushstream.ops.export`), or several that continue one another, the oldest first.

    Raises:
        DamagedExport: an export is not complete.
        KeyFileError: a key file is there but cannot be used.
        HushstreamError: the deployment has no such role, the exports were made for another one, or do not continue one
            another (`hushstream.ops.log_copy.joined`).
    """
    named = [directories] if isinstance(directories, Path) else list(directories)
    compacted = {topic.name for topic in system.topics if topic.cleanup == "compact"}
    logs = joined([open_export(directory) for directory in named], compacted)
    absent = verified_topics(system, roles, start) - {topic for topic, _ in logs.parts}
    if absent:
        raise HushstreamError(
            f"verify: expected an export with {', '.join(sorted(absent))}, {', '.join(map(str, named))} has none of "
            f"it; name the role that it was made for with --role"
        )
    return verify(logs, system, keys, roles, start, progress)


def verify_live(
    connection: Connection,
    system: System,
    keys: KeySource,
    roles: Collection[str] | None = None,
    start: From = From.GENESIS,
    progress: Progress = unreported,
) -> Verified:
    """Verify what a broker holds now. The roles' topics are copied into memory; export large ones first.

    Raises:
        HushstreamError: the topics cannot be read (`hushstream.ops.log_copy.open_logs`), or a key cannot be used.
    """
    topics = verified_topics(system, roles, start)
    logs = copy(connection, system.partitions, topics, progress, mark_topics(system))
    return verify(logs, system, keys, roles, start, progress)


def verified_topics(system: System, roles: Collection[str] | None = None, start: From = From.GENESIS) -> frozenset[str]:
    """The topics that a check of these roles (None: of all) reads if it begins at ``start``.

    Raises:
        HushstreamError: the deployment has no such role.
    """
    topics = [role_topics(role, system) for role in roles_asked(system, roles)]
    return frozenset().union(*(each.recomputed if start is From.GENESIS else each.all for each in topics))


def _without_key(role: Role, system: System, lacking: Collection[str], logs: LogCopy) -> list[Tally]:
    tallies = []
    for partition in range(system.partitions[role.journal]):
        tally = Tally(role.name, (role.journal, partition))
        reason = f"not given: the key of {' and of '.join(lacking)}"
        tally.find(Status.UNCHECKABLE, None, reason, len(logs.part(tally.source).records))
        tallies.append(tally)
    return tallies


def _has_no_beginning(walks: Mapping[int, Walk], logs: LogCopy) -> bool:
    """Whether one of these journals could not be checked at all, because its beginning is missing."""
    return any(logs.part(found.tally.source).low > 0 and found.begun is None for found in walks.values())


def _journal_records(roles: Collection[Role], logs: LogCopy) -> int:
    return sum(len(part.records) for role in roles for _, part in logs.of_topic(role.journal))


def _walks(role: Role, system: System, keys: KeySource, logs: LogCopy, start: From, steps: Steps) -> Mapping[int, Walk]:
    """Walk through the journals of a role; the results by home partition."""
    of = RoleLogs(role, system, keys)
    with no_full_collections():
        walks = {home: walked(of, home, start, logs, steps.step) for home in of.homes}
    for home, found in walks.items():
        # A journal that could not be followed is reported already; marks, ledger and proofs say nothing about it.
        if not found.complete or found.tally.counts[Status.CHANGED]:
            continue
        if found.begun is not None:
            _compare_with_kept_topics(found, found.begun, of, logs)
            continue
        for offset, why in role.proof(system.core, home, logs):
            found.tally.find(Status.CHANGED, offset, why)
    return walks


def walked(of: RoleLogs, home: int, start: From, logs: LogCopy, on_record: Callable[[], None]) -> Walk:
    """Follow one journal from a published state, in the requested order, or from its genesis."""
    place = (of.role.journal, home)
    journal, restored, remarks = logs.part(place), None, list[str]()
    if start is not From.GENESIS:
        sources = (*of.make(home).inputs, *of.make(home).broadcasts)
        lows = {source: logs.part(source).low for source in sources}
        notes = notes_in(journal.records, of.notes(home)).values()
        states = logs.part((of.role.state.name, home))
        restored, passed_over = begun(beginner(of, home, states, lows, notes), journal, start)
        beginning = "no state to begin with" if restored is None else _described(restored, of.role, logs)
        remarks = [beginning, *(f"(passed over: {why})" for why in passed_over)]
    try:
        machine = of.machine(home, journal)[0] if restored is None else restored.machine
    except (RetiredKey, KeyFileError, CodecError) as error:
        found = Walk(Tally(of.role.name, place), complete=False)
        status = Status.UNCHECKABLE if isinstance(error, RetiredKey) else Status.CHANGED
        found.tally.find(status, journal.low, str(error), len(journal.records))
    else:
        found = Walker(of, machine, logs, restored).run(on_record)
    found.tally.note = " ".join(filter(None, (*remarks, found.tally.note)))
    return found


def _topic(
    role: Role, topic: str, walked: Mapping[str, Mapping[int, Walk]], system: System, logs: LogCopy
) -> list[Tally]:
    """Check a topic to which a role wrote, and other roles whose journals were followed.

    If another role, whose journal was not followed, writes it too, an unexplained record may be from that role.
    """
    writing = [one.name for one in system.roles if topic in role_topics(one, system).writes]
    walks = [(home, walk) for name in writing for home, walk in walked.get(name, {}).items()]
    everybody = set(writing) <= walked.keys()
    there = {(topic, partition) for partition, _ in logs.of_topic(topic)}
    due = {source for _, found in walks for source in found.expected if source[0] == topic}
    declared = {(topic, partition) for partition in range(system.partitions[topic])}
    return [_outputs(role, source, walks, everybody, system, logs) for source in sorted(there | due | declared)]


def _beyond_partitions(role: Role, homes: int, logs: LogCopy) -> list[Tally]:
    """Report journals of home partitions that the deployment does not have."""
    tallies = []
    for partition, part in logs.of_topic(role.journal):
        if partition >= homes and part.records:
            tally = Tally(role.name, (role.journal, partition))
            tally.find(
                Status.CHANGED, None, f"expected {count_text(homes, 'partition')}, found records here",
                len(part.records),
            )  # fmt: skip
            tallies.append(tally)
    return tallies


def _outputs(
    role: Role,
    source: TopicPartition,
    walks: Sequence[tuple[int, Walk]],
    everybody: bool,
    system: System,
    logs: LogCopy,
) -> Tally:
    """Check one output partition; ``everybody`` says whether ``walks`` are those of all its writers."""
    topic, partition = topic_of(system, source[0]), source[1]
    at_home = topic.partition_rule is PartitionRule.HOME
    writing = [found for home, found in walks if home == partition or not at_home]
    writers = [Writer(found.tally.source, found.expected.get(source, []), found.last) for found in writing]
    tally = Tally(role.name, source)
    complete = everybody and all(found.complete for found in writing)
    before = max((outputs_end(found.begun, source) for found in writing if found.begun is not None), default=0)
    match(tally, topic, logs.part(source), writers, also_allowed(topic, system), complete, logs.consistent, before)
    return tally


def outputs_end(begun: Restored, source: TopicPartition) -> float:
    """The offset of an output up to which records may follow from journal records that were not recomputed."""
    end = begun.checkpoint.end(source)
    return inf if end is None else end


def also_allowed(topic: Topic, system: System) -> frozenset[bytes]:
    """The digest of a tick: a tick holds only the configuration's digest, and any reader of the topic may append it."""
    if not topic.ticks:
        return frozenset()
    return frozenset({value_digest(codec.encode("Tick", {"config_digest": system.digest}))})


def _described(begun: Restored, role: Role, logs: LogCopy) -> str:
    """Say where a check began and what it did not recompute."""
    checkpoint, low = begun.checkpoint, logs.part(begun.machine.journal).low
    published = datetime.fromtimestamp(begun.time_ms / 1000, UTC).isoformat(timespec="seconds")
    deleted = f": what lay before offset {low} was deleted, the rest" if low else ","
    unsealed = (
        ""
        if role.key_zone is not None
        else "; the state is under no key, so whoever may write its topic could have made it"
    )
    return (
        f"begun behind record {checkpoint.sequence} with the state {begun.publication[:_SHOWN_BYTES].hex()} published "
        f"at {published}; records 0 to {checkpoint.sequence} were not recomputed{deleted} skipped on request"
        f"{unsealed}"
    )


def _compare_with_kept_topics(found: Walk, begun: Restored, of: RoleLogs, logs: LogCopy) -> None:
    """Compare a journal, which was followed from a state to its end, with marks and ledger, which are kept for ever.

    This replaces the check of the records before the state. Marks show whether a journal was rolled back, whatever
    state the check begins with. Ledger entries from before the state cannot be compared with journal records, but
    their sum may not be less than what the state was charged.
    """
    # In a copy of a busy deployment the journal may be ahead of marks and ledger, or behind them.
    status = Status.CHANGED if logs.consistent else Status.UNCHECKABLE
    for why in (*_by_marks(found, begun, of, logs), *_by_ledger(begun, of.role, of.system, logs)):
        found.tally.find(status, None, why)


def _by_marks(found: Walk, begun: Restored, of: RoleLogs, logs: LogCopy) -> Iterator[str]:
    role, home = of.role, begun.machine.journal[1]
    if role.marks is None:
        return
    marks = (role.marks, home)
    notes = notes_in(logs.part(begun.machine.journal).records, of.notes(home)).values()
    unpack = of.marks(home).unpack
    read = copied_marks(logs.part(marks), unpack, role.name, home, lambda offset: is_noted(notes, marks, offset))
    if read.missing:
        yield f"{role.marks}/{home}: {read.missing}"
    suspicion = ReleaseEvidence(read.marks).suspicion(journal_name(begun.genesis), found.sequence)
    if suspicion:
        yield f"by the marks on {role.marks}/{home}: {suspicion}"


def _by_ledger(begun: Restored, role: Role, system: System, logs: LogCopy) -> Iterator[str]:
    machine, home = begun.machine, begun.machine.journal[1]
    charged = machine.charged
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
