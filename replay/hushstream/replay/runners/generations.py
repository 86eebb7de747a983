"""The generations of a deployment: `hushstream up` with a changed file goes on with what was learned and paid.

The first generation lies in the folder of `hushstream up` itself, generation N in ``generation-N`` below. Each has a
deployment, a broker and release marks of its own, and the newest one runs. The steps from one to the next:

1. Workers run without a gateway, on a port that nobody knows, and the phase is ended: all slots that are due are
   counted, and the last model is published (`hushstream.ops.ending`).
2. The next generation is prepared beside, from the last model and what its predecessor left: prices, and the ids of
   all counted slots. It gets new keys, but for those that name what was counted. Items that are offered are offered in
   its catalogue.
3. The broker is closed for ever: this is the fence. Until here nothing was changed, and the old file goes on; from here
   on only the next generation begins.
4. The closing is noted beside the old marks, with the name of the successor: a copy of the folder from an earlier day
   is refused, and makes no second successor.
5. The prepared folder gets its name.

`hushstream up` with the changed file goes on wherever it was ended: a prepared folder of a broker that is open is made
anew, and one of a closed broker is complete, as nothing closes a broker before.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hushstream.agents.worker.deployment import (
    CONFIGURATION,
    KEYS,
    KeySource,
    configuration_in,
    load,
    read_config,
)
from hushstream.broker import BrokerSettings, BrokerStartError, EmbeddedBroker
from hushstream.client import connect
from hushstream.client.items import Item
from hushstream.engine.catalogue import values_of
from hushstream.engine.declare.declaration import EVERYBODY, Ended, Succession, System
from hushstream.ops.connection import Connection
from hushstream.ops.ending import end_phase, ended, final_digests
from hushstream.ops.moving import keep, note_closing, was_exported
from hushstream.ops.topics import apply_async
from hushstream.privacy.key_files import load_ring
from hushstream.privacy.keys import key_path
from hushstream.replay.runners.stream import StreamPlace, StreamSession, first_of
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kind_of

END_SECONDS = 300.0
_FOLDER, _FRESH, _FINAL, _SUCCESSOR, IDENTITY = "generation-", ".new", "final", "successor", "identity"
_LOOK_SECONDS = 0.2


def generations(data: Path) -> list[Path]:
    """The folders of all generations, the oldest first; the last one runs."""
    found = [data]
    while (later := data / f"{_FOLDER}{len(found) + 1}").exists():
        found.append(later)
    return found


def current(data: Path) -> Path:
    """The folder of the newest generation."""
    return generations(data)[-1]


def prepared_beside(data: Path) -> Path | None:
    """The configuration of a next generation that was prepared and does not run yet; None if there is none."""
    number = len(generations(data)) + 1
    found = data / f"{_FOLDER}{number}{_FRESH}" / "deployment" / CONFIGURATION
    return found if found.exists() else None


def is_changed(data: Path, config: Any) -> bool:
    """Whether a configuration is another one than that of the newest generation.

    Raises:
        HushstreamError: it is that of a generation that has ended.
    """
    *earlier, newest = generations(data)
    for number, folder in enumerate(earlier, 1):
        if _configuration(folder) == config:
            raise HushstreamError(
                f"{data}: expected the configuration of generation {len(earlier) + 1}, or a changed one, got that of "
                f"generation {number}, which has ended; the newest one is in {newest / 'deployment' / CONFIGURATION}"
            )
    return (newest / "deployment").exists() and _configuration(newest) != config


class NextGeneration:
    """Makes the next generation of a deployment; see the module."""

    def __init__(self, data: Path, config: Any, place: StreamPlace, say: Callable[[str], None]) -> None:
        """Look at the newest generation.

        Args:
            data: the folder of `hushstream up`.
            config: the changed configuration.
            place: where the newest generation runs.
            say: told each step.

        Raises:
            HushstreamError: no generation can follow with this configuration; says what to do.
        """
        earlier = generations(data)
        self._config, self._place, self._say = config, place, say
        self._home, self._number = earlier[-1], len(earlier) + 1
        self._system = load(place.folder)
        self._folder = data / f"{_FOLDER}{self._number}"
        self._fresh = self._folder.with_name(self._folder.name + _FRESH)
        self._succession = self._required()

    async def make(self, agreed: Callable[[str], bool], prepare: Callable[[Path, Any, Any], System]) -> None:
        """Make it, or go on with it.

        Args:
            agreed: asked with what persons have paid and will pay; whether to begin.
            prepare: prepares a deployment in a folder, of this configuration and these inputs, with new keys.

        Raises:
            HushstreamError: nobody agreed, persons could pay more than they were promised, or a step cannot be done.
        """
        try:
            async with self._broker() as broker:
                closed = broker.closed
            if not closed:
                told = self._succession.told(self._system.core, self._config)
                if not agreed(f"this file makes generation {self._number} of {self._config.deployment}: {told}"):
                    raise HushstreamError(
                        f"{self._home}: expected the configuration with which it began, or a word that it is changed "
                        f"for good (--next), got another one; if you say so: {told}. Nothing was changed; "
                        f"{self._home / 'deployment' / CONFIGURATION} is the file as it was"
                    )
                await self._end(prepare)
            await self._begin()
        except BrokerStartError as error:
            raise HushstreamError(str(error)) from None

    def _required(self) -> Succession:
        kind, config = kind_of(self._config.system), self._config
        before = f"{self._home}: expected the configuration with which it began, got"
        anew = "put it back, or begin anew under another `deployment` name and --data"
        if (config.system, config.deployment) != (self._system.config.system, self._system.config.deployment):
            raise HushstreamError(f"{before} that of another deployment or system: {anew}")
        if kind.succession is None:
            raise HushstreamError(f"{before} a changed one, with which system {kind.name} cannot go on: {anew}")
        if self._place.data is None or self._place.marks is None:
            raise HushstreamError(
                f"{before} a changed one, and a Kafka: only on its own broker can it be closed for ever; {anew}, and "
                "`hushstream prepare --start` with the exported model"
            )
        if was_exported(self._home):
            raise HushstreamError(f"{before} a changed one, but its topics were moved to another broker: {anew}")
        for zone in kind.succession.key_zones:
            if load_ring(key_path(self._place.folder / KEYS, zone)).current:
                raise HushstreamError(
                    f"{before} a changed one, with which a deployment goes on only if the key of zone {zone} was never "
                    f"rotated, as persons' slots have their names from it: {anew}"
                )
        kind.check(config)
        return kind.succession

    def _broker(self) -> EmbeddedBroker:
        return EmbeddedBroker(BrokerSettings(data=self._place.data))

    def _connection(self, broker: EmbeddedBroker) -> Connection:
        return Connection(broker.bootstrap, f"{self._config.deployment}.")

    async def _end(self, prepare: Callable[[Path, Any, Any], System]) -> None:
        """Steps 1 to 3."""
        keys, phase = KeySource(self._place.folder / KEYS), int(time.time())
        self._say(f"ending generation {self._number - 1}: every slot that is due is counted")
        place = replace(self._place, gateway=None, broker_port=0)
        async with StreamSession(self._system, place) as session:
            await first_of(self._ended(session.connection(), keys, phase, session), session.watch())
        self._say(f"preparing generation {self._number}")
        shutil.rmtree(self._fresh, ignore_errors=True)
        async with self._broker() as broker:
            there = self._connection(broker)
            found = await ended(there, self._system, keys, self._succession, phase)
            if found is None:
                raise HushstreamError(f"{self._home}: expected that everything is counted, got more: start it again")
            system = await self._prepared(found, prepare)
            self._say("closing the broker for ever")
            if await final_digests(there, self._system) != (found.ledger, found.marks):
                raise HushstreamError(f"{self._home}: expected that nobody writes any more, got more: start it again")
            os.sync()  # what was prepared must be there if power fails now
            await broker.close_for_ever()
        self._say(f"generation {self._number - 1} is closed; configuration {system.digest.hex()} follows")

    async def _ended(self, connection: Connection, keys: KeySource, phase: int, session: StreamSession) -> None:
        await session.ready(self._say)
        deadline = time.monotonic() + END_SECONDS
        await end_phase(connection, self._system, phase)
        while await ended(connection, self._system, keys, self._succession, phase) is None:
            if time.monotonic() > deadline:
                raise HushstreamError(
                    f"{self._home}: expected every slot to be counted within {END_SECONDS:g} s, got fewer; nothing was "
                    f"changed: start it again, or go on with {self._home / 'deployment' / CONFIGURATION}"
                )
            await asyncio.sleep(_LOOK_SECONDS)

    async def _prepared(self, found: Ended, prepare: Callable[[Path, Any, Any], System]) -> System:
        """The next generation in its folder beside, with all that it needs."""
        folder = self._fresh / "deployment"
        (folder / KEYS).mkdir(parents=True, mode=0o700)
        for zone in self._succession.key_zones:
            shutil.copy2(key_path(self._place.folder / KEYS, zone), key_path(folder / KEYS, zone))
        left = self._succession.left(self._system.core, self._config, found)
        system = prepare(folder, self._config, {name: (f"{name}.json", text) for name, text in left.items()})
        offered = [one for one in found.catalogues[EVERYBODY].items() if one.offered] if found.catalogues else []
        async with EmbeddedBroker(BrokerSettings(data=self._fresh / "broker")) as broker:
            await apply_async(self._connection(broker), system)
            if offered:
                async with connect(broker.bootstrap, folder) as client:
                    await client.items.put(
                        Item(one.item, one.title, values_of(one.features), pinned=one.pinned, cap=one.cap)
                        for one in offered
                    )
        keep(self._fresh / IDENTITY, f'"{os.urandom(8).hex()}"')
        keep(self._fresh / _FINAL, " ".join((found.ledger, found.marks)))
        return system

    async def _begin(self) -> None:
        """Steps 4 and 5, of a broker that is closed."""
        expected = self._fresh / "deployment" / CONFIGURATION
        if not expected.exists() or read_config(expected) != self._config:
            raise HushstreamError(
                f"{self._home}: expected the configuration with which generation {self._number} was begun ({expected}),"
                " got another; bring that file, and change it once it runs"
            )
        marks = self._place.marks
        assert marks is not None, "it was required"
        async with self._broker() as broker:
            if " ".join(await final_digests(self._connection(broker), self._system)) != _text(self._fresh / _FINAL):
                raise HushstreamError(f"{self._fresh}: expected what the closed broker ends with, got an earlier state")
            note_closing([marks / role for role in self._system.role_names], broker.cluster_id)
        successor, identity = marks / _SUCCESSOR, _text(self._fresh / IDENTITY)
        if successor.exists() and _text(successor) != identity:
            raise HushstreamError(
                f"{self._home}: expected that nothing has followed it, but another folder went on as generation "
                f"{self._number}: this one is a copy; go on there"
            )
        keep(successor, identity)
        self._say(f"generation {self._number} begins")
        self._fresh.rename(self._folder)


def _configuration(home: Path) -> Any:
    return read_config(configuration_in(home / "deployment"))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
