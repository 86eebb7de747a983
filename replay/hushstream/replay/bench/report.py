"""Runs all benchmarks, writes their file, and makes their table."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from hushstream.replay.bench.counters import counter_rows
from hushstream.replay.bench.rows import BenchRow, Progress
from hushstream.replay.study import studies

SUBJECTS = ("compute", "stream")


def run_bench(
    path: Path, subjects: Collection[str] = SUBJECTS, *, rounds: int = 5, progress: Progress
) -> list[BenchRow]:
    """Measure, and write the rows (`write_bench`).

    Args:
        path: the file to write.
        subjects: some of `SUBJECTS`.
        rounds: repetitions; figures are medians over them.
        progress: called with what is being measured.

    Raises:
        BenchFailed: a process of the stream ended, or made no more progress.
    """
    rows: list[BenchRow] = []
    if "compute" in subjects:
        rows += counter_rows(progress, rounds)
        for study in studies().values():
            rows += [] if study.bench is None else study.bench(progress, rounds)
    if "stream" in subjects:
        for study in studies().values():
            rows += [] if study.stream_bench is None else study.stream_bench(progress, rounds)
    write_bench(rows, path)
    return rows


def run_kafka_bench(bootstrap: str, path: Path, *, rounds: int, progress: Progress) -> list[BenchRow]:
    """Measure the stream on a Kafka cluster and on the embedded broker; write the rows. Otherwise as `run_bench`."""
    rows: list[BenchRow] = []
    for study in studies().values():
        rows += [] if study.kafka_bench is None else study.kafka_bench(bootstrap, progress, rounds)
    write_bench(rows, path)
    return rows


def write_bench(rows: Iterable[BenchRow], path: Path) -> None:
    """Write rows as a JSON list of objects with name, value, unit, target and reached."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1, allow_nan=False) + "\n", encoding="utf-8")


def bench_table(rows: Sequence[BenchRow]) -> Table:
    """Make a table of the rows for a terminal."""
    table = Table()
    for heading, justify in (("what", "left"), ("value", "right"), ("unit", "left"), ("target", "left"), ("", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type] # rich declares a literal type of its own
    for row in rows:
        verdict = "" if row.reached is None else "reached" if row.reached else "MISSED"
        table.add_row(row.name, f"{row.value:,.4g}", row.unit, row.target, verdict)
    return table
