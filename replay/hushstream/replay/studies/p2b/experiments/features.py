"""P2B with declared features: the share of the non-private gain that linear sums keep, compared with codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hushstream.replay.bench.rows import BenchRow, at_least, at_most
from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.findings import Description, Findings, Provenance
from hushstream.replay.experiments.rows import Row, over_seeds, privacy_columns
from hushstream.replay.progress import Progress
from hushstream.replay.runners.grid import play_all
from hushstream.replay.studies.p2b.experiments.feature_play import (
    Form,
    Line,
    Task,
    Windows,
    guarantee_of,
    play,
    world_of,
)
from hushstream.replay.studies.p2b.experiments.new_item import CONTRIBUTORS, WINDOW, WINDOWS, Entry, play_new_item

NAME = "p2b-features"
TITLE = "Declared features: the share of the non-private gain that linear sums and codes keep"
SEEDS = (1, 2, 3, 4, 5)
SETTINGS = (
    "Shares are of the gain of ridge regression on all ten interactions of every contributor over cold learners.",
    "Rewards are expected ones over the first ten interactions of 2,500 new users; intervals are over worlds.",
    "Linear sums: U = 4096 units, T = 10, h = .8 (TMC2007: .5, its declared click rate being .2), shrunk warm starts.",
    "The words of TMC2007 are tags of redundancy .2: most occur together, and each has the reward of the others.",
    "New item: the last of ten enters a running deployment with windows of fresh noise; it starts at the others' mean.",
    "Its gain is the difference of a visit's reward with and without it, over all items, on the same visits and coins.",
    "Codes: 32 centroids of a public sample of 20,000 contexts of the same world, a uniform interaction a slot.",
)

_NEW_ITEM = Task("mixed", 10, 0)

Played = Mapping[Task, Mapping[Line, tuple[float, ...]]]
Float64 = NDArray[np.float64]


def run(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play every world under every seed; quick: two small worlds without targets."""
    seeds, tasks = (SEEDS[:2], _quick()) if scale.quick else (SEEDS, _whole(scale.data_dir))
    played: Played = play_all(play, [replace(one, seed=seed) for one in tasks for seed in seeds], NAME, progress)
    sizes = (2_000, 500) if scale.quick else (CONTRIBUTORS, WINDOW)
    entries = _entries(seeds, sizes, progress)
    rows = [_row(task, line, played, seeds) for task in tasks for line in task.lines] + _new_item_rows(entries, sizes)
    worlds = tuple(dict.fromkeys(f"{world_of(task).name}, {task.arms} items" for task in tasks))
    description = Description(NAME, TITLE, "hushstream's linear sums", worlds, seeds, SETTINGS, _provenance(tasks))
    return Findings(
        description, rows, [] if scale.quick else [*_targets(tasks, played, seeds), _new_item_target(entries)]
    )


def _entries(seeds: Sequence[int], sizes: tuple[int, int], progress: Progress | None) -> Sequence[Entry]:
    """The results of a new item, by seed."""
    play_one = partial(play_new_item, contributors=sizes[0], window=sizes[1])
    tasks = [replace(_NEW_ITEM, seed=seed) for seed in seeds]
    found: Mapping[Task, Entry] = play_all(play_one, tasks, f"{NAME}, new item", progress)
    return [found[task] for task in tasks]


def _gained(entries: Sequence[Entry]) -> Float64:
    """The difference of a visit's reward with and without the new item, (seeds, windows)."""
    return np.array([np.subtract(one.with_item, one.without) for one in entries])


def _new_item_rows(entries: Sequence[Entry], sizes: tuple[int, int]) -> list[Row]:
    stated = guarantee_of(_NEW_ITEM, Line("linear", sizes[0], 1.0))
    assert stated is not None
    rows: list[Row] = []
    for window in range(WINDOWS):
        row: Row = {
            "world": world_of(replace(_NEW_ITEM, seed=SEEDS[0])).name,
            "items": _NEW_ITEM.arms,
            "form": f"new item, window {window + 1}",
            "slots": sizes[0] + window * sizes[1],
            "windows": "one" if not window else f"{window + 1} fresh",
        }
        columns = {"reward": np.array([one.with_item[window] for one in entries]), "gain": _gained(entries)[:, window]}
        for name, values in columns.items():
            row[name], row[f"{name}_low"], row[f"{name}_high"] = over_seeds(values)
        rows.append({**row, "seeds": len(entries), **privacy_columns(stated)})
    return rows


def _new_item_target(entries: Sequence[Entry]) -> BenchRow:
    lost = [float(one) for one in -_gained(entries).mean(axis=0)]
    return at_most("a new item: loss of a visit in the worst of its first three windows", [max(lost)], "reward", 0.003)


def _lines(sizes: Sequence[int], private: Sequence[Line]) -> tuple[Line, ...]:
    return (Line("cold"), *(Line("raw", size) for size in sizes), *private)


def _quick() -> tuple[Task, ...]:
    private = (
        Line("linear", 2_000, 1.0),
        Line("linear", 2_000, 1.0, "ten fresh"),
        Line("linear", 2_000, 1.0, "ten counted"),
        Line("codes", 2_000, 1.0),
    )
    lines = _lines((2_000,), private)
    return (Task("mixed", 4, 0, lines, 200), Task("embedding", 4, 0, lines[:3], 200))


