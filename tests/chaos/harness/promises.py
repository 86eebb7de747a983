"""What must hold after any fault, role by role, computed from the logs without the machine that wrote them.

A reader drops repeats: a record whose bytes stand earlier in the same partition is no record. Everything here
looks at raw partitions, so a second content under one id cannot hide behind that rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.records import InputRecord
from hushstream.feedback.memory import BoundedMap
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.machines.aggregator import PrivateTotals
from hushstream.systems.p2b.slots import unpack

PERIODS_ACCEPTED = 2


async def check(role: str, run: Any, audit: Any, frozen: Any, epochs: int = 1) -> None:
    """Hold one run's topics to the promises of its role.

    Args:
        role: its name.
        run: the run.
        audit: what is on its topics.
        frozen: the inputs, and what is true of them.
        epochs: how many epochs of noise a role that releases has had, whether it released in each or not.
    """
    written = await run.all_records(list(audit.releases))
    if role == "shuffler":
        await _shuffler(run, audit, frozen, written, epochs)
    else:
        await {"learner": _learner, "aggregator": _aggregator}[role](run, audit, frozen, written)


def one_content_an_id(name: str, records: Iterable[InputRecord], id_field: str) -> dict[bytes, dict[str, Any]]:
    """The records of one schema by id; fails when an id stands for two contents."""
    contents: dict[bytes, bytes] = {}
    found: dict[bytes, dict[str, Any]] = {}
    for record in records:
        schema, fields = codec.decode(record.value)
        if schema != name:
            continue
        identity = fields[id_field]
        assert contents.setdefault(identity, record.value) == record.value, f"two contents of {name} {identity.hex()}"
        found[identity] = fields
    return found


# Learner.


async def _learner(run: Any, audit: Any, frozen: Any, written: Mapping[Any, Sequence[InputRecord]]) -> None:
    slots = 0
    for partition, values in audit.journals.items():
        decided: Counter[str] = Counter()
        for value in values[1:]:
            fields = codec.decode(value)[1]
            slots += fields["slots"]
            decided.update(e for e, way in zip(fields["event_ids"], fields["policies"], strict=True) if way == 0)
        accepted = Counter(frozen.events[partition])
        told = f"missing {sorted(accepted - decided)}, more {sorted(decided - accepted)}"
        assert decided == accepted, f"partition {partition}: each accepted event is decided once, and no other: {told}"
    reports = [r for (topic, _), records in written.items() if topic == "reports" for r in records]
    assert len(one_content_an_id("SlotReport", reports, "report_id")) == slots, "every due slot was sent"
    for partition, least in frozen.dead.items():
        refused = {(f["topic"], f["offset"], f["row"]) for f in _decoded(written["dead-letters-edge", partition])}
        assert len(refused) >= least


# Shuffler.


async def _shuffler(
    run: Any, audit: Any, frozen: Any, written: Mapping[Any, Sequence[InputRecord]], epochs: int
) -> None:
    system = frozen.system.core
    published = one_content_an_id("WindowSums", written["window-sums", 0], "window_id")
    entries: dict[str, dict[str, Any]] = {}
    noises: list[bytes] = []
    seen = newest = 0
    for partition, values in audit.journals.items():
        known = one_content_an_id("LedgerEntry", written["ledger", partition], "entry_id")
        entries |= {entry["debit"]["scope"]: entry for entry in known.values()}
        appended = _first_times(await run.records_of(("journal-shuffler", partition)))
        sums = _true_sums(frozen, partition, values)
        renewals: list[str] = []
        for number, (value, window) in enumerate(zip(values[1:], sums, strict=True)):
            fields = codec.decode(value)[1]
            name, renewed, renewal = fields["debit"]["scope"].partition("/renewal/")
            assert name == f"window/{partition}/{number}"
            renewals.append(renewal)
            entry = entries[name + renewed + renewal]
            record = published[entry["entry_id"]]
            seen += 1
            assert entry["debit"] == fields["debit"], "the ledger repeats the journal's debit"
            assert fields["debit"]["epsilon_micro"] == round(1_000_000 * system.config.release.epsilon)
            assert fields["slots"] == record["slots"] == window.slots, "each accepted slot counts once"
            for copy in _times_of(written["window-sums", 0], codec.encode("WindowSums", record)):
                assert copy >= appended[value], "no sums before their debit"
            for copy in _times_of(written["ledger", partition], codec.encode("LedgerEntry", entry)):
                assert copy >= appended[value], "no ledger entry before its debit"
            released = np.frombuffer(record["ones"] + record["zeros"], "<i8")
            noises.append((released - window.sums).tobytes())
        numbers = [int(renewal.partition("/")[0] or 0) for renewal in renewals]
        assert numbers == sorted(numbers), "an epoch that has ended stays so"
        assert len(set(numbers)) == len(set(renewals)), "an epoch is requested once"
        newest = max([newest, *numbers])
    assert newest == epochs - 1, "an epoch is opened where it was requested, and only there"
    assert seen == len(published) == len(entries), "no release without a debit"
    assert len(set(noises)) == len(noises), "no noise twice"
    assert all(np.frombuffer(noise, "<i8").any() for noise in noises)


class _Window:
    """The exact sums (2 * k * K, ones first) and the slots of one window."""

    def __init__(self, cells: int) -> None:
        self.sums: NDArray[np.int64] = np.zeros(2 * cells, np.int64)
        self.slots = 0


def _true_sums(frozen: Any, partition: int, journal: Sequence[bytes]) -> list[_Window]:
    """What each journaled window holds, read from the reports by this module's own reading of the rules."""
    system, arms = frozen.system.core, frozen.system.config.arms
    cells = system.codes * arms
    period_ms = round(system.config.slot.period_seconds * 1000)
    windows: list[_Window] = []
    ids: set[bytes] = set()
    now = 0
    records = iter(enumerate(frozen.logs["reports", partition]))
    bounds = [codec.decode(value)[1] for value in journal[1:]]
    carried: bytes | None = None
    for fields in bounds:
        window = _Window(cells)
        if carried is not None:
            _add(window, system, carried)
        carried = None
        high = fields["head"]["inputs"][0]["high"]
        for offset, (time_ms, value) in records:
            now = max(now, time_ms)
            content = _accepted(value, system, ids, now // period_ms)
            if content is not None and offset == high - 1 and fields["closed_by"] == "time":
                carried = content  # it moved log time past the end: it belongs to the next window
            elif content is not None:
                _add(window, system, content)
            if offset == high - 1:
                break
        windows.append(window)
    return windows


def _accepted(value: bytes, system: Any, ids: set[bytes], period: int) -> bytes | None:
    """The content of a report that counts: well-formed, of this configuration, timely, and the first of its id."""
    try:
        name, fields = codec.decode(value)
        if name != "SlotReport" or fields["config_digest"] != system.digest or fields["report_id"] in ids:
            return None
        unpack(fields["content"], system.codes, system.config.arms, system.config.release.levels)
    except HushstreamError:
        return None
    if not 0 <= period - int.from_bytes(fields["period"], "little") < PERIODS_ACCEPTED:
        return None
    ids.add(fields["report_id"])
    return bytes(fields["content"])


def _add(window: _Window, system: Any, content: bytes) -> None:
    window.slots += 1
    levels, arms = system.config.release.levels, system.config.arms
    report = unpack(content, system.codes, arms, levels)
    if report is not None:
        cell = report.code * arms + report.arm
        window.sums[cell] += report.level
        window.sums[system.codes * arms + cell] += levels - report.level


# Aggregator.


async def _aggregator(run: Any, audit: Any, frozen: Any, written: Mapping[Any, Sequence[InputRecord]]) -> None:
    for values in audit.journals.values():
        models = [codec.decode(value)[1] for value in values[1:]]
        assert [model["version"] for model in models] == list(range(1, len(models) + 1))
        totals = PrivateTotals(frozen.system.core)
        distinct: BoundedMap[None] = BoundedMap(1000)
        for fields in _decoded_if("WindowSums", (value for _, value in frozen.logs["window-sums", 0])):
            name = fields["window_id"].hex()
            if fields["config_digest"] == frozen.system.digest and name not in distinct:
                distinct.put(name, None)
                assert totals.add(fields)
        assert len(models) == len(distinct), "each window gives one version"
        assert models[-1]["gram"] == totals.model().gram.astype("<f8").tobytes(), "each window counts once"


# Reading.


def _decoded(records: Sequence[InputRecord]) -> list[dict[str, Any]]:
    return [dict(codec.decode(record.value)[1]) for record in records]


def _decoded_if(schema: str, values: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    for value in values:
        try:
            name, fields = codec.decode(value)
        except codec.CodecError:
            continue
        if name == schema:
            yield dict(fields)


def _first_times(records: Sequence[InputRecord]) -> dict[bytes, int]:
    times: dict[bytes, int] = {}
    for record in records:
        times.setdefault(record.value, record.timestamp_ms)
    return times


def _times_of(records: Sequence[InputRecord], value: bytes) -> list[int]:
    found = [record.timestamp_ms for record in records if record.value == value]
    assert found, "released"
    return found
