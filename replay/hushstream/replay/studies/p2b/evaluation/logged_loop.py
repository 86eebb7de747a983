"""Replays the log of another policy through the client, with the same learners, slots, release and warm start.

Each row requests a decision. If the decision equals the logged one, and the row survives the thinning of a policy that
was not uniform, its logged reward is sent back. Otherwise the decision counts as never shown, and nothing is learned
from it (Li, Chu, Langford, Wang 2011, Algorithm 2; `hushstream.replay.logged.evaluate` has the thinning).

Where features are declared, contributors act in shadow mode: the logged item is reported as shown, with its reward. So
each of their rows counts, as in a deployment that runs beside the policy that wrote the log.

Phase 0: some users start cold and act, and each has one slot due; then the phase is ended. Phase 1: the rows of all
other users are played once for each model track, as distinct users.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.client.client import Client
from hushstream.client.items import Item
from hushstream.client.logs.event_log import EventLog
from hushstream.engine.declare.requests import ContextRules
from hushstream.replay.logged.log import LogError, LoggedDataset
from hushstream.replay.progress import Progress
from hushstream.replay.studies.p2b.closed_loop import CONDITIONS
from hushstream.replay.studies.p2b.models_ready import await_models
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.edge.policy import COLD

CONTRIBUTORS = "contributors"
DECISION_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class LoggedPlan:
    """The phase of each row, and the speed.

    Attributes:
        contributes: (n,) the rows of phase 0; all rows of a user are in one phase.
        survives: (n,) the rows whose reward is sent back if the decision agrees with them.
        conditions: conditions of the comparison in phase 1.
        in_flight: how many rows are played at the same time; each user has one at most.
        speed: logged seconds played per second; None: as fast as possible.
        first: rows of phase 0 with lower numbers were played by an earlier run.
    """

    contributes: NDArray[np.bool_]
    survives: NDArray[np.bool_]
    conditions: tuple[str, ...] = tuple(CONDITIONS)
    in_flight: int = 512
    speed: float | None = None
    first: int = 0

    def __post_init__(self) -> None:
        """Refuse a plan without conditions, or a condition that does not exist."""
        unknown = sorted(set(self.conditions) - set(CONDITIONS))
        if unknown or not self.conditions:
            raise HushstreamError(
                f"conditions: expected some of {', '.join(CONDITIONS)}, got {', '.join(unknown) or 'none'}"
            )
        if self.in_flight < 1 or (self.speed is not None and not self.speed > 0) or self.first < 0:
            raise HushstreamError("plan: expected in_flight and speed above 0 and first of at least 0, got others")


@dataclass(slots=True)
class LoggedPlayed:
    """The decisions, (n,) by condition of the comparison, contributors under "contributors"; -1 where not played.

    Attributes:
        decided: the decided arms.
        decisions: how many decisions were requested.
        seconds: from the first context to the last answer.
    """

    decided: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    decisions: int = 0
    seconds: float = 0.0


class LoggedLoop:
    """Plays a log against a deployment."""

    def __init__(
        self,
        log: LoggedDataset,
        plan: LoggedPlan,
        progress: Progress | None = None,
        rules: ContextRules | None = None,
    ) -> None:
        """Bind a log, whose rows are in the order of time, to a plan.

        Args:
            log: the log; its contexts are histograms, or values of declared features.
            plan: the phase of each row.
            progress: called after every row.
            rules: the contexts that the deployment accepts; a client needs them where contexts are values by name.

        Raises:
            LogError: one of the phases has no rows.
        """
        if log.chosen.shape != plan.contributes.shape or log.chosen.shape != plan.survives.shape:
            raise LogError(f"{log.name}: expected a plan for {len(log)} rows, got one for {plan.contributes.shape}")
        self._phases = (np.flatnonzero(plan.contributes), np.flatnonzero(~plan.contributes))
        if not all(len(rows) for rows in self._phases):
            raise LogError(f"{log.name}: expected users for both phases, got users for one alone")
        self._log = log
        self._plan = plan
        self._progress = progress
        self._rules = rules
        self._named = rules is not None and rules.catalogue is not None
        self._users = np.unique(log.users, return_inverse=True)[1]
        self._places = _Places(plan.in_flight)
        self._total = int((self._phases[0] >= plan.first).sum()) + len(self._phases[1]) * len(plan.conditions)
        self.played = LoggedPlayed()

    async def run(self, log: EventLog) -> LoggedPlayed:
        """Play both phases over a client's log.

        Raises:
            HushstreamError: no decision, or no model of the ended phase, came in time.
        """
        plan = self._plan
        started = time.perf_counter()
        async with Client(log, rules=self._rules) as client:
            if self._named:
                await client.items.add_all(Item(name) for name in self._log.arm_names)
            contributing, evaluated = self._phases
            await self._phase(client, CONTRIBUTORS, contributing[contributing >= plan.first], COLD)
            await client.end_phase(0)
            tracks = {CONDITIONS[condition] for condition in plan.conditions} - {COLD}
            await await_models(client, tracks, log.partitions(), self._log.visit(0))
            async with _tasks() as tasks:
                for condition in plan.conditions:
                    tasks.create_task(self._phase(client, condition, evaluated, CONDITIONS[condition]))
        self.played.seconds = time.perf_counter() - started
        return self.played

    async def _phase(
        self, client: Client, condition: str, rows: Sequence[int] | NDArray[np.integer], track: str
    ) -> None:
        """Play rows in the order of the log; a user's next row waits for the one before."""
        self.played.decided[condition] = np.full(len(self._log), -1, dtype=np.int64)
        started = time.perf_counter()
        last: dict[int, asyncio.Task[None]] = {}
        async with _tasks() as tasks:
            for row in rows:
                await self._until_due(row, rows[0], started)
                await self._places.take()
                user = int(self._users[row])
                last[user] = tasks.create_task(self._row(client, condition, int(row), track, last.get(user)))

    async def _row(
        self, client: Client, condition: str, row: int, track: str, before: asyncio.Task[None] | None
    ) -> None:
        # Rows take places in order. So a row that another one waits for has its place already, and there is no
        # deadlock.
        try:
            if before is not None:
                await before
            await self._interact(client, condition, row, track)
        finally:
            self._places.give()

    async def _interact(self, client: Client, condition: str, row: int, track: str) -> None:
        log = self._log
        user, event_id = f"{condition}-{self._users[row]}", f"{condition}-{row}"
        eligible: Any = None
        if log.eligible is not None:
            eligible = [self._item(arm) for arm in np.flatnonzero(log.eligible[row]).tolist()]
        decision = await client.decide(
            event_id, user, log.visit(row), eligible, timeout=DECISION_TIMEOUT_SECONDS, track=track
        )
        self.played.decided[condition][row] = decision.arm
        self.played.decisions += 1
        chosen = self._item(int(log.chosen[row]))
        if log.schema is not None and condition == CONTRIBUTORS:
            await client.shown(event_id, user, chosen)
            await client.reward(event_id, user, chosen, float(log.rewards[row]))
        elif decision.arm == log.chosen[row] and self._plan.survives[row]:
            await client.reward(event_id, user, chosen, float(log.rewards[row]))
        if self._progress is not None:
            self._progress(self.played.decisions, self._total, "phase 0" if condition == CONTRIBUTORS else "phase 1")

    def _item(self, arm: int) -> int | str:
        """The client's name of an arm: items enter the catalogue in the order of arms, so row numbers equal arms."""
        return self._log.arm_names[arm] if self._named else arm

    async def _until_due(self, row: int, first: int, started: float) -> None:
        if self._plan.speed is None:
            return
        logged_seconds = (self._log.timestamps_ms[row] - self._log.timestamps_ms[first]) / 1000.0
        delay = started + logged_seconds / self._plan.speed - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)


class _Places:
    """A limit on the number of rows that are played at the same time.

    A waiting task takes all free places at once; a semaphore would give one for each turn of the event loop. Requests
    of one turn are folded together, and a fold of many rows costs little more than a fold of few.
    """

    def __init__(self, count: int) -> None:
        """Start with all places free."""
        self._free = count
        self._given = asyncio.Event()

    async def take(self) -> None:
        """Wait for a place."""
        while not self._free:
            self._given.clear()
            await self._given.wait()
        self._free -= 1

    def give(self) -> None:
        """Give a place back."""
        self._free += 1
        self._given.set()


class _tasks(asyncio.TaskGroup):
    """A task group that raises the first failure itself, not a group, so that users see its message."""

    async def __aexit__(self, *failure: object) -> None:
        try:
            await super().__aexit__(*failure)  # type: ignore[arg-type]  # the base class names three arguments
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
