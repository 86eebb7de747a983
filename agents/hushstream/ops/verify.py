"""Verify: recompute everything that was published from the logs and the journals, and compare.

Per role and home partition a fresh machine follows the journal from its genesis; every record is replayed from
the inputs that it names, and what follows from it must be on the output topics with the same bytes, and
nothing else may be. A role is checked with its own zone's key; the aggregator needs none. Inputs that no
journal record covers yet are left alone: nothing followed from them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from hushstream.agents.deployment import KeySource
from hushstream.agents.role_topics import JOURNALS, role_topics
from hushstream.agents.roles import MachineMaker, role_work
from hushstream.engine.chain import Digester, PublicDigester
from hushstream.engine.machine import TopicPartition
from hushstream.engine.system import RoleName, System
from hushstream.ops.connection import Connection
from hushstream.ops.copies import LogCopy
from hushstream.ops.export import open_export
from hushstream.ops.findings import Status, Tally, Verified
from hushstream.ops.live import copy
from hushstream.ops.matching import Writer, match
from hushstream.ops.topics import partition_counts
from hushstream.ops.walk import Walk, value_digest, walk
from hushstream.privacy.errors import KeyFileError, RetiredKey
from hushstream.privacy.keys import Zone, key_path
from hushstream.schemas import codec
from hushstream.schemas.catalogue import FIRST_EDITION
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import TOPICS, PartitionRule
from hushstream.systems.p2b.deployment import P2BSystem

ZONE_OF_ROLE: Mapping[RoleName, Zone | None] = {
    "learner": Zone.EDGE,
    "shuffler": Zone.SHUFFLER,
    "counter": Zone.COUNTER,
    "aggregator": None,
}
"""Whose key a role's journal is checked with."""


def verify(logs: LogCopy, system: System, keys: KeySource, roles: Collection[RoleName] | None = None) -> Verified:
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
    for role in _asked(system, roles):
        if lacking := _lacking(role, system, keys):
            unchecked.append(role)
            tallies += _without_key(role, system, lacking, logs)
        else:
            tallies += _role(role, system, keys, logs)
    return Verified(system.config.deployment, tuple(tallies), tuple(unchecked))


def verify_export(
    directory: Path, system: System, keys: KeySource, roles: Collection[RoleName] | None = None
) -> Verified:
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
    connection: Connection, system: System, keys: KeySource, roles: Collection[RoleName] | None = None
) -> Verified:
    """Verify what a broker holds now; the roles' topics are copied into memory (large ones: export first).

    Raises:
        HushstreamError: the topics cannot be read (`hushstream.ops.live.open_logs`), or a key cannot be used.
    """
    topics = verified_topics(system, roles)
    return verify(copy(connection, partition_counts(system), topics), system, keys, roles)


def verified_topics(system: System, roles: Collection[RoleName] | None = None) -> frozenset[str]:
    """The topics that a check of these roles reads, or of all (None).

    Raises:
        HushstreamError: the deployment has no such role.
    """
    return frozenset().union(*(role_topics(role, system).all for role in _asked(system, roles)))


def _asked(system: System, roles: Collection[RoleName] | None) -> list[RoleName]:
    """In the order in which data flows."""
    for role in roles or ():
        role_topics(role, system)
    return [role for role in system.roles if roles is None or role in roles]


def _lacking(role: RoleName, system: System, keys: KeySource) -> list[Zone]:
    """The keys that a check of the role needs and that are not at hand."""
    zone = ZONE_OF_ROLE[role]
    needed = [] if zone is None else [zone]
    if role == "shuffler" and isinstance(system, P2BSystem) and system.sealing is not None:
        needed.append(Zone.SEALING)
    if keys.seed is not None:
        return []
    return [zone for zone in needed if keys.folder is None or not key_path(keys.folder, zone).exists()]


def _without_key(role: RoleName, system: System, lacking: Collection[Zone], logs: LogCopy) -> list[Tally]:
    tallies = []
    topic = JOURNALS[role]
    for partition in range(partition_counts(system)[topic]):
        tally = Tally(role, (topic, partition))
        reason = f"not at hand: the key of {' and of '.join(zone.value for zone in lacking)}"
        tally.find(Status.UNCHECKABLE, None, reason, len(logs.part(tally.source).records))
        tallies.append(tally)
    return tallies


def _role(role: RoleName, system: System, keys: KeySource, logs: LogCopy) -> list[Tally]:
    zone = ZONE_OF_ROLE[role]
    digester = PublicDigester() if zone is None else keys.key(zone)
    work = role_work(role, system, keys)
    homes = range(partition_counts(system)[JOURNALS[role]])
    walks = {home: _walk(role, home, work.make_machine, digester, logs) for home in homes}
    tallies = [found.tally for found in walks.values()]
    tallies += _homeless(role, len(homes), logs)
    for topic in work.topics.writes:
        there = {(topic, partition) for partition, _ in logs.of_topic(topic)}
        due = {source for found in walks.values() for source in found.expected if source[0] == topic}
        declared = {(topic, partition) for partition in range(partition_counts(system)[topic])}
        tallies += [_outputs(role, source, walks, system, logs) for source in sorted(there | due | declared)]
    return tallies


def _walk(role: RoleName, home: int, make: MachineMaker, digester: Digester, logs: LogCopy) -> Walk:
    """Follow one journal under the key that it was begun with, if its first record still says which."""
    journal = logs.part((JOURNALS[role], home))
    zone = ZONE_OF_ROLE[role]
    if zone is None or journal.low > 0 or not journal.records:
        return walk(role, make(home), (digester,), logs)
    try:
        begun_with = make.keys.of_journal(zone, journal.records[0].value)
    except (RetiredKey, KeyFileError, CodecError) as error:
        tally = Tally(role, (JOURNALS[role], home))
        status = Status.UNCHECKABLE if isinstance(error, RetiredKey) else Status.CHANGED
        tally.find(status, journal.low, str(error), len(journal.records))
        return Walk(tally, complete=False)
    ring = make.keys.ring(zone)
    return walk(role, make.make(home, begun_with, ring), ring.kept(), logs)


def _homeless(role: RoleName, homes: int, logs: LogCopy) -> list[Tally]:
    """Journals of home partitions that the deployment does not have."""
    tallies = []
    for partition, part in logs.of_topic(JOURNALS[role]):
        if partition >= homes and part.records:
            tally = Tally(role, (JOURNALS[role], partition))
            tally.find(Status.CHANGED, None, f"expected {homes} partitions, found records here", len(part.records))
            tallies.append(tally)
    return tallies


def _outputs(role: RoleName, source: TopicPartition, walks: Mapping[int, Walk], system: System, logs: LogCopy) -> Tally:
    """Check one output partition."""
    topic, partition = source
    if TOPICS[topic].partition_rule is PartitionRule.HOME:
        walks = {home: found for home, found in walks.items() if home == partition}
    writers = [Writer(found.tally.source, found.expected.get(source, ())) for found in walks.values()]
    tally = Tally(role, source)
    complete = all(found.complete for found in walks.values())
    match(tally, logs.part(source), writers, _also_allowed(topic, system), complete, logs.quiet)
    return tally


def _also_allowed(topic: str, system: System) -> frozenset[bytes]:
    """Ticks: they hold nothing but the configuration's digest, and whoever reads the topic may append them."""
    if topic not in ("reports", "rewards"):
        return frozenset()
    fields = {"config_digest": system.digest}
    editions = range(FIRST_EDITION, codec.NEWEST_EDITION + 1)
    return frozenset(value_digest(codec.encode("Tick", fields, edition)) for edition in editions)
