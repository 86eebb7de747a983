"""Reads the logs of a run after its end: recomputes what was published, and counts the records of each topic.

`run_fields` joins both with what else the results of all systems have.

*Measures.* Measures the speed and the environment of every run, under the same names for all systems.

*Play options.* The options of a replay that all systems have.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hushstream.agents.worker.deployment import KeySource
from hushstream.engine.declare.declaration import System
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verify
from hushstream.ops.log_copy import LogCopy
from hushstream.replay.report.parts import RoleCheck, slot_public
from hushstream.replay.runners.playing import Place, Recording, Runner, require_runner
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import common_name

NEVER_SECONDS = 10.0**7
"""A settle time that no run reaches: in a closed loop the end of a phase sends the slots."""


def merged_values(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The nested values of ``base``; a value that ``over`` has too is taken from there."""
    merged = dict(base)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = merged_values(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return merged


def nested(values: Mapping[str, Any], option: str) -> dict[str, Any]:
    """Turn names with dots into nested values: ``privacy.epsilon`` becomes the key epsilon below privacy.

    Values that are nested already stay as they are.

    Raises:
        HushstreamError: one name holds a value and has values below it, too; the message names the ``option``.
    """
    result: dict[str, Any] = {}
    for name, value in values.items():
        *above, last = name.split(".")
        place = result
        for key in above:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise HushstreamError(f"{option} {name}: expected {key} to have values below it, got a value")
        below = place.get(last, {})
        place[last] = {**below, **nested(value, option)} if isinstance(value, Mapping) else value
    return result


@dataclass(frozen=True, slots=True)
class PlayOptions:
    """What to run.

    Attributes:
        dataset: a world by name.
        runner: "direct" (machines in this process) or "stream" (broker and workers as processes).
        seed: of world, coins, noise and keys: the run is reproducible, and says that it is not private.
        world: options of the world.
        config: values of the configuration that replace the defaults, nested as in deployment.yaml.
        folder: where the deployment lives; a temporary folder by default.
        bootstrap: a Kafka to run on; the embedded broker by default.
        security: YAML file with that Kafka's SASL and TLS settings, as `hushstream.agents.security` reads it.
        verify: recompute everything that was published, at the end.
    """

    dataset: str = ""
    runner: Runner = "direct"
    seed: int = 0
    world: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    bootstrap: str | None = None
    security: Path | None = None
    verify: bool = True

    def require_runner(self) -> None:
        """Refuse an unknown runner, and a Kafka that may not be used, before anything is made.

        Raises:
            HushstreamError, ConfigurationError: as `hushstream.replay.runners.playing.require_runner`.
        """
        require_runner(self.runner, self.bootstrap, self.security)

    def place(self, folder: Path, resume: bool = False) -> Place:
        """Where to run the deployment in ``folder``; with ``resume`` the run continues topics of an earlier one."""
        return Place(self.runner, folder, self.bootstrap, self.seed, resume, self.security)


_REPORTED = ("shown", "rewarded")
"""Names of the counts of what an application reports after a decision."""


def throughput(
    seconds: float, decisions: int, latencies: Sequence[float], counts: Mapping[str, int], memory: Mapping[str, int]
) -> dict[str, float]:
    """The speed of a run.

    Args:
        seconds: from the first context to the end of the play.
        decisions: how many decisions were made.
        latencies: seconds from request to answer, for a sample of the decisions.
        counts: events by outcome; every display and every reward that was reported is an event beside its decision. A
            live run gives no counts, as the number of rewards is zone-private: its events are its decisions.
        memory: peak resident bytes by process.
    """
    events = decisions + sum(counts.get(name, 0) for name in _REPORTED)
    figures = {
        "seconds": seconds,
        "decisions": float(decisions),
        "decisions_per_second": decisions / seconds,
        "events_per_second": events / seconds,
        "decision_seconds_p50": float(np.percentile(latencies, 50)),
        "decision_seconds_p99": float(np.percentile(latencies, 99)),
    }
    return figures | {f"peak_memory_bytes_{name}": float(size) for name, size in memory.items()}


def environment() -> dict[str, str | int]:
    """The versions of Python and numpy, and the number of cores."""
    return {"python": platform.python_version(), "numpy": np.__version__, "cores": os.cpu_count() or 1}


def run_fields(
    options: PlayOptions, dataset: str, system: System, recording: Recording[Any], answers: int, public: bool = True
) -> dict[str, Any]:
    """What the result of every run has (`hushstream.replay.report.replayed.RunResult`), by field.

    Args:
        options: what was run.
        dataset: name of the world.
        system: the deployment that was run.
        recording: its logs and what was played.
        answers: how many requests were answered.
        public: whether exact counts may be shown.
    """
    played, counts = recording.played, {**recording.counts, **record_counts(recording.logs)}
    return {
        "system": system.config.system,
        "dataset": dataset,
        "runner": options.runner,
        "seed": options.seed,
        "deployment": system.config.deployment,
        "config_digest": system.digest.hex(),
        "privacy": system.guarantee().under_key(reproducible=True),
        "counts": counts if public else slot_public(counts),
        "throughput": throughput(
            played.seconds, answers, played.latencies, recording.counts if public else {}, recording.peak_memory_bytes
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
