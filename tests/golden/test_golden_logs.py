"""What every built-in system publishes, journals and packs is what it was: for changes that must change no byte.

The recordings of all variants (`recordings`) are small closed loops under seeded keys. `golden.json` holds, for every
partition of every topic, a digest of each record, and for every role and home the digest of the state that is packed
after the last record. So it says which topic changed, and at which record.

After a change of bytes that is wanted, record them anew and look at what changed:

    HUSHSTREAM_NEW_GOLDEN=1 pytest tests/golden

Models and scores are floats out of linear algebra, which another CPU, or another release of its libraries, rounds in
another way (it does between `OPENBLAS_CORETYPE=Prescott` and `Haswell`). Where such floats stand (`ROUNDED`), and in
what holds a digest of them, digests are compared only where `kernels` are those of the machine that recorded them. All
else follows from whole numbers, and is compared everywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import threadpoolctl

from hushstream.schemas.topics import common_name
from machine_drive import Rig
from recordings import VARIANTS, Variant, recorded

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).with_name("golden.json")
RECORD = "HUSHSTREAM_NEW_GOLDEN"
ROUNDED = {
    "p2b": {"decisions", "models", "learner", "aggregator"},
    "colin": {"decisions", "models", "learner", "aggregator"},
    "p2b-declared-devices": {"statements"},
    "pdol-node": {"predictions", "node"},
    "bgt": {"ratings", "predictions", "models", "rounds", "rater", "aggregator"},
    "bgt-devices": {"statements", "updates", "dead-letters-shuffler", "journal-collector", "collector"},
}
"""Topics and roles, by system or variant, whose bytes follow from floats out of linear algebra.

Statements sign digests of models. Where devices rate, one opens each round among ``updates``, and the collector digests
and refuses copies of it.
"""
SHORT = 8
"""Hexadecimal digits of a record's digest: enough to see that it changed."""


def digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()


def logs_of(variant: Variant) -> dict[str, str]:
    """The digests of the records of each partition, one after the other, in one string."""
    records = recorded(variant).records
    return {
        f"{topic}/{partition}": "".join(digest(record.value)[:SHORT] for record in part)
        for (topic, partition), part in sorted(records.items())
    }


def states_of(variant: Variant) -> dict[str, str]:
    """The digest of the state of each role and home after its last record."""
    found = {}
    for role, home in recorded(variant).homes():
        rig = Rig(recorded(variant), role, home)
        for _ in rig.drive():
            pass
        found[f"{role.name}/{home}"] = digest(rig.machine.snapshot())
    return found


OWN = tuple(variant for variant in VARIANTS if variant.package is None)


def golden_of(variant: Variant) -> dict[str, dict[str, str]]:
    return {"logs": logs_of(variant), "states": states_of(variant)}


def kernels() -> str:
    """What decides how floats are rounded here: numpy, the kernels of its BLAS, and what the CPU can do."""
    blas = sorted({str(one.get("architecture")) for one in threadpoolctl.threadpool_info()})
    features = sorted(name for name, there in np._core._multiarray_umath.__cpu_features__.items() if there)
    return digest(json.dumps([np.__version__, blas, features]).encode())


def is_rounded(variant: Variant, name: str) -> bool:
    rounded = ROUNDED.get(variant.kind, set()) | ROUNDED.get(variant.name, set())
    return common_name(name.rpartition("/")[0]) in rounded


def changes(variant: Variant, was: Mapping[str, Mapping[str, str]], same_kernels: bool) -> list[str]:
    """What differs from a recording, in words."""
    found = []
    for what, now in golden_of(variant).items():
        for name in sorted(now.keys() | was[what].keys()):
            before, after = was[what].get(name, ""), now.get(name, "")
            if before != after and (same_kernels or not is_rounded(variant, name)):
                found.append(
                    f"{variant.name}: {what[:-1]} {name}{_at(before, after) if what == 'logs' else ''} changed"
                )
    return found


def _at(before: str, after: str) -> str:
    pairs = zip(before, after, strict=False)
    same = (
        next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(before), len(after))) // SHORT
    )
    return f", from record {same} of {len(before) // SHORT} on (there are {len(after) // SHORT} now),"


@pytest.fixture(scope="module")
def golden() -> Any:
    if os.environ.get(RECORD):
        made = {"kernels": kernels(), "variants": {variant.name: golden_of(variant) for variant in OWN}}
        GOLDEN.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", "utf-8")
    return json.loads(GOLDEN.read_text("utf-8"))


@pytest.mark.parametrize("variant", OWN, ids=lambda variant: variant.name)
def test_no_byte_that_a_system_publishes_journals_or_packs_has_changed(variant, golden):
    found = changes(variant, golden["variants"][variant.name], golden["kernels"] == kernels())
    assert not found, "\n".join([*found, f"if that is wanted: {RECORD}=1 pytest tests/golden"])


def test_a_change_is_named_by_topic_and_record_whatever_the_kernels(golden):
    variant = OWN[0]
    was = golden["variants"][variant.name]
    windows, models = was["logs"]["window-sums/0"], was["logs"]["models/0"]
    bent = windows[: 2 * SHORT] + "0" * SHORT + windows[3 * SHORT :]
    altered = {**was, "logs": {**was["logs"], "window-sums/0": bent, "models/0": models[:-1] + "x"}}
    (found,) = changes(variant, altered, same_kernels=False)
    assert found.startswith("p2b-windows: log window-sums/0, from record 2 of ")


def test_no_variant_is_left_without_golden_logs(golden):
    assert golden["variants"].keys() == {variant.name for variant in OWN}
