"""Measures the disk, memory and CPU that one interaction and one user need, by topic and role, in a replay.

Sizes are of record values. A broker adds some 10 bytes a record and 61 a batch, times the copies it keeps. CPU time is
measured around the machines, which fold one record at a time; Kafka's client and the serving of metrics are not in it
(the rows of streams measure whole workers). The auditor's CPU time is that of `hushstream verify` over the same
records. The data is synthetic: sizes depend on the configuration, and hardly on the content of the records.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import role_work
from hushstream.engine.declare.declaration import System, request_partitions
from hushstream.engine.machine import Machine
from hushstream.ops.check.verify import verify
from hushstream.ops.log_copy import LogCopy
from hushstream.replay.bench.gateway import gateway_rows
from hushstream.replay.bench.peers import peer_rows, peer_tables
from hushstream.replay.bench.scale import scale_rows, scale_tables
from hushstream.replay.bench.stream import stream_rows
from hushstream.replay.experiments.rows import BenchRow, PeerRow, Progress, figure
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.replay.study import Sample, studies
from hushstream.schemas.errors import HushstreamError

KEYS = KeySource(seed=1)
BROKER_BYTES = 10
"""Bytes that a broker's log adds to a record."""

SHAPES: tuple[Mapping[str, int], ...] = ({"dimension": 10, "arms": 10}, {"dimension": 25, "arms": 20})
"""The sizes that are measured of each system."""


def size_rows(progress: Progress, shapes: Sequence[Mapping[str, int]] = SHAPES) -> list[BenchRow]:
    """Play the sample of each system that has one in each shape, and measure what it stores and takes.

    Args:
        progress: called with what is being measured.
        shapes: keyword arguments of the samples (`hushstream.replay.study.Study.sample`).

    Raises:
        HushstreamError: what was published does not follow from the logs.
    """
    rows: list[BenchRow] = []
    for name, study in studies().items():
        if study.sample is None:
            continue
        for shape in shapes:
            what = ", ".join([name, *(f"{key} {value}" for key, value in shape.items())])
            progress(f"sizes of {what}")
            with tempfile.TemporaryDirectory(prefix="hushstream-sizes-") as folder:
                rows += measure(study.sample(Path(folder), **shape), what)
    return rows


def timed(machine: Machine, spent: Callable[[float], None]) -> Machine:
    """Make a machine report the CPU seconds of each of its folds to ``spent``."""

    def meter(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            begin = time.thread_time()
            try:
                return work(*given)
            finally:
                spent(time.thread_time() - begin)

        return run

    for name in ("ready", "fold"):
        setattr(machine, name, meter(getattr(machine, name)))
    return machine


def machines_of(system: System) -> dict[str, list[Machine]]:
    """Make new machines for every home partition, by role in the order in which data flows."""
    return {
        role.name: [role_work(role.name, system, KEYS).make_machine(home) for home in range(system.homes(role))]
        for role in system.roles
    }


def play(sample: Sample) -> tuple[LogCopy, dict[str, list[Machine]], dict[str, float]]:
    """Play a sample; return all topics, the machines in their last state, and the CPU seconds of each role."""
    log = MemoryLog()
    machines = machines_of(sample.system)
    seconds = dict.fromkeys(machines, 0.0)

    def spending(role: str) -> Callable[[float], None]:
        def spent(more: float) -> None:
            seconds[role] += more

        return spent

    driven = [timed(machine, spending(role)) for role, found in machines.items() for machine in found]
    driver = DirectDriver(log, driven, bytes(32))
    asyncio.run(_played(sample, DirectEventLog(log, driver, request_partitions(sample.system))))
    return LogCopy.of(log), machines, seconds


def measure(sample: Sample, what: str) -> list[BenchRow]:
    """Play a sample, verify it, and make its rows; ``what`` begins their names.

    Raises:
        HushstreamError: what was published does not follow from the logs.
    """
    logs, machines, seconds = play(sample)
    begin = time.thread_time()
    if not verify(logs, sample.system, KEYS).ok:
        raise HushstreamError("sizes: expected a sample that verifies, got one with findings")
    seconds["auditor"] = time.thread_time() - begin
    topics, rows = topic_sizes(logs), []
    for topic, (records, size) in topics.items():
        rows.append(figure(f"{what}: {topic}", [size / records], "bytes/record"))
        rows.append(figure(f"{what}: {topic}", [size / sample.interactions], "bytes/interaction"))
    total = sum(size + BROKER_BYTES * records for records, size in topics.values())
    rows.append(figure(f"{what}: all topics, at a broker", [total / sample.interactions], "bytes/interaction"))
    for role, fresh in machines_of(sample.system).items():
        state, memory = state_of(machines[role], fresh, logs)
        rows.append(figure(f"{what}: {role}, state", [state / sample.users], "bytes/user"))
        rows.append(figure(f"{what}: {role}, memory", [memory / sample.users], "bytes/user"))
    for role, spent in seconds.items():
        rows.append(figure(f"{what}: {role}, CPU", [1e6 * spent / sample.interactions], "us/interaction"))
    return rows


def topic_sizes(logs: LogCopy) -> Mapping[str, tuple[int, int]]:
    """The number of records and their bytes, for every topic that holds a record."""
    found: dict[str, tuple[int, int]] = {}
    for name in dict.fromkeys(topic for topic, _ in logs.parts):
        sizes = [len(record.value) for record in logs.records([name])]
        found[name] = (len(sizes), sum(sizes))
    return found


def state_of(machines: list[Machine], fresh: list[Machine], logs: LogCopy) -> tuple[int, int]:
    """The bytes of the machines' snapshots, and the bytes of memory that ``fresh`` machines take to restore them."""
    packed = [machine.snapshot() for machine in machines]
    for machine in fresh:
        machine.start(logs.part(machine.journal).records[0].value)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for machine, snapshot in zip(fresh, packed, strict=True):
        machine.restore(snapshot)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return sum(map(len, packed)), after - before


async def _played(sample: Sample, log: DirectEventLog) -> None:
    await sample.play(log)


def tables_of(rows: Sequence[BenchRow]) -> dict[str, str]:
    """The Markdown table of each system: a line a figure, a column a shape."""
    cells: dict[str, dict[tuple[str, str], list[str]]] = {}
    shapes: dict[str, dict[str, None]] = {}
    for row in rows:
        (system, _, shape), what = row.name.split(": ")[0].partition(", "), row.name.split(": ")[1]
        shapes.setdefault(system, {})[shape] = None
        value = row.value or 0.0
        cells.setdefault(system, {}).setdefault((what, row.unit), []).append(f"{value:,.{value < 100:d}f}")
    return {
        f"sizes of {system}": f"| | unit | {' | '.join(shapes[system])} |\n|---|---|{'---|' * len(shapes[system])}\n"
        + "".join(f"| {what} | {unit} | {' | '.join(found)} |\n" for (what, unit), found in lines.items())
        for system, lines in cells.items()
    }


def page_with(tables: Mapping[str, str], text: str) -> str:
    """A page with the tables in place of those between ``<!-- NAME -->`` and ``<!-- -->``.

    Raises:
        HushstreamError: the page has no such place for a table, or several.
    """
    for name, table in tables.items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- -->)", re.DOTALL)
        text, count = place.subn(rf"\g<1>\n{table}\n\g<2>", text)
        if count != 1:
            raise HushstreamError(f"sizes: expected one place for {name} in the page, got {count}")
    return text


