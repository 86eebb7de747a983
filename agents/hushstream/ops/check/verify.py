"""`verify` recomputes everything that was published from the logs and the journals, and compares.

For each role and home partition, a fresh machine follows the journal from its genesis and replays every record from the
inputs that the record names. The output topics must hold the outputs of these records with the same bytes, and nothing
else. A role is checked with its own zone's key; the aggregator needs none. Inputs that no journal record covers yet are
not checked, as they have no outputs yet.

A check may begin with a published state instead of the genesis (`hushstream.ops.check.checkpoints.From`). Then it says
that the records before it were not recomputed. Instead, journal and ledger are compared with the topics that are kept
for ever (`hushstream.ops.check.after_checkpoint`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import MachineMaker, role_topics, role_work
from hushstream.engine.declare.declaration import System, role_of, topic_of
from hushstream.engine.declare.role import Role
from hushstream.engine.journal.chain import Digester, PublicDigester
from hushstream.engine.journal.notes import LOST, NoteSeal, notes_in
from hushstream.engine.records import TopicPartition
from hushstream.engine.state.published import StateSeal
from hushstream.ops.check.after_checkpoint import compare_with_kept_topics, described
from hushstream.ops.check.checkpoints import Beginner, From, NoUse, PublishedCopy, Restored, ends_with, in_order
from hushstream.ops.check.findings import Status, Tally, Verified
from hushstream.ops.check.joined import joined
from hushstream.ops.check.journal import Walk, value_digest, walk
from hushstream.ops.check.matching import Writer, match
from hushstream.ops.connection import Connection
from hushstream.ops.export import open_export
from hushstream.ops.live import copy
from hushstream.ops.log_copy import LogCopy, PartitionCopy
from hushstream.ops.progress import Progress, Steps, unreported
from hushstream.ops.spending.copied_marks import mark_topics
from hushstream.privacy.amounts import count_text
from hushstream.privacy.errors import KeyFileError, RetiredKey
from hushstream.privacy.keys import key_path
from hushstream.schemas import codec
from hushstream.schemas.catalogue import FIRST_GENERATION
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import PartitionRule, Topic


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
    asked = _asked(system, roles)
    steps = Steps(progress, _journal_records(asked, logs), "recomputing what was published")
    for place, role in enumerate(asked, start=1):
        if lacking := lacking_zones(role, keys):
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
            another (`hushstream.ops.check.joined.joined`).
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
        HushstreamError: the topics cannot be read (`hushstream.ops.live.open_logs`), or a key cannot be used.
    """
    topics = verified_topics(system, roles, start)
    logs = copy(connection, system.partitions, topics, progress, mark_topics(system))
    return verify(logs, system, keys, roles, start, progress)


def verified_topics(system: System, roles: Collection[str] | None = None, start: From = From.GENESIS) -> frozenset[str]:
    """The topics that a check of these roles (None: of all) reads if it begins at ``start``.

    Raises:
        HushstreamError: the deployment has no such role.
    """
    topics = [role_topics(role, system) for role in _asked(system, roles)]
    return frozenset().union(*(each.recomputed if start is From.GENESIS else each.all for each in topics))


def _asked(system: System, names: Collection[str] | None) -> list[Role]:
    """The requested roles, in the order in which data flows."""
    wanted = None if names is None else [role_of(system, name) for name in names]
    return [role for role in system.roles if wanted is None or role in wanted]


def lacking_zones(role: Role, keys: KeySource) -> list[str]:
    """The zones whose keys a check of the role needs but that were not given."""
    if keys.seed is not None:
        return []
    return [zone for zone in role.key_zones if keys.folder is None or not key_path(keys.folder, zone).exists()]


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
    digester = PublicDigester() if role.key_zone is None else keys.key(role.key_zone)
    work = role_work(role.name, system, keys)
    walker = _RoleWalker(role, system, work.make_machine, digester, logs, work.topics.declared, steps.step)
    walks = {home: walker.walk(home, start) for home in range(system.partitions[role.journal])}
    for home, found in walks.items():
        # A journal that could not be followed is reported already; marks, ledger and proofs say nothing about it.
        if not found.complete or found.tally.counts[Status.CHANGED]:
            continue
        if found.begun is not None:
            compare_with_kept_topics(found, role, system, work.make_machine, logs)
            continue
        for offset, why in role.proof(system.core, home, logs):
            found.tally.find(Status.CHANGED, offset, why)
    return walks


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


