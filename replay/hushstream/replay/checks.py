"""Reads the logs of a run after its end: recomputes what was published, and counts the records of each topic."""

from __future__ import annotations

from collections import Counter

from hushstream.agents.worker.deployment import KeySource
from hushstream.engine.declare.declaration import System
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verify
from hushstream.ops.log_copy import LogCopy
from hushstream.replay.report.results import RoleCheck
from hushstream.schemas.topics import common_name


def role_checks(system: System, logs: LogCopy, keys: KeySource) -> dict[str, RoleCheck]:
    """Recompute everything that was published, and return what was found, by role."""
    found = verify(logs, system, keys)
    checks: dict[str, RoleCheck] = {}
    for role in system.roles:
        counts: Counter[Status] = Counter()
        for tally in found.tallies:
            if tally.role == role.name:
                counts.update(tally.counts)
        checks[role.name] = RoleCheck(
            equal=counts[Status.EQUAL],
            ties=counts[Status.FLOAT_TIE],
            changed=counts[Status.CHANGED],
            uncheckable=counts[Status.UNCHECKABLE],
        )
    return checks


def record_counts(logs: LogCopy) -> dict[str, int]:
    """The number of records by topic; topics that each party has for itself are counted together."""
    totals: Counter[str] = Counter()
    for (topic, _), part in logs.parts.items():
        totals[f"records_{common_name(topic)}"] += len(part.records)
    return dict(sorted(totals.items()))
