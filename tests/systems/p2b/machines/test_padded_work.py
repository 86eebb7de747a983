"""What a release does is the same whatever it holds: no line, no call and no array's size follows content.

How long it takes is then content's in nothing but what caches make of the addresses. No time is measured here:
the rows ``time-of-...`` of ``hushstream audit --all`` do that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

from hushstream.systems.p2b import deployment as form
from hushstream.systems.p2b import shuffler as sums
from hushstream.systems.p2b import slots
from hushstream.systems.p2b.machines import shuffler as p2b_release
from hushstream.systems.p2b.slots import Report

STAGES = ("engine", "systems", "counting")
"""The packages that handle content on its way into a release. Noise is drawn below them, and is not content."""


def shape_of(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return (value.dtype.str, value.shape)
    return type(value).__name__ if not isinstance(value, list | tuple | dict | bytes) else len(value)


class Watched:
    """A function of numpy that notes the sizes of what it is given; so do its methods, as ``np.add.at``."""

    def __init__(self, name: str, function: Any, seen: list[Any]) -> None:
        self._name, self._function, self._seen = name, function, seen

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._seen.append((self._name, *map(shape_of, arguments), *map(shape_of, named.values())))
        return self._function(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return Watched(f"{self._name}.{name}", getattr(self._function, name), self._seen)


class WatchedNumpy(ModuleType):
    """numpy, as a module under test sees it; types and constants are themselves."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__("numpy")
        self.__dict__["_seen"] = seen

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        return Watched(name, found, self._seen) if callable(found) and not isinstance(found, type) else found


def stage_of(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(tuple(f"hushstream.{stage}." for stage in STAGES))


@contextmanager
def watched() -> Iterator[list[Any]]:
    """Every line that the stages run, with the sizes of the arrays in sight, and every call of numpy and of C."""
    seen: list[Any] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not stage_of(frame):
            return None
        arrays = {name: shape_of(value) for name, value in frame.f_locals.items() if isinstance(value, np.ndarray)}
        seen.append((event, frame.f_code.co_qualname, frame.f_lineno, arrays))
        return trace

    def profile(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and stage_of(frame):
            seen.append(("c", frame.f_code.co_qualname, function.__qualname__))

    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("hushstream.") and name.split(".")[1] in STAGES and getattr(module, "np", None) is np:
                patch.setattr(module, "np", WatchedNumpy(seen))
        before = sys.gettrace(), sys.getprofile()
        sys.settrace(trace)
        sys.setprofile(profile)
        try:
            yield seen
        finally:
            sys.settrace(before[0])
            sys.setprofile(before[1])


def work_of(make: Callable[[Any], Any], contents: Any) -> list[Any]:
    """What folding takes, once all that is cached by configuration is there."""
    make(contents).fold()
    rig = make(contents)
    with watched() as seen:
        assert rig.fold().journals
    return seen


SLOTS = 40
CONTENTS = {
    "nulls": [None] * SLOTS,
    "all alike": [Report(1, 2, 1)] * SLOTS,
    "reports": [Report(number % 4, number % 5, number % 2) for number in range(SLOTS)],
    "mixed": [Report(number % 4, 0, 1) if number % 3 else None for number in range(SLOTS)],
}
RELEASES = {
    "slot sums": {"sums": "fresh"},
    "sampled slot sums": {"sums": "fresh", "sampling": 0.5},
    "slot sums through a counter": {"sums": "counter", "windows": 64},
    # So high that nothing is let through: what is released may show in the time that it takes.
    "tuples": {"mode": "tuples", "sampling": 0.5, "threshold": 1_000},
    "paper": {"mode": "paper", "sampling": 0.5, "threshold": 1_000},
}


def slots_of(rigs: Any, release: dict[str, Any]) -> Callable[[list[Report | None]], Any]:
    def make(contents: list[Report | None]) -> Any:
        rig = rigs.ShufflerRig(rigs.make_system(release={"window_slots": SLOTS // 2, **release}))
        for number, report in enumerate(contents):
            rig.slot(number, report)
        return rig

    return make


@pytest.mark.parametrize("release", RELEASES.values(), ids=list(RELEASES))
def test_a_shuffler_does_the_same_for_reports_as_for_nulls(rigs: Any, release: dict[str, Any]) -> None:
    make = slots_of(rigs, release)
    expected = work_of(make, CONTENTS["nulls"])
    assert {"unpack", "unpack_all", "bincount"} <= {str(part) for entry in expected for part in entry[:2]}
    for name, contents in CONTENTS.items():
        assert work_of(make, contents) == expected, name


REWARDS = {"none": 0.0, "all": 1.0, "some": None}
MECHANISMS = {
    "negative-digit": {},
    "binary": {"mechanism": "binary"},
    "gaussian digits": {"noise": "gaussian"},
    "k-norm": {"noise": "k-norm"},
    "blt": {"mechanism": "blt", "noise": "gaussian"},
}


@pytest.mark.parametrize("release", MECHANISMS.values(), ids=list(MECHANISMS))
def test_a_counter_does_the_same_for_any_rewards(related: Any, release: dict[str, Any]) -> None:
    def make(reward: float | None) -> Any:
        rig = related.CounterRig(related.releasing(**release))
        rows = related.some_rewards(1, 12)
        for number in range(3):
            part = rows[4 * number : 4 * number + 4]
            rig.rewards(number, [(node, x, own if reward is None else reward) for node, x, own in part])
        return rig

    expected = work_of(make, REWARDS["none"])
    assert any(entry[1:2] == ("Rows.lattice",) for entry in expected)
    for name, reward in REWARDS.items():
        assert work_of(make, reward) == expected, name


# That the watch sees what it is there for.

ADDED = "np.add.at(ones, cells, reports.levels)"
MUTANTS = {
    "an early return for a null": (
        (slots, "unpack", form),
        ("    # A null slot is", "    if kind == _NULL:\n        return None\n    # A null slot is"),
    ),
    "nulls left out of an array": (
        (sums, "slot_sums", p2b_release),
        (ADDED, "np.add.at(ones, cells[reports.counted], reports.levels[reports.counted])"),
    ),
    "a branch on whether there is a report": (
        (sums, "slot_sums", p2b_release),
        (ADDED, f"if reports.counted.any():\n        {ADDED}"),
    ),
}


def mutant_of(module: ModuleType, name: str, old: str, new: str) -> FunctionType:
    """A function of a module with one place of the module's text changed."""
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    assert text.count(old) == 1
    changed: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(text.replace(old, new), str(module.__file__), "exec"), changed)
    return FunctionType(changed[name].__code__, module.__dict__, name)


@pytest.mark.parametrize(("place", "change"), MUTANTS.values(), ids=list(MUTANTS))
def test_work_that_follows_content_is_seen(
    rigs: Any, monkeypatch: pytest.MonkeyPatch, place: tuple[ModuleType, str, ModuleType], change: tuple[str, str]
) -> None:
    module, name, user = place
    monkeypatch.setattr(user, name, mutant_of(module, name, *change))
    make = slots_of(rigs, RELEASES["slot sums"])
    assert work_of(make, CONTENTS["nulls"]) != work_of(make, CONTENTS["reports"])