@dataclass(frozen=True, slots=True)
class _RoleWalker:
    """Follows the journals of one role."""

    role: Role
    system: System
    make: MachineMaker
    digester: Digester
    logs: LogCopy
    topics: Mapping[str, Topic]
    on_record: Callable[[], None]

    def walk(self, home: int, start: From) -> Walk:
        """Follow one journal, from a published state or from its genesis."""
        if start is From.GENESIS:
            return self._from_genesis(home)
        begun, passed_over = self._begin(home, start)
        if begun is not None:
            seal = self._notes(home)
            found = walk(
                self.role.name, begun.machine, self._digesters(), self.logs, self.topics, seal, begun, self.on_record
            )
            said = [found.tally.note] if found.tally.note else []
            said = [described(begun, self.logs, self.role.key_zone is not None), *passed_over, *said]
            found.tally.note = " ".join(said)
            return found
        found = self._from_genesis(home)
        said = [found.tally.note] if found.tally.note else []
        found.tally.note = " ".join(["no state to begin with", *passed_over, *said])
        return found

    def _from_genesis(self, home: int) -> Walk:
        """Follow one journal from its genesis, which says under which key it began."""
        journal = self.logs.part((self.role.journal, home))
        if self.role.key_zone is None or journal.low > 0 or not journal.records:
            digesters = (self.digester,)
            seal = self._notes(home)
            return walk(
                self.role.name, self.make(home), digesters, self.logs, self.topics, seal, on_record=self.on_record
            )
        try:
            machine = self.make.of_journal(home, genesis_in(journal))
        except (RetiredKey, KeyFileError, CodecError) as error:
            tally = Tally(self.role.name, (self.role.journal, home))
            status = Status.UNCHECKABLE if isinstance(error, RetiredKey) else Status.CHANGED
            tally.find(status, journal.low, str(error), len(journal.records))
            return Walk(tally, complete=False)
        seal = self._notes(home)
        return walk(self.role.name, machine, self._digesters(), self.logs, self.topics, seal, on_record=self.on_record)

    def _notes(self, home: int) -> NoteSeal:
        return NoteSeal(self.system.config.deployment, self.role.name, home, self.make.state_keys())

    def _begin(self, home: int, start: From) -> tuple[Restored | None, list[str]]:
        """Begin with the first usable published state, in the requested order; also says why others were skipped."""
        seal = StateSeal(self.system.config.deployment, self.role.name, home, self.make.state_keys())
        states = PublishedCopy(self.logs.part((self.role.state.name, home)), seal)
        machine = self.make(home)
        followed = role_topics(self.role, self.system).followed
        sources = (*machine.inputs, *(source for source in machine.broadcasts if source[0] in followed))
        lows = {source: self.logs.part(source).low for source in sources}
        for lost in notes_in(self.logs.part(machine.journal).records, self._notes(home)).values():
            if lost.kind == LOST and lost.low <= lows.get(lost.source, 0) <= lost.high:
                lows[lost.source] = lost.low
        beginner, journal = Beginner(home, self.make, states, lows), self.logs.part(machine.journal)
        passed_over = [f"(passed over: {why})" for why in states.ignored]
        for found in in_order(states, start):
            try:
                return beginner.begin(found, ends_with(journal, found)), passed_over
            except NoUse as error:
                passed_over.append(f"(passed over: {error})")
        return None, passed_over

    def _digesters(self) -> Sequence[Digester]:
        zone = self.role.key_zone
        return (self.digester,) if zone is None else self.make.keys.ring(zone).kept()


def genesis_in(journal: PartitionCopy) -> bytes:
    """The genesis of a journal: its first record that is one; records before it are foreign."""
    for record in journal.records:
        with suppress(CodecError):
            codec.decode(record.value, frozenset({"Genesis"}))
            return record.value
    return journal.records[0].value


def _beyond_partitions(role: Role, homes: int, logs: LogCopy) -> list[Tally]:
    """Report journals of home partitions that the deployment does not have."""
    tallies = []
    for partition, part in logs.of_topic(role.journal):
        if partition >= homes and part.records:
            tally = Tally(role.name, (role.journal, partition))
            tally.find(
                Status.CHANGED,
                None,
                f"expected {count_text(homes, 'partition')}, found records here",
                len(part.records),
            )
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
    """The digests of ticks: a tick holds only the configuration's digest, and any reader of the topic may append it."""
    if not topic.ticks:
        return frozenset()
    fields = {"config_digest": system.digest}
    schema_generations = range(FIRST_GENERATION, codec.NEWEST_GENERATION + 1)
    return frozenset(
        value_digest(codec.encode("Tick", fields, schema_generation)) for schema_generation in schema_generations
    )
