"""Brings a deployment to its end, so that another one can take over what was learned and what persons have paid.

The end of a phase makes learners send every slot that is due, and the role that counts close its windows. All is in
when the readers of what was released have committed every record, and the counting role, read to its end from its
journal, has counted the phase and has nothing open. Then a worker has nothing to charge, to mark or to send any more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from hushstream.agents.settings import group_of
from hushstream.agents.worker.deployment import KeySource
from hushstream.engine.catalogue import CatalogueRules
from hushstream.engine.declare.declaration import (
    Catalogues,
    Ended,
    Succession,
    System,
    conversation_of,
    role_of,
)
from hushstream.engine.learner.items import catalogue_of
from hushstream.engine.records import InputSlice
from hushstream.ops.check.checkpoints import From
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verified_topics, walked
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import LogCopy, RoleLogs, copy_async, mark_topics, open_logs
from hushstream.ops.logs.losses import Appended, append
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import physical

_DOING = "end the deployment"


async def end_phase(connection: Connection, system: System, phase: int) -> None:
    """End a phase behind all that applications have sent; nobody may send any more.

    Args:
        connection: where the deployment is.
        system: the deployment.
        phase: a number above that of every phase before.
    """
    said = conversation_of(system)
    async with open_logs(connection, system.partitions, {said.requests, *said.feedback}) as logs:
        bounds = logs.cut.bounds
    records = []
    for partition in range(system.partitions[said.requests]):
        last = max((bounds[topic, partition][1] for topic in said.feedback), default=0) - 1
        fields = {"phase": phase, "origin": -1, "config_digest": bytes(16), "after_click": last}
        records.append(Appended(said.requests, partition, codec.encode("Seal", fields)))
    await append(connection, _DOING, records)


async def ended(
    connection: Connection, system: System, keys: KeySource, succession: Succession, phase: int
) -> Ended | None:
    """The deployment as it ended; None while a worker still has something to do.

    Args:
        connection: where it is.
        system: the deployment.
        keys: those of the role that counts.
        succession: of its kind.
        phase: the last phase, which was ended.

    Raises:
        HushstreamError: what was counted cannot be read to its end, because records of it are missing or differ.
    """
    if not await _all_committed(connection, system, succession):
        return None
    rules = rules_of(system)
    models = () if system.models is None else system.models.topics
    topics = verified_topics(system, {succession.counts}, From.LAST_CHECKPOINT)
    topics |= {*models, *(one.topic for one in rules), *system.ledgers, *mark_topics(system)}
    logs = await copy_async(connection, system.partitions, topics, keyed=mark_topics(system))
    of, machines = RoleLogs(role_of(system, succession.counts), system, keys), []
    for home in of.homes:
        found = walked(of, home, From.LAST_CHECKPOINT, logs, lambda: None)
        if not found.complete or found.machine is None or found.tally.counts[Status.CHANGED]:
            raise HushstreamError(
                f"{_DOING}: expected {of.role.journal}/{home} to be read to its end, got "
                f"{'; '.join(map(str, found.tally.findings)) or found.tally.note}; see `hushstream verify`"
            )
        machines.append(found.machine)
    committed = await _committed(connection, system, succession.counts)
    key_ids = {zone: keys.key(zone).key_id.hex() for zone in succession.key_zones}
    for machine in machines:
        done = all(committed.get(source, 0) >= end for source, end in machine.committed().items())
        if not done or not succession.has_ended(machine, phase):
            return None
    models_found = [one.value for one in logs.records(models)]
    return Ended(machines, models_found, catalogues_in(logs, system), *digests(logs, system), key_ids)


async def final_digests(connection: Connection, system: System) -> tuple[str, str]:
    """`digests` of a broker's logs."""
    topics = {*system.ledgers, *mark_topics(system)}
    return digests(await copy_async(connection, system.partitions, topics, keyed=mark_topics(system)), system)


def digests(logs: LogCopy, system: System) -> tuple[str, str]:
    """Digests of all ledger records, and of the newest mark under each key, in hexadecimal."""
    entries = [record.value for topic in system.ledgers for _, part in logs.of_topic(topic) for record in part.records]
    newest = {
        (topic, number, key): record.value
        for topic in mark_topics(system)
        for number, part in logs.of_topic(topic)
        for record, key in zip(part.records, part.keys or (), strict=True)
    }
    marks = [newest[place] for place in sorted(newest, key=lambda place: (place[0], place[1], place[2] or b""))]
    return _digest(entries), _digest(marks)


def catalogues_in(logs: LogCopy, system: System) -> Catalogues:
    """The names of items in a copy of the logs, by party."""
    found = {}
    for one in rules_of(system):
        items = logs.part((one.topic, 0))
        found[one.party] = catalogue_of(one, InputSlice(one.topic, 0, items.low, items.high, items.records))
    return found


def rules_of(system: System) -> Sequence[CatalogueRules]:
    """The rules of all catalogues."""
    asked = system.requests
    return () if asked is None else (*asked.catalogues.values(), *filter(None, [asked.catalogue]))


async def _all_committed(connection: Connection, system: System, succession: Succession) -> bool:
    """Whether the roles behind the one that counts have committed all that there is."""
    requests = conversation_of(system).requests
    for role in system.roles:
        if role.name == succession.counts or requests in role.inputs:
            continue
        committed = await _committed(connection, system, role.name)
        async with open_logs(connection, system.partitions, {*role.inputs} & system.partitions.keys()) as logs:
            if any(committed.get(source, 0) < high for source, (_, high) in logs.cut.bounds.items()):
                return False
    return True


async def _committed(connection: Connection, system: System, role: str) -> dict[tuple[str, int], int]:
    topics = {physical(connection.prefix, topic): topic for topic in system.partitions}
    async with connection.admin(_DOING) as admin:
        found = await admin.list_consumer_group_offsets(group_of(system.config.deployment, role))
    return {(topics[at.topic], at.partition): one.offset for at, one in found.items() if at.topic in topics}


def _digest(values: Iterable[bytes]) -> str:
    hasher = hashlib.blake2b(digest_size=16, person=b"hush-final")
    for value in values:
        hasher.update(len(value).to_bytes(8, "little") + value)
    return hasher.hexdigest()
