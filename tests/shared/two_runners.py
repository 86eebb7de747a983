"""What one loop leaves on two runners: `verify` computes both again, and finds each change."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from hushstream.agents.worker.deployment import KeySource
from hushstream.engine.declare.declaration import System
from hushstream.ops.check.verify import verify, verify_export
from hushstream.ops.export import export_copy
from hushstream.ops.log_copy import LogCopy, PartitionCopy
from hushstream.replay.runners.playing import Place, Recording, play
from hushstream.schemas import codec
from hushstream.schemas.topics import common_name

Played = TypeVar("Played")


@dataclass(frozen=True, slots=True)
class Both(Generic[Played]):
    """The same loop of one deployment on both runners."""

    system: System
    direct: Recording[Played]
    stream: Recording[Played]

    @property
    def each(self) -> tuple[Recording[Played], Recording[Played]]:
        """Both recordings."""
        return self.direct, self.stream

    def equal(self, topic: str, schema: str, *names: str, ordered: bool = True) -> list[dict[str, Any]]:
        """The records of one schema, which must be equal on both runners.

        Args:
            topic: their topic.
            schema: its name.
            names: the fields that must be equal; none for all bytes.
            ordered: whether their order must be equal, too.
        """
        ours, theirs = (
            [
                {name: fields[name] for name in names} if names else {"bytes": codec.encode(schema, fields)}
                for fields in decoded(recording, topic, schema)
            ]
            for recording in self.each
        )
        if not ordered:
            ours, theirs = (sorted(each, key=lambda fields: list(fields.values())) for each in (ours, theirs))
        assert ours == theirs, topic
        return ours

    def require_played(self, *names: str) -> None:
        """These arrays of what was played are equal."""
        for name in names:
            np.testing.assert_array_equal(getattr(self.direct.played, name), getattr(self.stream.played, name))

    def require_debits(self, scopes: list[str], epsilon_micro: int) -> None:
        """Both ledgers hold these scopes, each with this cost."""
        for recording in self.each:
            entries = list(decoded(recording, "ledger", "LedgerEntry"))
            assert sorted(entry["debit"]["scope"] for entry in entries) == scopes
            assert {entry["debit"]["epsilon_micro"] for entry in entries} == {epsilon_micro}

    def equal_decisions(self) -> dict[str, tuple[int, ...]]:
        """`decisions`, which must be equal on both runners."""
        ours, theirs = map(decisions, self.each)
        assert ours == theirs
        return ours


async def on_both(system: System, folder: Path, seed: int, loop: Callable[[], Any]) -> Both[Any]:
    """Play a loop, which ``loop`` makes, on both runners at once, under the keys of one seed."""

    async def on(runner: Any) -> Recording[Any]:
        return await play(system, Place(runner, folder, None, seed), loop().run)

    return Both(system, *await asyncio.gather(on("direct"), on("stream")))


def decisions(recording: Recording[Any]) -> dict[str, tuple[int, ...]]:
    """By event id: arm, propensity, policy and version; the probes that wait for a model are no part of the loop."""
    found: dict[str, tuple[int, ...]] = {}
    for fields in decoded(recording, "decisions", "Decisions"):
        columns = (
            np.frombuffer(fields["arms"], "<i4").tolist(),
            np.frombuffer(fields["propensities"], "<u4").tolist(),
            list(fields["policies"]),
            np.frombuffer(fields["model_versions"], "<i4").tolist(),
        )
        for event_id, *row in zip(fields["event_ids"], *columns, strict=True):
            if not event_id.startswith(("probe:", "probe-")):
                assert event_id not in found, "decided once"
                found[event_id] = tuple(row)
    return found


def decoded(recording: Recording[Any], topic: str, schema: str) -> Iterator[dict[str, Any]]:
    """Records of a topic in one schema, of all parties where each has a topic of its own."""
    for (name, _), part in sorted(recording.logs.parts.items()):
        if common_name(name) == topic:
            for record in part.records:
                kind, fields = codec.decode(record.value)
                if kind == schema:
                    yield dict(fields)


def require_recomputed(system: System, keys: KeySource, *recordings: Recording[Any]) -> None:
    """Everything that each of them published is equal to what follows from its logs."""
    for recording in recordings:
        found = verify(recording.logs, system, keys)
        assert found.exit_code == 0, found
        assert not found.findings


def require_export_recomputed(system: System, keys: KeySource, recording: Recording[Any], folder: Path) -> None:
    """An export of it is equal, too."""
    export_copy(recording.logs, system, folder / "export")
    assert verify_export(folder / "export", system, keys).exit_code == 0


def require_changes_found(system: System, keys: KeySource, logs: LogCopy) -> set[str]:
    """A changed byte is found in the first, the middle and the last record of each partition.

    Marks and states say when a worker did what: nothing to compute again. Whoever takes a partition up refuses them.

    Returns:
        The topics, by their common names.
    """
    left_out = ("marks-", "state-")
    sources = [source for source, part in logs.parts.items() if part.records and not source[0].startswith(left_out)]
    for source in sources:
        records = list(logs.part(source).records)
        for index in {0, len(records) // 2, len(records) - 1}:
            bent = bytearray(records[index].value)
            bent[len(bent) // 2] ^= 1
            changed = [*records[:index], records[index]._replace(value=bytes(bent)), *records[index + 1 :]]
            assert verify(with_records(logs, source, changed), system, keys).exit_code == 1, (source, index)
    return {common_name(topic) for topic, _ in sources}


def with_records(logs: LogCopy, source: tuple[str, int], records: list[Any]) -> LogCopy:
    """The logs with other records in one partition."""
    part = logs.part(source)
    return dataclasses.replace(logs, parts={**logs.parts, source: PartitionCopy(part.low, part.high, records)})
