"""Checks from the logs alone that no outcome is in two blocks, independently of the counter's code.

`verify` recomputes a counter's records with the counter's own code, and would repeat its mistakes. This check follows
every outcome by its name instead: at most one block takes it, of its arm and of a cell above it, and a block has
exactly the number of outcomes that wait there. So the blocks are disjoint sets of outcomes, whatever code made them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.topics import of_party
from hushstream.systems.pdap.algorithm.outcomes import Outcomes
from hushstream.systems.pdap.cells import Grid, PdapError, levels_of
from hushstream.systems.pdap.counter.pending import Counter
from hushstream.systems.pdap.deployment import PdapSystem
from hushstream.systems.pdap.records import parse_outcomes, parse_part


class Records(Protocol):
    """A partition of a copy of the logs."""

    @property
    def records(self) -> Sequence[InputRecord]: ...
    def read(self, low: int, high: int) -> Sequence[InputRecord]: ...


class Logs(Protocol):
    """A copy of the logs."""

    def part(self, source: TopicPartition) -> Records: ...


Place = tuple[int, int]
"""Cell and arm."""


def overlaps(system: PdapSystem, home: int, logs: Logs, party: str = "") -> Iterator[tuple[int, str]]:
    """Blocks with an outcome that is in another block, or never came: (offset in the journal, reason).

    Args:
        system: the deployment.
        home: 0; a counter has one partition.
        logs: a copy in which its journal and its input begin at their beginning.
        party: the home vendor whose counter it is; "" for the one counter.
    """
    number = system.homes[party] if party else 0
    released = _released(logs, number)
    source, waiting = logs.part((of_party("outcomes", party), home)), _Waiting(system, number)
    for offset, window, low, high in _windows(logs.part((of_party("journal-counter", party), home))):
        for record in source.read(low, high):
            waiting.take_record(record.value)
        for block, count in released.get(window, ()):
            found = waiting.take(*block)
            if found != count:
                yield offset, f"window {window}: a block of {count} outcomes where {found} were in no block yet"


def _windows(journal: Records) -> Iterator[tuple[int, int, int, int]]:
    """Offset, window and input range of each journal record that counts."""
    sequence, position = 0, 0
    for record in journal.records[1:]:
        fields = codec.decode(record.value)[1]
        ((_, _, low, high),) = (tuple(part.values()) for part in fields["head"]["inputs"])
        if (fields["head"]["sequence"], low) == (sequence + 1, position):
            sequence, position = sequence + 1, high
            yield record.offset, fields["window"], low, high


def _released(logs: Logs, number: int) -> Mapping[int, list[tuple[Place, int]]]:
    """The blocks of each window, deepest first; repeated records are recognised by their name."""
    found: dict[int, list[tuple[Place, int]]] = {}
    known = set()
    for record in logs.part(("releases", 0)).records:
        name, fields = codec.decode(record.value)
        if name != "BlockRelease" or fields["counter"] != number or fields["release_id"] in known:
            continue
        known.add(fields["release_id"])
        blocks = parse_part(fields).blocks
        columns = (blocks.cells.tolist(), blocks.arms.tolist(), blocks.counts.tolist())
        found.setdefault(fields["window"], []).extend(((c, k), n) for c, k, n in zip(*columns, strict=True))
    return found


class _Waiting:
    """Outcomes that are in no block yet, by arm and cell. Each name counts once, at any time."""

    def __init__(self, system: PdapSystem, number: int) -> None:
        self._system, self._number = system, number
        self._grid: Grid = system.config.grid
        self._checks = Counter(system.config, _no_noise)
        self._names: set[bytes] = set()
        self._by_arm: dict[int, dict[int, int]] = {}

    def take_record(self, value: bytes) -> None:
        """Take a record of the counter's input; outcomes that the counter refuses wait for no block."""
        try:
            name, fields = codec.decode(value, frozenset({"Outcomes", "Seal", "Tick"}))
            if name == "Outcomes" and self._of_this_counter(fields):
                self._add(parse_outcomes(fields))
        except (CodecError, PdapError):
            return

    def take(self, cell: int, arm: int) -> int:
        """Take the outcomes that wait below a cell; returns their number."""
        there = self._by_arm.get(arm, {})
        if not there:
            return 0
        cells = np.array(list(there), dtype=np.int64)
        level = int(levels_of(np.array([cell], dtype=np.int64))[0])
        deep = cells[levels_of(cells) >= level]
        below = deep[self._grid.ancestors(deep, level) == cell]
        return sum(there.pop(one) for one in below.tolist())

    def _of_this_counter(self, fields: Mapping[str, Any]) -> bool:
        return (fields["config_digest"], fields["counter"]) == (self._system.digest, self._number)

    def _add(self, outcomes: Outcomes) -> None:
        self._checks.require(outcomes)
        horizon = self._system.config.release.horizon
        for name, cell, arm in zip(outcomes.names, outcomes.cells.tolist(), outcomes.arms.tolist(), strict=True):
            if name.tobytes() not in self._names and len(self._names) < horizon:
                self._names.add(name.tobytes())
                there = self._by_arm.setdefault(arm, {})
                there[cell] = there.get(cell, 0) + 1


def _no_noise(window: int, blocks: Any, history: bytes) -> Any:
    raise AssertionError("nothing is released here")
