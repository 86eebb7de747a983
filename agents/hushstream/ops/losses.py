"""Lists the losses that operators of a deployment have accepted (`--accept-loss`), and how they change its guarantee.

There are two kinds. Input may be deleted before it was folded: then a note in the role's journal says which input
(`hushstream.engine.journal.notes`). Nothing was released from it, so the guarantee does not change, but counts lack it.
Or a worker may go on with a refused journal: then a mark says so (`hushstream.engine.journal.marks`). The releases from
the lost records remain, so the persons in these records are charged once more, which the guarantee does not include.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.losses import in_words
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import role_work
from hushstream.engine.declare.declaration import System, topic_of
from hushstream.engine.declare.role import Role
from hushstream.engine.journal.marks import MarkSeal, MarkUnreadable
from hushstream.engine.journal.notes import LOST, Note, NoteSeal, read_without_key
from hushstream.ops.connection import Connection, client_errors
from hushstream.privacy.keys import key_path
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError


@dataclass(frozen=True, slots=True)
class LostInput:
    """Input whose loss an operator has accepted.

    Attributes:
        role, home: the role and home partition whose journal holds the note.
        note: the lost input.
        tombstones: whether the topic is one to which tombstones are written.
        checked: whether the note is known to be under a key of the zone; otherwise the key was not given.
    """

    role: str
    home: int
    note: Note
    tombstones: bool
    checked: bool

    def as_text(self) -> str:
        """Say what is lost, and which results lack it."""
        erasures = " Erasures among them were not carried out: send them again (`hushstream forget`)." * self.tombstones
        return (
            f"{self.role} {self.home} went on without {in_words(self.note)}. The privacy guarantee is unchanged: "
            f"nothing was released from them. Decisions, counts and releases of the {self.role} and the roles after "
            f"it, with the lift, lack them.{erasures}{_unchecked(self.checked)}"
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "kind": "input", "role": self.role, "home": self.home, **self.note.as_json(),
            "guarantee_changed": False, "erasures_to_repeat": self.tombstones, "checked": self.checked,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class LostJournal:
    """A journal that an operator has accepted although it was refused, or its marks were lost.

    Attributes:
        role, home: the role and home partition of the journal.
        generation: the number of acceptances for this journal, including this one.
        checked: whether the mark is known to be under a key of the zone; otherwise the key was not given.
    """

    role: str
    home: int
    generation: int
    checked: bool

    def as_text(self) -> str:
        """Say what is lost, and what it costs."""
        return (
            f"{self.role} {self.home} went on with a journal that was refused, or whose marks were lost (word "
            f"{self.generation}). This changes the guarantee: releases from lost records remain, and the persons in "
            f"them may be charged the stated price once more.{_unchecked(self.checked)}"
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "kind": "journal", "role": self.role, "home": self.home, "generation": self.generation,
            "guarantee_changed": True, "checked": self.checked,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class AcceptedLosses:
    """The accepted losses that the logs still show.

    Attributes:
        found: the losses in the order of roles and home partitions; journals before inputs.
        begun_later: journals whose first records, and the notes among them, were deleted (`topics trim`).
    """

    found: tuple[LostInput | LostJournal, ...]
    begun_later: tuple[str, ...] = ()

    def as_lines(self) -> list[str]:
        """One line for each loss; without any loss, one line that says so."""
        lines = [loss.as_text() for loss in self.found] or ["none was found"]
        if self.begun_later:
            lines.append(f"not completely searched, as their first records were deleted: {', '.join(self.begun_later)}")
        return lines

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {"found": [loss.as_json() for loss in self.found], "begun_later": list(self.begun_later)}


def _unchecked(checked: bool) -> str:
    return "" if checked else " (not checked: the key of its zone was not given)"


def accepted_losses(connection: Connection, system: System, keys: KeySource) -> AcceptedLosses:
    """Look for accepted losses in the journals and marks of all roles.

    A note or mark under none of the zone's keys is foreign, and left out. If the zone's key was not given, it is listed
    as not checked.

    Raises:
        HushstreamError: the topics cannot be read, or a key file cannot be used.
    """
    return asyncio.run(accepted_losses_async(connection, system, keys))


async def accepted_losses_async(connection: Connection, system: System, keys: KeySource) -> AcceptedLosses:
    """Do what `accepted_losses` does, within an event loop."""
    found: list[LostInput | LostJournal] = []
    begun_later = []
    async with client_errors(connection, "read logs"), LogReader(connection.settings()) as reader:
        for role in system.roles:
            for home in range(system.homes(role)):
                journal = (role.journal, home)
                begun_later += [f"{role.journal}/{home}"] if (await reader.first_offsets([journal]))[journal] else []
                found += await _journals(reader, role, home, system, keys)
                found += await _inputs(reader, role, home, system, keys)
    return AcceptedLosses(tuple(found), tuple(begun_later))


async def _inputs(reader: LogReader, role: Role, home: int, system: System, keys: KeySource) -> list[LostInput]:
    place = (system.config.deployment, role.name, home)
    seal = None
    if _at_hand(role.key_zones, keys):
        seal = NoteSeal(*place, role_work(role.name, system, keys).make_machine.state_keys())
    all_keys = seal is not None and _at_hand([role.storage_zone], keys)
    notes = {}
    async for record in reader.all_records((role.journal, home)):
        note = None if seal is None else seal.unpack(record.value)
        checked = note is not None
        # A zone with a storage key seals notes under it: without its file we cannot say whether a note is forged.
        note = note if note is not None or all_keys else read_without_key(record.value, *place)
        # A retried send may have written the note twice: count the loss once.
        if note is not None and note.kind == LOST:
            notes[note] = LostInput(role.name, home, note, topic_of(system, note.source[0]).tombstones, checked)
    return list(notes.values())


async def _journals(reader: LogReader, role: Role, home: int, system: System, keys: KeySource) -> list[LostJournal]:
    if role.marks is None:
        return []
    place = (system.config.deployment, role.name, home)
    seal = None
    if _at_hand(role.key_zones, keys):
        seal = MarkSeal(*place, role_work(role.name, system, keys).make_machine.mark_keys())
    generations = set()
    async for record in reader.all_records((role.marks, home)):
        try:
            _, fields = codec.decode(record.value, frozenset({"ReleaseMark"}))
            named = (fields["deployment"], fields["role"], fields["partition"])
            # A mark under a destroyed key cannot be opened; a later mark of its generation can.
            if fields["accepted"] and named == place and (seal is None or seal.unpack(record.value) is not None):
                generations.add(fields["generation"])
        except (CodecError, MarkUnreadable):
            continue
    return [LostJournal(role.name, home, generation, seal is not None) for generation in sorted(generations)]


def _at_hand(zones: Iterable[str], keys: KeySource) -> bool:
    """Whether the key files of these zones were given."""
    if keys.seed is not None:
        return True
    return all(keys.folder is not None and key_path(keys.folder, zone).exists() for zone in zones)
