"""A schema version that was released never changes: what was written with it is read by its fingerprint for ever."""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[2] / "schemas" / "hushstream" / "schemas" / "avro"
RELEASED = Path(__file__).parent / "golden" / "released.sha256"
"""As ``sha256sum`` writes it. A new version of a record gets a line; no line is ever changed or taken away."""


def test_every_committed_version_of_a_schema_is_byte_for_byte_as_it_was_released() -> None:
    released = {
        name: digest
        for digest, name in (line.split("  ") for line in RELEASED.read_text(encoding="utf-8").splitlines())
    }
    found = {
        path.relative_to(ROOT).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in ROOT.rglob("*.avsc")
    }
    changed = sorted(name for name in released if found.get(name) != released[name])
    assert not changed, f"take a new version (v2.avsc, ...) in place of changing {changed}"
    assert found.keys() == released.keys(), "add a line for what is new"
