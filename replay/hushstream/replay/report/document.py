"""What ``results.json`` holds alike for all systems, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hushstream.replay.report.counts import COUNT_CLASSES
from hushstream.replay.report.results import RoleCheck


def counts_json(counts: Mapping[str, int]) -> dict[str, Any]:
    """Counts and, under the same names, the privacy class of each."""
    return {"counts": dict(counts), "count_classes": {name: COUNT_CLASSES[name] for name in counts}}


def verify_json(verify: Mapping[str, RoleCheck] | None) -> dict[str, Any] | None:
    """What `verify` found, by role, the worst of it first; None where it was not asked."""
    return None if verify is None else {role: {"status": one.status, **asdict(one)} for role, one in verify.items()}
