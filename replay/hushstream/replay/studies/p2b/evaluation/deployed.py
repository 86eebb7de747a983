"""A deployment that is evaluated on a log, and the steps to run it live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.agents.worker.deployment import read_draft
from hushstream.agents.yaml_file import read_yaml
from hushstream.engine.declare.plan import Audience, Plan
from hushstream.features.schema import FeatureSchema
from hushstream.replay.configurations import NEVER_SECONDS
from hushstream.replay.logged.log import LoggedDataset
from hushstream.replay.logged.mapping import SWAPPED, looks_like_mapping
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.reports.planning.plan import plan

REWARD_WAIT_SECONDS = 300.0
"""Attribution window of the replay.

Only decisions that do not agree with the log wait; others get their reward at once.
"""

_DAY_MS = 86_400_000
CONFIRMING = "put a public value in its place, or decide that it is public; then delete its name from `from_rows`"
_DIFFERS = (
    "The log was evaluated under this configuration, without what a log cannot have: no user was held out, slots left "
    "at the end of the contributors' rows and not after the settle time, and there was no quota of visits."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextSteps:
    """The steps to run an evaluated deployment live.

    Attributes:
        path: path of its file.
        yaml: content of that file.
        unconfirmed: settings that were taken from rows, and are not confirmed as public yet.
        forecast: its expected outcome, for as many users and visits as the log has.
        commands: the commands, in their order.
    """

    path: str
    yaml: str
    unconfirmed: tuple[str, ...]
    forecast: Plan
    commands: tuple[str, ...]

    @property
    def differs(self) -> str:
        """A sentence on the settings that a log cannot evaluate."""
        return _DIFFERS

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "file": self.path,
            "unconfirmed": list(self.unconfirmed),
            "commands": list(self.commands),
            "plan": self.forecast.as_json(),
        }

    def as_text(self) -> str:
        """Lines for a terminal."""
        confirm = []
        if self.unconfirmed:
            confirm = [f"Confirm as public first: {', '.join(self.unconfirmed)}", f"({CONFIRMING})"]
        return "\n".join(["Deploy this:", *confirm, *(f"  {one}" for one in self.commands), self.forecast.verdict])


@dataclass(frozen=True, slots=True)
class EvaluatedDeployment:
    """A configuration with declared features, read from its file.

    Attributes:
        path: path of the file.
        config: the configuration.
        unconfirmed: settings that were taken from rows.
    """

    path: Path
    config: P2BConfig
    unconfirmed: Sequence[str]

    @property
    def schema(self) -> FeatureSchema:
        """The declared features."""
        return self.config.context.schema

    def replayed(self, log: LoggedDataset, contributes: NDArray[np.bool_]) -> P2BConfig:
        """The configuration, changed so that a log can be replayed under it.

        Raises:
            HushstreamError: it has no space for the log's items, or no contributor has enough rows for a slot.
        """
        config = self.config
        _require_items(self.path, config, log)
        _, rows = np.unique(log.users[contributes], return_counts=True)
        after = config.slot.after_interactions
        if not (rows >= after).any():
            raise HushstreamError(
                f"{self.path}: slot.after_interactions: expected at most {int(rows.max())}, as no contributor has more "
                f"rows, got {after}"
            )
        return replace(
            config,
            slot=replace(config.slot, settle_seconds=NEVER_SECONDS),
            feedback=replace(config.feedback, attribution_window_seconds=REWARD_WAIT_SECONDS),
            lift=replace(config.lift, holdout=0.0),
            budget=None if config.budget is None else replace(config.budget, lift=0.0),
            users=replace(config.users, contexts_per_period=None, expire_after_seconds=None),
        )

    def next_steps(self, log: LoggedDataset) -> NextSteps:
        """The steps to run it live; the forecast assumes as many users, visits and days as the log has."""
        file, folder = self.path, f"{self.config.deployment}/"
        people = len(np.unique(log.users))
        days = max(1.0, float(log.timestamps_ms.max() - log.timestamps_ms.min()) / _DAY_MS)
        audience = Audience(people, max(1, round(len(log) / people)), min(days, 3650.0))
        names = " ".join(map(quote, log.arm_names))
        commands = (
            "export HUSHSTREAM_BOOTSTRAP=127.0.0.1:9092   # your Kafka; without one: hushstream broker --port 9092 &",
            f"hushstream guarantee {file}",
            f"hushstream plan {file} --users {people} --visits-per-user {audience.visits} --days {audience.days:.0f}",
            f"hushstream prepare {file} {folder}",
            f"hushstream keys generate {folder}keys",
            f"hushstream topics apply --deployment {folder}",
            *(f"hushstream worker {role} --deployment {folder} &" for role in ("learner", "shuffler", "aggregator")),
            *((f"hushstream items add {names} --deployment {folder}",) if self.config.named_items else ()),
            f"hushstream verify --deployment {folder}   # after the first decisions",
        )
        return NextSteps(
            path=str(file),
            yaml=file.read_text(encoding="utf-8-sig").rstrip(),
            unconfirmed=tuple(self.unconfirmed),
            forecast=plan(self.config, audience),
            commands=commands,
        )


def evaluated_deployment(path: Path) -> EvaluatedDeployment:
    """Read the deployment to evaluate; it may be a draft.

    Raises:
        ConfigurationError: the file cannot be read, or holds impossible values.
        HushstreamError: it is the mapping of a log, belongs to another system, or declares no features.
    """
    if looks_like_mapping(read_yaml(path)):
        raise HushstreamError(
            f"{path}: expected the configuration of a deployment, got what looks like the mapping of a log{SWAPPED}"
        )
    config, unconfirmed = read_draft(path)
    if config.system != "p2b" or config.context.declared is None:
        got = config.system if config.system != "p2b" else "p2b with histograms"
        raise HushstreamError(f"{path}: expected a deployment of p2b that declares features, got {got}")
    if config.kind != "hosted":
        raise HushstreamError(f"{path}: kind: expected hosted, as learner workers are replayed, got {config.kind}")
    return EvaluatedDeployment(path, config, unconfirmed)


def _require_items(path: Path, config: P2BConfig, log: LoggedDataset) -> None:
    """Refuse a catalogue that does not fit the log's items."""
    if config.named_items:
        if not log.arm_names:
            raise HushstreamError(f"{path}: items.named: expected false, as the mapping numbers its arms, got true")
        if log.arms > config.arms:
            raise HushstreamError(f"{path}: items.capacity: expected at least the log's {log.arms}, got {config.arms}")
    elif log.arms != config.arms:
        raise HushstreamError(f"{path}: items.capacity: expected the log's {log.arms}, got {config.arms}")
