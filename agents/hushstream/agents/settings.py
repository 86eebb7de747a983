"""The settings of a worker, which an operator gives; unknown keys are refused."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hushstream.agents import defaults
from hushstream.agents.observe.endpoints import EVERYBODY, MetricsAccess
from hushstream.agents.security import Cluster, Security

BATCH_BYTES = 256 * 1024
"""The producer sends small outputs to one partition together, up to this size."""

RECORD_BYTES_LIMIT = 2 * 1024 * 1024
"""Largest produce request: a value has at most 1 MiB, and the rest is for the overhead of batches."""

IN_FLIGHT = 6
"""How many journal records of one partition may be in flight."""


def group_of(deployment: str, role: str) -> str:
    """The consumer group of a role's workers, unless the settings name another."""
    return f"{deployment}.{role}"


_COMMAND = re.compile(r"`hushstream ((?:topics|logs|dead-letters)(?:(?! --deployment)[^`])*)`")
"""A command that does not say yet which deployment it is for."""
_AS_ROLE = ("logs check", "logs repair foreign", "logs repair marks")
"""What a role's own account may do; for other commands administrators name theirs."""


def command_line(words: str, place: str, account: str, security: Security, duty: str = "") -> str:
    """A whole command; access rules are made for the account of this role or duty.

    The file ``account`` of a role, a duty or the operator gives no right to create, delete or trim a topic: where
    accounts differ, a command for that names an administrator's file in its place.
    """
    plain = security.protocol == "PLAINTEXT"
    if words.startswith("topics apply") and duty and not plain:
        words += f" --principals {shlex.quote(f'{duty}={security.account}')}"
    who = account if plain or words.startswith(_AS_ROLE) else "--security ADMINISTRATOR.yaml"
    return " ".join(filter(None, ("hushstream", words, place, who)))


def located(text: str, command: Callable[[str], str], bootstrap: str) -> str:
    """A message whose commands are completed, so that each works as it is printed."""
    return _COMMAND.sub(lambda found: f"`{command(found[1])}`", text).replace("HOST:PORT", bootstrap)


