"""Reads the logs of a run after its end: recomputes what was published, and counts the records of each topic.

`run_fields` joins both with what else the results of all systems have.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hushstream.agents.worker.deployment import KeySource
from hushstream.engine.declare.declaration import System
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verify
from hushstream.ops.log_copy import LogCopy
from hushstream.replay.measures import environment, throughput
from hushstream.replay.play_options import PlayOptions
from hushstream.replay.report.results import RoleCheck, StatedGuarantee
from hushstream.replay.runners.playing import Recording
from hushstream.schemas.topics import common_name


def run_fields(
    options: PlayOptions, dataset: str, system: System, recording: Recording[Any], answers: int
) -> dict[str, Any]:
    """What the result of every run has (`hushstream.replay.report.replayed.Replayed`), by field.

    Args:
        options: what was run.
        dataset: name of the world.
        system: the deployment that was run.
        recording: its logs and what was played.
        answers: how many requests were answered.
    """
    played = recording.played
    return {
        "dataset": dataset,
        "runner": options.runner,
        "seed": options.seed,
        "deployment": system.config.deployment,
        "config_digest": system.digest.hex(),
        "privacy": StatedGuarantee.of(system.promises.releases.under_key(reproducible=True)),
        "counts": {**recording.counts, **record_counts(recording.logs)},
        "throughput": throughput(
            played.seconds, answers, played.latencies, recording.counts, recording.peak_memory_bytes
        ),
        "verify": role_checks(system, recording.logs, KeySource(seed=options.seed)) if options.verify else None,
        "environment": environment(),
    }


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
