"""Verify: recompute everything that was published from the logs and the journals, and compare.

Per role and home partition a fresh machine follows the journal from its genesis; every record is replayed from
the inputs that it names, and what follows from it must be on the output topics with the same bytes, and
nothing else may be. A role is checked with its own zone's key; the aggregator needs none. Inputs that no
journal record covers yet are left alone: nothing followed from them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from hushstream.agents.deployment import KeySource
from hushstream.agents.roles import MachineMaker, role_topics, role_work
from hushstream.engine.declaration import System, role_of, topic_of
from hushstream.engine.digests import Digester, PublicDigester
from hushstream.engine.machine import TopicPartition
from hushstream.engine.role import Role
from hushstream.ops.connection import Connection
from hushstream.ops.export import open_export
from hushstream.ops.findings import Status, Tally, Verified
from hushstream.ops.journal_check import Walk, value_digest, walk
from hushstream.ops.live import copy
from hushstream.ops.log_copy import LogCopy
from hushstream.ops.matching import Writer, match
from hushstream.privacy.errors import KeyFileError, RetiredKey
from hushstream.privacy.keys import key_path
from hushstream.schemas import codec
from hushstream.schemas.catalogue import FIRST_GENERATION
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import PartitionRule, Topic


def verify(logs: LogCopy, system: System, keys: KeySource, roles: Collection[str] | None = None) -> Verified:
    """Verify what roles published.

    Args:
        logs: a copy of the roles' topics (`verified_topics`).
        system: the deployment.
        keys: the keys at hand; a role whose key is not there is not checked, and is named.
        roles: the roles, or None for all of the deployment, which is for the owner who holds all keys.

    Raises:
        KeyFileError: a key file is there but cannot be used.
        HushstreamError: the deployment has no such role.
    """
    tallies: list[Tally] = []
    unchecked = []
    walked: dict[str, Mapping[int, Walk]] = {}
    for role in _asked(system, roles):
        if lacking := _lacking(role, keys):
            unchecked.append(role.name)
            tallies += _without_key(role, system, lacking, logs)
        else:
            walked[role.name] = _walks(role, system, keys, logs)
    shown: set[str] = set()
    for role in (role for role in system.roles if role.name in walked):
        tallies += [found.tally for found in walked[role.name].values()]
        tallies += _homeless(role, system.partitions[role.journal], logs)
        for topic in role_topics(role, system).writes:
            if topic not in shown:
                tallies += _topic(role, topic, walked, system, logs)
        shown |= set(role.writes)
    return Verified(system.config.deployment, tuple(tallies), tuple(unchecked))


def verify_export(directory: Path, system: System, keys: KeySource, roles: Collection[str] | None = None) -> Verified:
    """Verify an export (`hushstream.ops.export`).

    Raises:
        DamagedExport: it is not complete.
        KeyFileError: a key file is there but cannot be used.
        HushstreamError: the deployment has no such role, or the export was made for another one.
    """
    logs = open_export(directory)
    absent = verified_topics(system, roles) - {topic for topic, _ in logs.parts}
    if absent:
        raise HushstreamError(
            f"verify: expected an export with {', '.join(sorted(absent))}, {directory} has none of it; name the role "
            f"that it was made for with --role"
        )
    return verify(logs, system, keys, roles)


def verify_live(
    connection: Connection, system: System, keys: KeySource, roles: Collection[str] | None = None
) -> Verified:
    """Verify what a broker holds now; the roles' topics are copied into memory (large ones: export first).

    Raises:
        HushstreamError: the topics cannot be read (`hushstream.ops.live.open_logs`), or a key cannot be used.
    """
    topics = verified_topics(system, roles)
    return verify(copy(connection, system.partitions, topics), system, keys, roles)


def verified_topics(system: System, roles: Collection[str] | None = None) -> frozenset[str]:
    """The topics that a check of these roles reads, or of all (None).

    Raises:
        HushstreamError: the deployment has no such role.
    """
    return frozenset().union(*(role_topics(role, system).recomputed for role in _asked(system, roles)))


def _asked(system: System, names: Collection[str] | None) -> list[Role]:
    """In the order in which data flows."""
    wanted = None if names is None else [role_of(system, name) for name in names]
    return [role for role in system.roles if wanted is None or role in wanted]


def _lacking(role: Role, keys: KeySource) -> list[str]:
    """The zones whose keys a check of the role needs and that are not at hand."""
    if keys.seed is not None:
        return []
    return [zone for zone in role.key_zones if keys.folder is None or not key_path(keys.folder, zone).exists()]


def _without_key(role: Role, system: System, lacking: Collection[str], logs: LogCopy) -> list[Tally]:
    tallies = []
    for partition in range(system.partitions[role.journal]):
        tally = Tally(role.name, (role.journal, partition))
        reason = f"not at hand: the key of {' and of '.join(lacking)}"
        tally.find(Status.UNCHECKABLE, None, reason, len(logs.part(tally.source).records))
        tallies.append(tally)
    return tallies


def _walks(role: Role, system: System, keys: KeySource, logs: LogCopy) -> Mapping[int, Walk]:
    """The journals of a role, by home partition."""
    digester = PublicDigester() if role.key_zone is None else keys.key(role.key_zone)
    work = role_work(role.name, system, keys)
    topics = work.topics.declared
    homes = range(system.partitions[role.journal])
    walks = {home: _walk(role, home, work.make_machine, digester, logs, topics) for home in homes}
    for home, found in walks.items():
        # Of a journal that cannot be followed nothing is shown: it is found already.
        if found.complete and not found.tally.counts[Status.CHANGED]:
            for offset, why in role.proof(system.core, home, logs):
                found.tally.find(Status.CHANGED, offset, why)
    return walks


def _topic(
    role: Role, topic: str, walked: Mapping[str, Mapping[int, Walk]], system: System, logs: LogCopy
) -> list[Tally]:
    """Check what a role wrote to a topic, and the others whose journals were followed.

    Where another role writes it too, whose journal was not, what no journal at hand explains may be that one's.
    """
    writing = [one.name for one in system.roles if topic in role_topics(one, system).writes]
    walks = [(home, walk) for name in writing for home, walk in walked.get(name, {}).items()]
    everybody = set(writing) <= walked.keys()
    there = {(topic, partition) for partition, _ in logs.of_topic(topic)}
    due = {source for _, found in walks for source in found.expected if source[0] == topic}
    declared = {(topic, partition) for partition in range(system.partitions[topic])}
    return [_outputs(role, source, walks, everybody, system, logs) for source in sorted(there | due | declared)]


def _walk(
    role: Role, home: int, make: MachineMaker, digester: Digester, logs: LogCopy, topics: Mapping[str, Topic]
) -> Walk:
    """Follow one journal under the key that it was begun with, if its first record still says which."""
    journal = logs.part((role.journal, home))
    zone = role.key_zone
    if zone is None or journal.low > 0 or not journal.records:
        return walk(role.name, make(home), (digester,), logs, topics)
    try:
        machine = make.of_journal(home, journal.records[0].value)
    except (RetiredKey, KeyFileError, CodecError) as error:
        tally = Tally(role.name, (role.journal, home))
        status = Status.UNCHECKABLE if isinstance(error, RetiredKey) else Status.CHANGED
        tally.find(status, journal.low, str(error), len(journal.records))
        return Walk(tally, complete=False)
    return walk(role.name, machine, make.keys.ring(zone).kept(), logs, topics)


def _homeless(role: Role, homes: int, logs: LogCopy) -> list[Tally]:
    """Journals of home partitions that the deployment does not have."""
    tallies = []
    for partition, part in logs.of_topic(role.journal):
        if partition >= homes and part.records:
            tally = Tally(role.name, (role.journal, partition))
            tally.find(Status.CHANGED, None, f"expected {homes} partitions, found records here", len(part.records))
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
    """Check one output partition; ``everybody`` says whether ``walks`` are of all who write it."""
    topic, partition = topic_of(system, source[0]), source[1]
    at_home = topic.partition_rule is PartitionRule.HOME
    writing = [found for home, found in walks if home == partition or not at_home]
    writers = [Writer(found.tally.source, found.expected.get(source, ())) for found in writing]
    tally = Tally(role.name, source)
    complete = everybody and all(found.complete for found in writing)
    match(tally, topic, logs.part(source), writers, _also_allowed(topic, system), complete, logs.quiet)
    return tally


def _also_allowed(topic: Topic, system: System) -> frozenset[bytes]:
    """Ticks: they hold nothing but the configuration's digest, and whoever reads the topic may append them."""
    if not topic.ticks:
        return frozenset()
    fields = {"config_digest": system.digest}
    schema_generations = range(FIRST_GENERATION, codec.NEWEST_GENERATION + 1)
    return frozenset(
        value_digest(codec.encode("Tick", fields, schema_generation)) for schema_generation in schema_generations
    )