SUBJECTS = ("compute", "stream", "sizes")
"""What is measured by default; ``gateway`` and ``peers`` only if they are asked for."""


def run_bench(
    path: Path,
    subjects: Collection[str] = SUBJECTS,
    *,
    rounds: int = 5,
    progress: Progress,
    bootstrap: str | None = None,
    page: Path | None = None,
    scale: int | None = None,
) -> list[BenchRow]:
    """Measure, and write the rows (`write_bench`).

    Args:
        path: the file to write.
        subjects: some of `SUBJECTS`, ``gateway`` or ``peers``.
        rounds: repetitions; figures are medians over them.
        progress: called with what is being measured.
        bootstrap: ``host:port`` of a running broker for peers and scale; None: an embedded one.
        page: whose tables of sizes, of peers or of scale are made anew.
        scale: how many users `hushstream.replay.bench.scale` measures; None: it does not.

    Raises:
        BenchFailed: a process of the stream ended, or made no more progress.
        HushstreamError: the page has no place for a table.
    """
    rows: list[BenchRow] = []
    tables: dict[str, str] = {}
    if "compute" in subjects:
        for study in studies().values():
            rows += [] if study.bench is None else study.bench(progress, rounds)
    if "stream" in subjects:
        rows += stream_rows(progress, rounds)
    if "gateway" in subjects:
        rows += gateway_rows(progress)
    if "sizes" in subjects:
        rows += (found := size_rows(progress))
        tables |= tables_of(found)
    if "peers" in subjects:
        rows += (peers := peer_rows(progress, rounds, bootstrap))
        tables |= peer_tables(peers)
    if scale is not None:
        rows += (found := scale_rows(scale, progress, bootstrap))
        tables |= scale_tables(found)
    write_bench(rows, path)
    if page is not None:
        page.write_text(page_with(tables, page.read_text(encoding="utf-8")), encoding="utf-8")
    return rows


def write_bench(rows: Iterable[BenchRow], path: Path) -> None:
    """Write rows as a JSON list of objects with the attributes of `BenchRow`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1, allow_nan=False) + "\n", encoding="utf-8")


def bench_table(rows: Sequence[BenchRow]) -> Table:
    """Make a table of the rows for a terminal."""
    table = Table()
    for heading in ("what", "value", "unit", "target", "", "guarantees"):
        table.add_column(heading, justify="right" if heading == "value" else "left")
    for row in rows:
        verdict = "" if row.reached is None else "reached" if row.reached else "MISSED"
        value = "" if row.value is None else f"{row.value:,.4g}"
        table.add_row(
            row.name, value, row.unit, row.target, verdict, row.guarantees if isinstance(row, PeerRow) else ""
        )
    return table