class WorkerSettings(BaseModel):
    """Everything that one worker process needs to know besides its machines.

    Attributes:
        deployment: names the snapshots, so that two deployments may share a data directory.
        datadir: where snapshots are kept; one per worker, or shared by the workers of one role.
        release_marks: the folder of the marks of what was released (`hushstream.agents.recovery.marks`); ``datadir``
            by default.
        place: the command-line options that locate this deployment, quoted for a shell; messages that name a command
            append them.
        account: the option that names the worker's own account, for commands that it may run.
        accept_loss: the refusals of a journal that the operator accepts (`hushstream.agents.recovery.marks`).
        batch_records, batch_bytes: the most that one fold takes from one input partition.
        buffer_records, buffer_bytes: the most that waits in memory for one input partition.
        resident_users: about how many users of one learner partition are in memory; the others are in its data
            directory.
        let_go_seconds: how long the disk of the state folder may refuse writes. After that the worker leaves its group,
            so that another worker can take over its partitions. It joins again when the disk has room.
        tell_seconds: how long a worker that cannot go on stays outside its group, so that Prometheus can read the
            reason: four scrapes at the shipped interval. It stays only if it serves metrics, and no restart would help.
        state_bytes_per_second: the average rate at which the state of one partition is published
            (`hushstream.agents.recovery.state_topic`), to spare disk and network: a large state is published less
            often.
        in_flight: how many journal records of one partition may wait at once for an acknowledgement: of themselves, of
            their mark, or of their outputs. With two for each of these, none waits for another's round trip.
        journal_linger_milliseconds: how long a record of the leading input waits, at most, for others to share its
            journal record. It waits only if records come often enough (`hushstream.agents.partition.schedule`).
        session_timeout_seconds: how long the group waits for a silent worker, before others get its partitions.
        named_wait_seconds: how long a context may delay its partition because it names a click that has not come. This
            is a little less than the 2 s within which the contexts behind it must be answered.
        schedule: ``live`` folds what has arrived. ``fixed`` merges inputs by log time and ends a batch after every
            ``fixed_records`` records of the leading input (a learner's contexts), so that an interrupted run makes the
            same batches as an uninterrupted one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap: str
    role: str
    group: str
    deployment: str = "default"
    topic_prefix: str = ""
    datadir: Path
    release_marks: Path | None = None
    place: str = ""
    account: str = ""
    accept_loss: tuple[str, ...] = ()
    security: Security = Security()

    metrics_host: str = defaults.METRICS_HOST
    zone_metrics_host: str = defaults.METRICS_HOST
    metrics_access: MetricsAccess = EVERYBODY
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    zone_metrics_port: int | None = Field(default=None, ge=0, le=65535)

    batch_records: int = Field(default=2048, ge=1)
    batch_bytes: int = Field(default=1024 * 1024, ge=1)
    buffer_records: int = Field(default=16384, ge=1)
    buffer_bytes: int = Field(default=16 * 1024 * 1024, ge=1)
    resident_users: int = Field(default=defaults.RESIDENT_USERS, ge=2)
    state_bytes_per_second: int = Field(default=defaults.STATE_BYTES_PER_SECOND, ge=1024)
    in_flight: int = Field(default=IN_FLIGHT, ge=1, le=64)
    journal_linger_milliseconds: float = Field(default=defaults.JOURNAL_LINGER_MILLISECONDS, ge=0)
    linger_milliseconds: int = Field(default=0, ge=0)
    fetch_wait_milliseconds: int = Field(default=20, ge=1)

    session_timeout_seconds: float = Field(default=defaults.SESSION_TIMEOUT_SECONDS, gt=0)
    heartbeat_seconds: float = Field(default=defaults.HEARTBEAT_SECONDS, gt=0)
    connect_timeout_seconds: float = Field(default=defaults.CONNECT_TIMEOUT_SECONDS, gt=0)
    join_timeout_seconds: float = Field(default=defaults.JOIN_TIMEOUT_SECONDS, gt=0)
    commit_interval_seconds: float = Field(default=0.5, gt=0)
    snapshot_interval_seconds: float = Field(default=defaults.SNAPSHOT_INTERVAL_SECONDS, gt=0)
    let_go_seconds: float = Field(default=5.0, gt=0)
    tell_seconds: float = Field(default=60.0, ge=0)
    tick_interval_seconds: float = Field(default=1.0, gt=0)
    named_wait_seconds: float = Field(default=1.8, gt=0)

    schedule: Literal["live", "fixed"] = "live"
    fixed_records: int = Field(default=64, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> WorkerSettings:
        if self.heartbeat_seconds * 2 > self.session_timeout_seconds:
            raise ValueError(
                f"heartbeat_seconds: expected at most half of session_timeout_seconds "
                f"({self.session_timeout_seconds}), got {self.heartbeat_seconds}"
            )
        if self.buffer_records < self.batch_records:
            raise ValueError(
                f"buffer_records: expected at least batch_records ({self.batch_records}), got {self.buffer_records}"
            )
        self.cluster.require_encryption()
        return self

    @property
    def journal_linger_seconds(self) -> float:
        """How long a record waits for others; 0 if the schedule is ``fixed``, as the logs then decide each batch."""
        return self.journal_linger_milliseconds / 1000 if self.schedule == "live" else 0.0

    @property
    def marks_folder(self) -> Path:
        """The folder of the marks of what was released."""
        return self.release_marks or self.datadir / "release-marks"

    @property
    def cluster(self) -> Cluster:
        """The broker's address, and how to connect to it."""
        return Cluster(self.bootstrap, self.security)

    def client_options(self) -> dict[str, Any]:
        """Keyword arguments that every aiokafka client of this worker shares."""
        return self.cluster.client_options()

    def physical(self, topic: str) -> str:
        """The broker's name of a logical topic."""
        return self.topic_prefix + topic

    def command(self, words: str) -> str:
        """A whole command line for this deployment, quoted for a shell."""
        return command_line(words, self.place, self.account, self.security, self.role)

    def located(self, text: str) -> str:
        """A message whose commands are for this deployment, so that each works as it is printed."""
        return located(text, self.command, self.bootstrap) if self.place else text
