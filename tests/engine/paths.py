"""How far a reader has to walk: traced paths of a record through each system.

    python tests/engine/paths.py

Each system's machines are driven over the recording of a small loop (`recordings`), record by record. The last context
that gives nothing but its answer is traced for each role, and so is the longest batch that makes a release or a
version of the model: all records since the one before, at once. Counted are the files and functions of ours that are
called, and how often the file changes from one call to the next. A comprehension belongs to the function that it
stands in. Strings have the same hashes in every run: where two of them meet in a table, more functions are called.

Exit 1 when a figure is above its ceiling (`CEILINGS`). A change that lowers a figure lowers its ceiling in the
same commit. A change that raises one says why in its message.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PRODUCT = tuple(ROOT / name for name in ("pipeline", "schemas", "agents", "replay"))
PIPELINE, TOYS = ROOT / "pipeline", ROOT / "tests" / "engine"
sys.path.insert(0, str(ROOT / "tests" / "shared"))

from hushstream.engine.declare.role import Role  # noqa: E402
from hushstream.engine.records import InputRecord, TopicPartition  # noqa: E402
from machine_drive import Rig, Written  # noqa: E402
from recordings import VARIANTS, Recording, recorded  # noqa: E402


class Walk(NamedTuple):
    """What a batch passes through: distinct files and functions, and changes of file between calls."""

    files: int
    functions: int
    changes: int


ANSWERS, COLLECTS = "context -> decision", "feedback -> release"
RELEASES, PUBLISHES = "slots -> release", "release -> model"
GOALS = {
    ANSWERS: Walk(14, 60, 36),
    PUBLISHES: Walk(9, 35, 18),
    **dict.fromkeys((COLLECTS, RELEASES), Walk(16, 80, 120)),
}
"""By path. What a role that answers releases, such as slots, comes from feedback; others release what slots hold."""

CEILINGS: Mapping[str, Walk] = {
    "bgt rater: context -> decision": Walk(12, 54, 34),
    "bgt rater: feedback -> release": Walk(13, 88, 483),
    "bgt collector: slots -> release": Walk(17, 120, 125),
    "bgt aggregator: release -> model": Walk(8, 40, 27),
    "colin learner: context -> decision": Walk(14, 62, 39),
    "colin counter: slots -> release": Walk(22, 104, 110),
    "colin aggregator: release -> model": Walk(13, 45, 34),
    "meanarm learner: context -> decision": Walk(8, 19, 15),
    "meanarm counter: slots -> release": Walk(15, 62, 49),
    "meanarm aggregator: release -> model": Walk(6, 18, 13),
    "p2b learner: context -> decision": Walk(16, 69, 51),
    "p2b learner: feedback -> release": Walk(26, 203, 977),
    "p2b shuffler: slots -> release": Walk(16, 77, 65),
    "p2b aggregator: release -> model": Walk(8, 27, 16),
    "pdap learner.vendor-0: context -> decision": Walk(17, 68, 42),
    "pdap learner.vendor-0: feedback -> release": Walk(22, 118, 242),
    "pdap learner.vendor-1: context -> decision": Walk(16, 65, 38),
    "pdap learner.vendor-1: feedback -> release": Walk(22, 118, 264),
    "pdap counter: slots -> release": Walk(19, 103, 119),
    "pdap aggregator: release -> model": Walk(12, 64, 54),
    "pdol node: context -> decision": Walk(10, 45, 28),
    "pdol node: feedback -> release": Walk(27, 135, 131),
    "pdol aggregator: release -> model": Walk(11, 44, 52),
    "rrarm learner: context -> decision": Walk(7, 18, 14),
    "rrarm learner: feedback -> release": Walk(17, 69, 61),
}
"""By system, role and path."""

ANSWERED = ({"decided": 1}, {"predicted": 1}, {"asked": 1})
"""What a batch counts that is one context, and nothing else falls due with it."""
COMPREHENSIONS = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}


# Traced paths.


class Call(NamedTuple):
    """A function of ours that a batch passes through, and from how deep in others of ours it is called."""

    code: CodeType
    depth: int


def walk_along(calls: Sequence[Call]) -> Walk:
    """What a reader of these calls walks through."""
    files = [call.code.co_filename for call in calls]
    return Walk(
        len(set(files)), len({call.code for call in calls}), sum(one != other for one, other in pairwise(files))
    )


def walks(system: str | None = None) -> Iterator[tuple[str, str, str, Sequence[Call]]]:
    """The calls of each path through the first recording of each system, or of one, with kind, role and path."""
    first = {variant.kind: variant for variant in reversed(VARIANTS) if system in (None, variant.kind)}
    for kind, variant in sorted(first.items()):
        with variant.registered():
            recording = recorded(variant)
            for role in recording.system.roles:
                if role.key_zone is None:
                    found = {PUBLISHES: calls_of(recording, role, PUBLISHES)}
                else:
                    answers = calls_of(recording, role, ANSWERS)
                    released = calls_of(recording, role, RELEASES)
                    found = {ANSWERS: answers, (RELEASES if answers is None else COLLECTS): released}
                yield from ((kind, role.name, path, calls) for path, calls in found.items() if calls is not None)


def calls_of(recording: Recording, role: Role, path: str) -> Sequence[Call] | None:
    """The calls of the longest batch of a role, the last of equals, that goes all along a path.

    The first such batch is left out, as recordings begin with records that are refused; None where there is no other.
    """
    noised = {topic.name for topic in recording.system.topics if topic.noised}
    drive = Rig(recording, role, 0).drive()
    ends = [number for number, steps in enumerate(drive) if any(goes_along(path, step, noised) for step in steps)]
    if len(ends) < 2:
        return None
    whole = [range(end if path == ANSWERS else before + 1, end + 1) for before, end in pairwise(ends)]
    batch = max(whole, key=lambda batch: (len(batch), batch.start))
    rig = Rig(recording, role, 0)
    every = rig.input()
    for _, _ in zip(range(batch.start), rig.drive(), strict=False):
        """Come to where the batch begins."""
    arrived = {place: recording.records[place][:low] for place, low in rig.machine.positions().items()}
    for place, record in every[batch.start : batch.stop]:
        arrived[place].append(record)
    return traced(rig, arrived)


def goes_along(path: str, written: Written, noised: set[str]) -> bool:
    """Whether what a batch gave is the end of a path."""
    if path == ANSWERS:
        return written.counts in ANSWERED
    if path == RELEASES:
        return any(output.topic in noised for output in written.releases)
    return written.journal is not None


def traced(rig: Rig, arrived: Mapping[TopicPartition, Sequence[InputRecord]]) -> Sequence[Call]:
    """The functions of ours that a machine calls while it takes what has arrived, in order."""
    calls: list[Call] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and is_ours(frame.f_code):
            calls.append(Call(frame.f_code, depth_of(frame)))

    while slices := rig.waiting(arrived):
        # What the collector closes would be counted where it happens to run.
        gc.disable()
        sys.setprofile(note)
        try:
            rig.machine.fold(rig.machine.ready(slices))
        finally:
            sys.setprofile(None)
            gc.enable()
    return calls


def depth_of(frame: FrameType) -> int:
    """How many functions of ours are at work above this one, up to whoever traces."""
    depth, above = 0, frame.f_back
    while above is not None and above.f_code is not traced.__code__:
        depth, above = depth + is_ours(above.f_code), above.f_back
    return depth


@cache
def is_ours(code: CodeType) -> bool:
    """Whether it is a function of the product or of a toy."""
    path = Path(code.co_filename)
    return code.co_name not in COMPREHENSIONS and any(path.is_relative_to(folder) for folder in (*PRODUCT, TOYS))


# The table.


def main() -> int:
    """Print the table; 1 when a figure is above its ceiling."""
    above = []
    print(f"{'files / functions / changes of file':44}{'now':>18}{'ceiling':>18}{'goal':>18}")
    found = {f"{kind} {role}: {path}": walk_along(calls) for kind, role, path, calls in walks()}
    for name, walk in found.items():
        ceiling, goal = CEILINGS.get(name, Walk(0, 0, 0)), GOALS[name.partition(": ")[2]]
        print(f"{name:44}{_shown(walk):>18}{_shown(ceiling):>18}{_shown(goal):>18}")
        above += [name] if any(now > most for now, most in zip(walk, ceiling, strict=True)) else []
    gone = sorted(CEILINGS.keys() - found.keys())
    if above:
        print(f"\nabove the ceiling: {', '.join(above)}", file=sys.stderr)
    if gone:
        print(f"\nno longer traced: {', '.join(gone)}", file=sys.stderr)
    return 1 if above or gone else 0


def _shown(walk: Walk) -> str:
    return " / ".join(map(str, walk))


def with_the_same_hashes() -> None:
    """Begin this program again unless strings have the same hashes in every run."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})


if __name__ == "__main__":
    with_the_same_hashes()
    sys.exit(main())
