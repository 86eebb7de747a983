"""The toy of the guide "Adding a system": it runs, follows from its logs, and a field that it forgets is noticed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hushstream.engine.state.declared import State
from hushstream.ops.check.verify import verify
from hushstream.ops.log_copy import LogCopy
from hushstream.replay.runners.direct import MemoryLog
from hushstream.schemas import codec
from machine_drive import Rig, require_undisturbed
from offered import MEANARM
from recordings import KEYS, VARIANTS, Recording, recorded

(TOY,) = (variant for variant in VARIANTS if variant.kind == "meanarm")
SOURCES = sorted((MEANARM / "hushstream_meanarm").glob("*.py"))
GUIDE = Path(__file__).parents[3] / "CONTRIBUTING.md"


@pytest.fixture
def played() -> Iterator[Recording]:
    with TOY.registered():
        yield recorded(TOY)


def read(played: Recording, topic: str) -> list[dict[str, Any]]:
    found = [codec.decode(record.value) for record in played.records[topic, 0] if record.value != b"no record"]
    return [fields for name, fields in found if name != "Genesis"]


def test_slots_become_noised_sums_and_means_that_decide(played):
    slots, sums, means = read(played, "slots"), read(played, "sums"), read(played, "models")
    windows = len(slots) // 4
    assert len(sums) == len(read(played, "ledger")) == len(means) == windows >= 4
    exact = [np.bincount([slot["arm"] for slot in slots[4 * n : 4 * n + 4]], minlength=3) for n in range(windows)]
    noised = [np.frombuffer(one["sums"], "<i8")[:3] for one in sums]
    # Discrete Laplace at epsilon 2 of L1 norm 2 is 0 with a chance below 1/2: not in all of 3 * 4 cells.
    assert any((one != other).any() for one, other in zip(exact, noised, strict=True))
    best = int(np.argmax(np.frombuffer(means[-1]["means"], "<f8")))
    last = read(played, "answers")[-2]
    assert np.frombuffer(last["arms"], "<i4").tolist() in ([], [best])


def test_what_it_published_follows_from_its_logs(played):
    log = MemoryLog()
    for (topic, partition), records in played.records.items():
        log.load(topic, partition, list(records))
    found = verify(LogCopy.of(log), played.system, KEYS)
    written = {one.source[0]: len(one.findings) for one in found.tallies if one.findings}
    assert written == {"slots": 1, "sums": 1}, "the two records that nobody of ours wrote, and nothing else"


@cache
def forgetting(kind: type, field: str) -> type:
    """A role whose author has said of a field that it need not be kept."""
    whole: State = kind.state  # type: ignore[attr-defined]
    left = {name: kept for name, kept in whole.fields.items() if name != field}

    class Forgetting(kind):  # type: ignore[misc, valid-type]
        state = State(whole.form.what, whole.form.schema["name"], left)
        derived: ClassVar[Mapping[str, str]] = {field: "said to follow from the rest"}

    Forgetting.__module__ = kind.__module__
    return Forgetting


def forgets(machine: Any, field: str) -> Any:
    machine.__class__ = forgetting(type(machine), field)
    return machine


def rigs_of(played: Recording, role: str, field: str) -> tuple[Rig, Rig]:
    place = next(one for one in played.homes() if one[0].name == role)
    one, other = (Rig(played, *place, remake=lambda machine: forgets(machine, field)) for _ in range(2))
    return one, other


@pytest.mark.parametrize(
    ("role", "field"),
    [("counter", "slots"), ("counter", "window"), ("learner", "asked"), ("learner", "counted"), ("aggregator", "sums")],
)
def test_the_contract_suite_fails_where_a_role_forgets_a_field(played, role, field):
    """So the same window would leave twice, with other noise or with none of its slots."""
    with pytest.raises(AssertionError, match=r"restored before record \d+, it writes other bytes"):
        require_undisturbed(*rigs_of(played, role, field), set(), {})


def test_a_forgotten_field_that_shows_in_no_output_is_found_among_the_attributes(played):
    """Nothing comes twice in this recording, so the ids that are known again decide nothing here."""
    lost = require_undisturbed(*rigs_of(played, "counter", "known"), set(), {})
    assert "hushstream.feedback.memory.BoundedMap" in {attribute.owner for attribute in lost}


def code_lines(path: Path) -> int:
    """Lines of code: no blank ones, comments, imports or docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    left: set[int] = set()
    for node in ast.walk(tree):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if text or isinstance(node, ast.Import | ast.ImportFrom):
            left.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = path.read_text("utf-8").splitlines()
    return sum(
        n not in left and bool(line.strip()) and not line.strip().startswith("#") for n, line in enumerate(lines, 1)
    )


def test_the_guide_names_the_files_of_the_toy_with_their_lines():
    said = dict(re.findall(r"^\| `(\w+\.py)` \| (\d+) \|", GUIDE.read_text("utf-8"), re.MULTILINE))
    lines = {path.name: code_lines(path) for path in SOURCES if path.name != "__init__.py"}
    assert {name: int(number) for name, number in said.items()} == lines
    assert f"{sum(lines.values())} lines of code" in GUIDE.read_text("utf-8")
