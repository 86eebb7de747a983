"""What an operator can set for a worker; unknown keys are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hushstream.agents import defaults
from hushstream.agents.observe.endpoints import EVERYBODY, MetricsAccess
from hushstream.agents.security import Cluster, Security

BATCH_BYTES = 256 * 1024
"""Small outputs to one partition share a request up to this size."""

RECORD_BYTES_LIMIT = 2 * 1024 * 1024
"""Largest produce request; a value is at most 1 MiB, the rest is room for batch overhead."""

IN_FLIGHT = 6
"""Journal records of one partition that may be on their way."""


def group_of(deployment: str, role: str) -> str:
    """The consumer group of a role's workers, unless the settings name another."""
    return f"{deployment}.{role}"


class WorkerSettings(BaseModel):
    """Everything that one worker process needs to know besides its machines.

    Attributes:
        deployment: names the snapshots, so that two deployments may share a data directory.
        datadir: where snapshots are kept; one per worker, or shared by the workers of one role.
        paid_marks: where it is noted what was released (`hushstream.agents.recovery.high_water`); by default in
            ``datadir``.
        place: the options that say to other commands where this deployment is, as a shell takes them, for messages that
            name a command.
        accept_loss: refusals of a journal that an operator goes on in spite of (`hushstream.agents.recovery.marks`).
        batch_records, batch_bytes: the most that one fold takes from one input partition.
        buffer_records, buffer_bytes: the most that waits in memory for one input partition.
        resident_users: users of one learner partition in memory, about; the others lie in its data directory.
        let_go_seconds: how long the state folder's disk may refuse what must be on it; then the worker leaves its
            group, so that a peer can take over, and comes back when there is room.
        tell_seconds: how long a worker that cannot go on stays to tell why, out of its group, where its metrics are
            served and a new start would not mend it: four scrapes of the shipped interval.
        state_bytes_per_second: what publishing the state of one partition may take on average, of the broker's room and
            the network (`hushstream.agents.recovery.state_topic`): a large state is published less often.
        in_flight: journal records of one partition that may await their acknowledgement, or that of their mark or of
            their outputs: two for each, so that none waits for the others' round trips.
        gather_milliseconds: how long a record of the leading input waits for others to share a journal record with it,
            at most, and only at a pace at which one can be expected by then (`hushstream.agents.partition.linger`).
        session_timeout_seconds: how long the group waits for a silent worker; see `hushstream.agents.worker.session`.
        named_wait_seconds: how long a context may hold its partition back by naming a click that is not there: a little
            below the 2 s after which whoever waits behind it has to have an answer.
        schedule: ``live`` folds what has arrived; ``fixed`` merges by log time and cuts at every ``fixed_records``
            records of the leading input (a learner's contexts), so that a disturbed run repeats an undisturbed one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap: str
    role: str
    group: str
    deployment: str = "default"
    topic_prefix: str = ""
    datadir: Path
    paid_marks: Path | None = None
    place: str = ""
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
    gather_milliseconds: float = Field(default=defaults.GATHER_MILLISECONDS, ge=0)
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
    def gather_seconds(self) -> float:
        """How long a record waits for others; where the logs alone say what makes a batch, there is nothing to gain."""
        return self.gather_milliseconds / 1000 if self.schedule == "live" else 0.0

    @property
    def cluster(self) -> Cluster:
        """Where the broker is, and how to talk to it."""
        return Cluster(self.bootstrap, self.security)

    def client_options(self) -> dict[str, Any]:
        """Keyword arguments that every aiokafka client of this worker shares."""
        return self.cluster.client_options()

    def physical(self, topic: str) -> str:
        """The broker's name of a logical topic."""
        return self.topic_prefix + topic

    def command(self, words: str) -> str:
        """A command about this deployment, as a shell takes it."""
        return f"hushstream {words} {self.place}".rstrip()