def _whole(data_dir: str | None) -> tuple[Task, ...]:
    mixed = (
        Line("linear", 2_000, 0.5, draws=5),
        Line("linear", 2_000, 1.0),
        *(Line("linear", size, epsilon) for size in (10_000, 50_000, 200_000) for epsilon in (0.5, 1.0, 8.0)),
        *(Line("linear", 50_000, 1.0, windows) for windows in _SEVERAL),
        *(Line("codes", size, 1.0) for size in (10_000, 50_000, 200_000)),
    )
    few = (Line("linear", 50_000, 1.0), Line("codes", 50_000, 1.0))
    return (
        Task("mixed", 10, 0, _lines((2_000, 10_000, 50_000, 200_000), mixed)),
        Task("mixed", 25, 0, _lines((50_000,), few)),
        Task("interactions", 10, 0, _lines((50_000,), few)),
        Task("embedding", 10, 0, _lines((50_000,), few)),
        # Ridge regression on 502 entries of every interaction takes as long as all the rest, so there is no share here.
        Task("documents", 22, 0, _lines((), few), data_dir=data_dir),
    )


_SEVERAL: tuple[Windows, ...] = ("ten fresh", "ten counted")


def _values(task: Task, line: Line, played: Played, seeds: Sequence[int]) -> Float64:
    """Mean reward over a line's releases, (seeds,)."""
    return np.array([float(np.mean(played[replace(task, seed=seed)][line])) for seed in seeds])


def _gains(task: Task, line: Line, played: Played, seeds: Sequence[int]) -> Float64:
    return _values(task, line, played, seeds) - _values(task, Line("cold"), played, seeds)


def _shares(task: Task, line: Line, played: Played, seeds: Sequence[int]) -> Float64:
    """The kept share of the non-private gain with equally many contributors, (seeds,)."""
    return _gains(task, line, played, seeds) / _gains(task, Line("raw", line.slots), played, seeds)


def _row(task: Task, line: Line, played: Played, seeds: Sequence[int]) -> Row:
    stated = guarantee_of(task, line)
    columns = {"reward": _values(task, line, played, seeds), "gain": _gains(task, line, played, seeds)}
    if line.form in ("linear", "codes") and Line("raw", line.slots) in task.lines:
        columns["kept"] = _shares(task, line, played, seeds)
    row: Row = {
        "world": world_of(task).name if task.kind != "interactions" else "mixed table, strong pairs",
        "items": task.arms,
        "form": _WORDS[line.form],
        "slots": line.slots,
        "windows": line.windows if line.form == "linear" else "one",
    }
    for name, values in columns.items():
        row[name], row[f"{name}_low"], row[f"{name}_high"] = over_seeds(values)
    return {**row, "seeds": len(seeds), **({"marks": ""} if stated is None else privacy_columns(stated))}


_WORDS: Mapping[Form, str] = {
    "cold": "cold",
    "raw": "non-private",
    "linear": "linear sums",
    "codes": "codes",
}


def _provenance(tasks: Sequence[Task]) -> tuple[Provenance, ...]:
    found = []
    for task in tasks:
        for line in task.lines:
            stated = guarantee_of(task, line)
            if stated is not None:
                label = f"{_WORDS[line.form]}, {world_of(task).name}, {task.arms} items, eps {line.epsilon:g}"
                found.append(Provenance(label, stated, world_of(task).schema.digest.hex()))
    return tuple(found)


def _targets(tasks: Sequence[Task], played: Played, seeds: Sequence[int]) -> list[BenchRow]:
    table, many, _, embedded, documents = tasks

    def kept(task: Task, line: Line) -> float:
        return float(_shares(task, line, played, seeds).mean())

    several = max(kept(table, Line("linear", 50_000, 1.0, windows)) for windows in _SEVERAL)
    small = Line("linear", 2_000, 0.5, draws=5)
    cold = _values(table, Line("cold"), played, seeds)
    releases = np.concatenate(
        [np.array(played[replace(table, seed=seed)][small]) - level for seed, level in zip(seeds, cold, strict=True)]
    )
    linear = Line("linear", 50_000, 1.0)
    return [
        at_least("mixed table, 10 items, eps 1, 50,000 slots: share kept", [kept(table, linear)], "share", 0.8),
        at_least(
            "mixed table, 10 items, eps 1, 200,000 slots: share kept",
            [kept(table, Line("linear", 200_000, 1.0))],
            "share",
            0.9,
        ),
        at_least("ten windows, the better of fresh and counted, 50,000 slots: share kept", [several], "share", 0.7),
        at_least("25 items, eps 1, 50,000 slots: share kept", [kept(many, linear)], "share", 0.7),
        at_least("2,000 slots, eps .5: mean gain over cold", [float(releases.mean())], "reward", 0.01),
        at_most("2,000 slots, eps .5: releases below cold - .003", [float((releases < -0.003).mean())], "share", 0.05),
        at_least("embedding alone, eps 1, 50,000 slots: share kept", [kept(embedded, linear)], "share", 0.85),
        at_least(
            "TMC2007, eps 1, 50,000 slots: reward",
            [float(_values(documents, linear, played, seeds).mean())],
            "reward",
            0.65,
        ),
        at_least(
            "mixed table, 50,000 slots: linear sums less codes",
            [kept(table, linear) - kept(table, Line("codes", 50_000, 1.0))],
            "share",
            0.0,
        ),
    ]
