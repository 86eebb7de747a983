"""Evaluates P2B on the log of another policy.

Replays the log of another policy through the client, with the same learners, slots, release and warm start.

Each row requests a decision. All act in shadow mode: the logged item is reported as shown, with its reward. So each
row counts, as in a deployment that runs beside the policy that wrote the log, and a user's own learning, with which the
shared private model is compared, is as good as it would be there.

Phase 0: some users learn alone and act, and each has one slot due; then the phase is ended. Phase 1: the rows of all
other users are played once for each model track, as distinct users.

All figures here are exact figures on content (zone-private by PRIVACY rule 11). They exist for public logs, and carry a
warning for internal ones. `hushstream.replay.report.replayed` shows them.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from hushstream.agents.worker.deployment import (
    KeySource,
    load,
    make_folder,
    parse_as,
    read_draft,
    require_releases,
)
from hushstream.agents.yaml_file import read_yaml
from hushstream.client.client import Client
from hushstream.client.items import Item
from hushstream.client.logs import EventLog
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.plan import Audience
from hushstream.engine.declare.requests import ContextRules
from hushstream.features.schema import FeatureSchema
from hushstream.privacy.promises.promise import NOT_PRIVATE, Guarantee
from hushstream.replay.catalogue import hint, seldom_collected
from hushstream.replay.checks import NEVER_SECONDS, PlayOptions, merged_values, run_fields
from hushstream.replay.datasets.store import locate
from hushstream.replay.logged.drafts.mapping import off_levels
from hushstream.replay.logged.evaluate import (
    FEW_REWARDS,
    LEAST_EFFECTIVE,
    SMALL_SAMPLE,
    Interval,
    PolicyValue,
    doubly_robust_terms,
    importance_sampling,
    policy_values,
    replay_value,
    thinned,
)
from hushstream.replay.logged.gains import LOGGING, OWN, SINGLE, Gains, finding, gains
from hushstream.replay.logged.log import ESTIMATED_MARK, INTERNAL_MARK, LogError, LoggedDataset, concatenate
from hushstream.replay.logged.mapping import DATA_MEANING, SWAPPED, looks_like_mapping, source_of, table_mapping
from hushstream.replay.logged.models import (
    crosses_that_help,
    effects,
    expected_rewards,
    nonlinear_reward_model,
    reward_model,
    with_estimated_propensities,
)
from hushstream.replay.logged.table import LOGS, Table, known_logs, stream_table
from hushstream.replay.report import frame
from hushstream.replay.report.parts import EXACT
from hushstream.replay.report.replayed import Column, RunResult, RunRows
from hushstream.replay.report.sheet import BLUE, Drawing, Sheet
from hushstream.replay.result import Headline
from hushstream.replay.runners.playing import Recording, deployed, play
from hushstream.replay.runners.to_end import run_to_end
from hushstream.replay.studies.p2b.play import COLD, CONDITION_NAMES, WARM_PRIVATE
from hushstream.replay.studies.p2b.run import (
    TRACK_OF,
    against,
    await_models,
    unfilled,
    without_privacy,
)
from hushstream.replay.study import Progress
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import MeasurementConfig, P2BConfig
from hushstream.systems.p2b.forecast import Spreads
from hushstream.systems.p2b.guarantee import guarantee_of
from hushstream.systems.p2b.plan import ASSUMED_REST, plan

CONTRIBUTORS = "contributors"
DECISION_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class LoggedPlan:
    """The phase of each row, and the speed.

    Attributes:
        contributes: (n,) the rows of phase 0; all rows of a user are in one phase.
        conditions: conditions of the comparison in phase 1.
        in_flight: how many rows are played at the same time; each user has one at most.
        speed: logged seconds played per second; None: as fast as possible.
        first: rows of phase 0 with lower numbers were played by an earlier run.
    """

    contributes: NDArray[np.bool_]
    conditions: tuple[str, ...] = tuple(TRACK_OF)
    in_flight: int = 512
    speed: float | None = None
    first: int = 0

    def __post_init__(self) -> None:
        """Refuse a plan without conditions, or a condition that does not exist."""
        unknown = sorted(set(self.conditions) - set(TRACK_OF))
        if unknown or not self.conditions:
            raise HushstreamError(
                f"conditions: expected some of {', '.join(TRACK_OF)}, got {', '.join(unknown) or 'none'}"
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
        latencies: seconds from request to answer, for a sample of the decisions.
    """

    decided: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    decisions: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


class LoggedLoop:
    """Plays a log against a deployment."""

    def __init__(
        self, log: LoggedDataset, plan: LoggedPlan, rules: ContextRules, progress: Progress | None = None
    ) -> None:
        """Bind a log, whose rows are in the order of time, to a plan.

        Args:
            log: the log.
            plan: the phase of each row.
            rules: the contexts that the deployment accepts.
            progress: called after every row.

        Raises:
            LogError: one of the phases has no rows.
        """
        if log.chosen.shape != plan.contributes.shape:
            raise LogError(f"{log.name}: expected a plan for {len(log)} rows, got one for {plan.contributes.shape}")
        self._phases = (np.flatnonzero(plan.contributes), np.flatnonzero(~plan.contributes))
        if not all(len(rows) for rows in self._phases):
            raise LogError(f"{log.name}: expected users for both phases, got users for one alone")
        self._log = log
        self._plan = plan
        self._progress = progress
        self._rules = rules
        self._named = rules.catalogue is not None
        self._users = log.user_numbers
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
            tracks = {TRACK_OF[condition] for condition in plan.conditions} - {COLD}
            await await_models(client, tracks, log.partitions(), self._log.visits[0])
            async with _tasks() as tasks:
                for condition in plan.conditions:
                    tasks.create_task(self._phase(client, condition, evaluated, TRACK_OF[condition]))
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
        asked = time.perf_counter()
        decision = await client.decide(
            event_id, user, log.visits[row], eligible, timeout=DECISION_TIMEOUT_SECONDS, track=track
        )
        self.played.decided[condition][row] = decision.arm
        if self.played.decisions % 16 == 0:
            self.played.latencies.append(time.perf_counter() - asked)
        self.played.decisions += 1
        chosen = self._item(int(log.chosen[row]))
        await client.shown(event_id, user, chosen)
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


_CONFOUNDED = (
    "This holds only if what was shown depended on the features alone, as propensities are estimated (where it "
    "followed anything else, gains appear that do not exist): log the true ones."
)
KEPT = "share of the gain over users' own learning that is kept"


class PolicyEstimate(NamedTuple):
    """What one policy would have earned on the rows of the evaluated users.

    Attributes:
        policy: a condition of the comparison; ``random`` (uniform over eligible arms), ``popular`` (the arm that earned
            most on contributors' rows), ``non-private`` (the best arm for the context by a model of contributors' exact
            rewards) or ``logged`` (the log's own).
        found: the estimate.
        matched: the share of rows on which the policy chose the logged arm; None for fixed policies.
    """

    policy: str
    found: PolicyValue
    matched: float | None = None

    @property
    def name(self) -> str:
        """Policy and estimator in words."""
        return f"{policy_name(self.policy)} ({_ESTIMATORS[self.found.estimator]})"

    @property
    def row(self) -> tuple[Any, ...]:
        """A value for each of `_COLUMNS`.

        There is no value below `LEAST_EFFECTIVE`, and no interval where fewer than two rows count or all rewards are
        equal, as the spread cannot be estimated then.
        """
        found = self.found
        enough = found.effective_sample_size >= LEAST_EFFECTIVE
        low, high = found.interval if enough and math.isfinite(found.interval.high) else (0.0, 0.0)
        interval = (low, high) if high > low else (None, None)
        names = (policy_name(self.policy), _ESTIMATORS[found.estimator])
        return (*names, found.value if enough else None, *interval, self.matched, found.effective_sample_size)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the figure may mislead, or is not given."""
        effective = self.found.effective_sample_size
        if effective >= LEAST_EFFECTIVE:
            return self.found.warnings
        few = f"an effective sample size of {effective:.0f} is below {LEAST_EFFECTIVE}: no value is given"
        return (few, *self.found.warnings)


_ESTIMATORS = {"replay": "replay", "ips": "IPS", "snips": "SNIPS", "dr": "DR"}
_COLUMNS = (
    Column("policy"),
    Column("estimator"),
    Column("mean_reward", ".4f"),
    Column("ci95_low", ".4f"),
    Column("ci95_high", ".4f"),
    Column("matched_rows", ".1%"),
    Column("effective_sample_size", ",.0f"),
)
_READING = (
    "Mean reward on the rows of users who did not contribute, with the ends of its 95 % interval, for which users are "
    "the sample. Replay keeps the rows on which a policy shows the logged arm. IPS and SNIPS weight rewards by the "
    "policy's probability of this arm over its propensity. DR weights what estimated rewards missed. The effective "
    "sample size is the number of equally weighted rows with the same information; if it is too small, there is no "
    "value."
)


def policy_rows(estimates: Sequence[PolicyEstimate]) -> RunRows:
    """The estimates as rows, one for each policy and estimator."""
    return RunRows(_READING, _COLUMNS, tuple(one.row for one in estimates))


def remarks(estimates: Sequence[PolicyEstimate]) -> tuple[str, ...]:
    """Each warning once, after the names of the figures that it is about."""
    said: dict[str, list[str]] = {}
    for one in estimates:
        for text in one.warnings:
            said.setdefault(text, []).append(one.name)
    return tuple(f"{', '.join(names)}: {text}." for text, names in said.items())


def policies_drawing(estimates: Sequence[PolicyEstimate]) -> Drawing:
    """Draw values and 95 % intervals by policy, for some of the estimators."""
    shown = [one for one in estimates if one.found.estimator in _DRAWN or one.policy == "logged"]
    rows = [(one.name, *one.row[2:5]) for one in shown if one.row[2] is not None]
    values = "; ".join(f"{name} {value:.4f}" for name, value, *_ in rows)
    return Drawing(
        "policies",
        "Mean reward of each policy",
        f"With 95 % intervals, on the rows of users who did not contribute. These are {EXACT}.",
        f"Dot chart of the mean reward by policy and estimator: {values}.",
        partial(_draw_policies, rows),
    )


_DRAWN = ("replay", "snips", "dr")


def _draw_policies(rows: Sequence[tuple[Any, ...]], sheet: Sheet) -> None:
    (axes,) = sheet.named_rows([name for name, *_ in rows])
    for place, (_, value, low, high) in enumerate(rows):
        if low is not None:
            axes.plot((low, high), (place, place), color=BLUE, linewidth=2, solid_capstyle="butt")
        axes.plot([value], [place], "o", color=BLUE)
    axes.set_xlim(left=min([0.0, *(low for _, _, low, _ in rows if low is not None)]))
    axes.set_xlabel("Mean reward")


ADDITIVE = "an additive model of the exact rewards, with the same features"
"""What "without privacy" means here: `reward_model`."""

_ADVICE = {
    "deploy": "Deploy: the shared private model is significantly better than {needed}",
    "measure first": "Measure first: the shared private model looks significantly better than {needed}, {but}",
    "more users first": "Get more users first: the shared private model is significantly better than {needed}, "
    "but {own}",
    "do not deploy": "Do not deploy: the shared private model is significantly worse than {worse}",
    "no gain shown": "No gain is shown: the shared private model does not differ significantly from {equal}"
    ". A gain below {missed} is missed by such a log more often than it is shown",
    "no verdict": "No verdict: too few of the {rows:,} rows show what the shared private model earns against {unknown}"
    ". Needed are an effective sample size of {least}, {rewarded} rewarded rows, and several users. There are: "
    "{left_out}",
}


_ESTIMATED = (
    "on estimated propensities. These feign a gain where what was shown followed more than the features. Log the true "
    "ones, or measure it in shadow mode or by a control"
)
_ENDED = (
    "but not in the later half of the log against {ended}: it may have ended. Judge a later log, or measure it in "
    "shadow mode or by a control"
)


def conclusion(found: Gains, privacy: Guarantee, crosses: Sequence[tuple[str, str]] = ()) -> tuple[str, ...]:
    """The verdict with what it assumes, then what it rests on, and what the additive form leaves."""
    assumed = f" {_CONFOUNDED}" if found.estimated and found.advice not in ("measure first", "no verdict") else ""
    first, *others = verdict(found, privacy)
    return (f"{first}{assumed}", *others, *beyond_additive(found, crosses))


def verdict(found: Gains, privacy: Guarantee) -> tuple[str, ...]:
    """Advise for or against the shared model; then its reward, differences, kept share of the gain, and guarantee."""
    if found.policy not in found.rewards and found.policy not in found.left_out:
        return ("No verdict: the shared private model was not played.",)
    of = {name: finding(None if one is None else one[1]) for name, one in found.differences.items()}

    def names(said: str, *among: str) -> str:
        return " and ".join(f"the {name}" for name, one in of.items() if one == said and name in (among or of))

    first = _ADVICE[found.advice].format(
        needed=f"the {LOGGING} and the {SINGLE}",
        worse=names("significantly worse", LOGGING, SINGLE),
        equal=names("no significant difference", LOGGING, SINGLE),
        unknown=names("not known", LOGGING, SINGLE),
        rows=found.rows,
        least=SMALL_SAMPLE,
        rewarded=FEW_REWARDS,
        left_out=_too_few_words(found),
        missed=_missed(found) if found.advice == "no gain shown" else "",
        own=_OWN[of.get(OWN, "not known")],
        but=_ENDED.format(ended=" and ".join(f"the {name}" for name in found.ended)) if found.ended else _ESTIMATED,
    )
    if found.policy not in found.rewards:
        return (f"{first}.",)
    known = {name: one for name, one in found.differences.items() if one is not None}
    apart = "; ".join(f"{against(*one)} than {_baseline(found, name)}" for name, one in known.items())
    reward = f"It earns {found.rewards[found.policy]:.4f} a decision: {apart} (95 % intervals that hold together)."
    own = "" if found.advice == "more users first" or OWN not in of else _OWN[of[OWN]]
    further = (
        f"The shared private model is {own}." if own else "",
        _drift(found),
        _kept(found),
        _drawn(found, privacy),
    )
    return (f"{first}.", reward, *filter(None, further))


def _drawn(found: Gains, privacy: Guarantee) -> str:
    """What the noise of a replay, whose keys come from a seed, leaves open."""
    if not privacy.reproducible:
        return ""
    if not found.draws:
        return "The noise of this replay comes from a seed; intervals do not cover it, so judge other seeds, too."
    ends = f"{min(found.draws):.4f} to {max(found.draws):.4f}"
    return f"Noise was drawn {len(found.draws)} times, and figures are means: by draw it earns {ends} a decision."


def _missed(found: Gains) -> str:
    """The gain below which a log shows none, of the logging policy's reward too."""
    shown = found.rewards.get(LOGGING, 0.0)
    share = f", {100 * found.missed / shown:.1f} % of what the log earns," if shown > 0.0 else ""
    return f"{found.missed:.4f} a decision{share}"


_OWN = {
    "significantly better": "",
    "no significant difference": "not shown to beat users' own learning, by which they may earn as much",
    "significantly worse": "worth less than users' own learning",
    "not known": "not compared with users' own learning, which too few rows show",
}


def _baseline(found: Gains, name: str) -> str:
    reward = found.rewards[_POLICIES.get(name, name)]
    return f"the {reward:.4f} of the {name}" if name != OWN else f"the {reward:.4f} of users' own learning"


def _drift(found: Gains) -> str:
    """The gain in the later half, and how it changed; a policy that learned over the log's whole span hides it."""
    later, changed = (
        " and ".join(
            f"{mean:+.4f} ({ends.low:+.4f} to {ends.high:+.4f}) against the {name}" for name, (mean, ends) in halves
        )
        for halves in (
            [(name, one.later) for name, one in found.halves.items()],
            [(name, one.change) for name, one in found.halves.items()],
        )
    )
    return later and (
        f"In the later half of the log it earns {later} (90 % intervals). From the earlier to the later half the "
        f"difference changes by {changed}."
    )


def _kept(found: Gains) -> str:
    if OF_EXACT not in found.rewards:
        return ""
    alone = finding(found.own) == "no significant difference" and found.kept is not None and found.kept.low > 0.0
    apart = ", by itself, not together with the intervals above" if alone else ""
    its = "a model that users do not go on teaching would earn"
    said = without_privacy(found.rewards[OF_EXACT], found.room, ADDITIVE, found.kept, apart, its=its)
    return f"{said[:1].upper()}{said[1:]}."


def beyond_additive(found: Gains, crosses: Sequence[tuple[str, str]]) -> list[str]:
    """What the additive form leaves, and which crosses to declare: trees may miss a pair that its own test finds."""
    pairs = ", ".join(f"{left} with {right}" for left, right in crosses[:_MOST_CROSSES])
    cure = (
        [f"What the additive model misses depends on pairs of features; declare as crosses: {pairs}."] if pairs else []
    )
    trees = f"Boosted trees on the same exact rows ({INTERNAL_MARK})"
    if found.left is None:
        few = f"{trees} show another item than the additive model in too few rows to compare what both earn."
        return [few] * (NONLINEAR in found.rewards and "non-private" in found.rewards) + cure
    gain = finding(found.left[1]) == "significantly better"
    form = "its form leaves that gain." if gain else "no gain beyond its form is shown."
    more = f"{trees} earn {against(*found.left)} than the additive model: {form}"
    return [more, *(cure or ["No pair of features explains it."] * gain)]


def policy_name(policy: str) -> str:
    """A condition in words; other policies are called by their names."""
    return CONDITION_NAMES.get(policy, policy)


_MOST_CROSSES = 3
NONLINEAR = "nonlinear"

OF_EXACT = "non-private"
"""The policy without privacy: a model of contributors' exact rewards."""

_POLICIES = {SINGLE: "popular", OWN: COLD}
"""The policies that are the baselines of the shared private model."""


def _too_few_words(found: Gains) -> str:
    return "; ".join(
        f"“{policy_name(name)}” effective sample size {effective:,.0f}, {rewarded} rewarded"
        for name, (effective, rewarded) in found.left_out.items()
    )


REWARD_WAIT_SECONDS = 300.0
"""Attribution window of the replay.

Only decisions that do not agree with the log wait; others get their reward at once.
"""

_DAY_MS, _LEAST_RATE = 86_400_000, 1e-3
CONFIRMING = "put a public value in its place, or decide that it is public; then delete its name from `from_rows`"
UNFIT = "No forecast: by its formula own learning is beaten by {:+.4f} to {:+.4f}, on the log by {:+.4f} to {:+.4f}."
PLAN_OF = "Its plan, by a formula, for as many users in as many days as the log has:"
SPREADS_ARE = "effects are measured on the log's exact rows (internal, not private)"
_DIFFERS = (
    "The log was evaluated under this configuration, without what a log cannot have: no user was held out, slots left "
    "at the end of the contributors' rows and not after the settle time, and there was no quota of visits."
)


CONFIRM = "Confirm first: these settings were taken from rows, and a deployment publishes them"
NONETHELESS = "The log does not advise to deploy this; to do so nonetheless, or to collect a longer log in shadow mode:"


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

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of all that it would release, with the measurement, which a log cannot replay."""
        return guarantee_of(self.config).under_key(reproducible=True)

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
            measurement=MeasurementConfig(),
            budget=None if config.budget is None else replace(config.budget, lift=0.0),
            users=replace(config.users, contexts_per_period=None, expire_after_seconds=None),
        )

    def live(self, log: LoggedDataset, advised: bool, own: Interval | None, spreads: Spreads) -> dict[str, Any]:
        """The steps to run it live, as fields of the result: a section, the last lines, and plain values.

        Args:
            log: the forecast assumes as many users, visits and days as it has.
            advised: whether the log advises to deploy it. Otherwise there is no forecast, as two words about one
                deployment would contradict one another.
            own: what it gained there over users' own learning, if that is known. A forecast that excludes it does not
                fit the log, so there is none.
            spreads: the effects in the log.
        """
        people = len(np.unique(log.users))
        days = max(1.0, float(log.timestamps_ms.max() - log.timestamps_ms.min()) / _DAY_MS)
        audience = Audience(people, max(1, round(len(log) / people)), min(days, 3650.0))
        forecast = plan(self.config, audience, spreads, SPREADS_ARE) if advised else None
        unfit: tuple[str, ...] = ()
        if forecast is not None and own is not None:
            ends = [ours - alone for alone, _, ours, _ in zip(*forecast.values.values(), strict=True)]
            if min(ends) > own.high or max(ends) < own.low:
                forecast, unfit = None, (UNFIT.format(min(ends), max(ends), *own),)
        commands, yaml = self._commands(log, advised), self.path.read_text(encoding="utf-8-sig").rstrip()
        title, heading = ("Deploy this", "Deploy this:") if advised else ("To deploy this", NONETHELESS)
        confirm = (f"Confirm as public first: {', '.join(self.unconfirmed)}", f"({CONFIRMING})")
        blocks: tuple[frame.Block, ...] = (
            frame.Words((_DIFFERS, *unfit) if advised else (NONETHELESS, _DIFFERS)),
            *((frame.Bullets(f"{CONFIRM} ({CONFIRMING})", tuple(self.unconfirmed)),) if self.unconfirmed else ()),
            frame.Code("The commands", "\n".join(commands)),
            frame.Code(f"The configuration, {self.path}", yaml),
            *(frame.Code(f"Its forecast; {SPREADS_ARE}", one.as_text().rstrip()) for one in filter(None, (forecast,))),
        )
        last = unfit if forecast is None else (f"{PLAN_OF} {forecast.verdict}",)
        said = (heading, *(confirm if self.unconfirmed else ()), *(f"  {one}" for one in commands), *last)
        plain = {
            "file": str(self.path),
            "unconfirmed": list(self.unconfirmed),
            "commands": list(commands),
            "plan": None if forecast is None else forecast.as_json(),
        }
        return {
            "sections": (frame.Section("deploy", title, blocks),),
            "ending": "\n".join(said),
            "details": {"deploy": plain},
        }

    def _commands(self, log: LoggedDataset, advised: bool) -> tuple[str, ...]:
        """The commands, in their order."""
        file, folder = self.path, f"{self.config.deployment}/"
        names = " ".join(map(quote, log.arm_names))
        return (
            "export HUSHSTREAM_BOOTSTRAP=127.0.0.1:9092   # your Kafka; without one: hushstream broker --port 9092 &",
            *(() if advised else ("export HUSHSTREAM__MODE=shadow   # leave this out to deploy it nonetheless",)),
            f"hushstream guarantee {file}",
            f"hushstream prepare {file} {folder}",
            f"hushstream keys generate {folder}keys",
            f"hushstream topics apply --deployment {folder}",
            *(f"hushstream worker {role} --deployment {folder} &" for role in ("learner", "shuffler", "aggregator")),
            *((f"hushstream items add {names} --deployment {folder}",) if self.config.named_items else ()),
            f"hushstream worker gateway --deployment {folder} &   # HTTP at port 8080",
            f"hushstream verify --deployment {folder}   # after the first decisions",
        )


def evaluated_deployment(path: Path) -> EvaluatedDeployment:
    """Read the deployment to evaluate; it may be a draft.

    Raises:
        ConfigurationError: the file cannot be read, or holds impossible values.
        HushstreamError: it is the mapping of a log, belongs to another system, declares no features, or never releases.
    """
    if looks_like_mapping(read_yaml(path)):
        raise HushstreamError(
            f"{path}: expected the configuration of a deployment, got what looks like the mapping of a log{SWAPPED}"
        )
    config, unconfirmed = read_draft(path)
    if config.system != "p2b" or config.context.declared is None:
        got = config.system if config.system != "p2b" else "p2b without names of features"
        raise HushstreamError(f"{path}: expected a deployment of p2b that declares features, got {got}")
    if config.kind != "hosted":
        raise HushstreamError(f"{path}: kind: expected hosted, as learner workers are replayed, got {config.kind}")
    require_releases(config, str(path))
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


OF_EXACT_ROWS = ("popular", OF_EXACT, NONLINEAR)
"""Policies made from contributors' exact rows; they are not private, whatever the guarantee says."""

_SPLIT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions(PlayOptions):
    """What to replay, and how: the options of every run (`PlayOptions`), and those of an evaluation.

    Attributes:
        log: the path of a CSV, Parquet or JSON file, or a data frame; needs a mapping. Without one, `dataset` names a
            published log, and `world` has its options (for ``obd``: policy, campaign).
        mapping: the mapping of the log: its file, or its keys and values.
        data_dir: folder of the published log.
        conditions: conditions of the comparison.
        contributors: share of the users who contribute a slot; the rows of all others are evaluated.
        deployment: a deployment.yaml, or a draft of one, that is evaluated without changes; it declares features.
        in_flight: how many rows are played at the same time.
        speed: logged seconds played per second; None: as fast as possible.
        limit: how many rows to replay at most, from the first on.
        first: contributors' rows with lower numbers were played by an earlier run.
        least_propensity: a lower bound of the logging policy's propensities; default: the smallest in the log.
    """

    log: Table | None = None
    mapping: Path | Mapping[str, Any] | None = None
    deployment: Path | None = None
    data_dir: Path | None = None
    conditions: tuple[str, ...] = tuple(TRACK_OF)
    contributors: float = 0.7
    in_flight: int = 512
    speed: float | None = None
    limit: int | None = None
    first: int = 0
    least_propensity: float | None = None

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        self.require_runner()
        if (self.log is None) == (not self.dataset):
            raise HushstreamError("evaluate: expected --log with --mapping, or --dataset obd, got both or neither")
        if (self.log is None) != (self.mapping is None):
            raise HushstreamError("evaluate: expected a mapping with a log of your own, and only with one")
        if self.deployment is not None and (self.log is None or self.config):
            raise HushstreamError(
                f"deployment: expected a log of your own and no further setting, as {self.deployment} is "
                "evaluated without changes, got others"
            )
        if self.log is not None and self.world:
            names = ", ".join(sorted(self.world))
            raise HushstreamError(f"evaluate: expected options of a published log only with its dataset, got {names}")
        if not 0.0 < self.contributors < 1.0:
            raise HushstreamError(f"contributors: expected a share above 0 and below 1, got {self.contributors!r}")
        if self.limit is not None and self.limit < 1:
            raise HushstreamError(f"limit: expected at least 1 row, got {self.limit!r}")


@seldom_collected()
def evaluate_with(options: EvaluateOptions, progress: Progress | None = None) -> RunResult:
    """Replay a log through the agents, and evaluate every condition of the comparison on it.

    Args:
        options: what to replay, and how.
        progress: called with (rows done, rows in all, what is going on).

    Raises:
        HushstreamError: the dataset is unknown, the log or the mapping cannot be read, or the configuration is invalid.
    """
    deployment = None if options.deployment is None else evaluated_deployment(options.deployment)
    log = read_log(options, None if deployment is None else deployment.schema)
    survives = thinned(log, options.seed, options.least_propensity)
    contributes, contributors = _split(log, options)
    plan = LoggedPlan(contributes, options.conditions, options.in_flight, options.speed, options.first)
    with deployed(options.folder) as folder:
        config = _config(options, log, contributors) if deployment is None else deployment.replayed(log, contributes)
        system, recording = _played(options, config, log, plan, folder, progress)
    others = [
        _redrawn(replace(options, seed=options.seed + draw), config, log, plan)
        for draw in range(1, _DRAWS if _redraws(options, plan) else 1)
    ]
    return _result(options, log, plan, survives, contributors, system, recording, others, deployment, progress)


_DRAWS, _MOST_REDRAWN = 5, 20_000
"""How often noise is drawn, for logs of at most so many rows: each draw plays the rows again."""


def _redraws(options: EvaluateOptions, plan: LoggedPlan) -> bool:
    cheap = len(plan.contributes) <= _MOST_REDRAWN and options.runner == "direct" and options.speed is None
    return cheap and options.first == 0 and WARM_PRIVATE in plan.conditions


def _played(
    options: EvaluateOptions,
    config: P2BConfig,
    log: LoggedDataset,
    plan: LoggedPlan,
    folder: Path,
    progress: Progress | None = None,
) -> tuple[System, Recording[LoggedPlayed]]:
    """Play a log once, under keys from the seed of the options."""
    marked = f"{log.name}, {INTERNAL_MARK}" if log.internal else log.name
    make_folder(folder, config, keys=KeySource(seed=options.seed), public_dataset=marked)
    system = load(folder)
    place, loop = options.place(folder, resume=options.first > 0), LoggedLoop(log, plan, system.requests, progress)
    return system, run_to_end(lambda: play(system, place, loop.run))


def _redrawn(options: EvaluateOptions, config: P2BConfig, log: LoggedDataset, plan: LoggedPlan) -> NDArray[np.int64]:
    """The decisions (n,) from the shared private model under keys from another seed."""
    with deployed(None) as folder:
        _, found = _played(options, config, log, replace(plan, conditions=(WARM_PRIVATE,)), folder)
    return found.played.decided[WARM_PRIVATE]


def read_log(options: EvaluateOptions, features: FeatureSchema | None = None) -> LoggedDataset:
    """Read the rows to replay, by time; ``features`` are those of the evaluated deployment, if any.

    Raises:
        LogError: the mapping does not say whether the log is public, or the log cannot be replayed.
    """
    if options.log is None or options.mapping is None:
        log = load_log(options.dataset, options.data_dir, **options.world)
    else:
        log = _read_table(options.log, options.mapping, options.limit, features)
    log = log.in_time_order()
    if options.limit is not None:
        log = log.select(np.arange(min(options.limit, len(log))))
    if log.internal and options.bootstrap is not None:
        raise HushstreamError(
            "bootstrap: expected none for an internal log, whose rows would be in clear on "
            f"{options.bootstrap}; the embedded broker keeps them on this machine"
        )
    return log if log.propensities is not None else with_estimated_propensities(log, options.seed)


def _read_table(
    table: Table, given: Path | Mapping[str, Any], limit: int | None, features: FeatureSchema | None
) -> LoggedDataset:
    mapping = table_mapping(given, features)
    if mapping.data is None:
        raise LogError(
            f"{source_of(given)}: an evaluation prints exact figures on contexts and rewards, and its keys come from a "
            f"seed: expected {DATA_MEANING}"
        )
    parts, rows = [], 0
    for part in stream_table(table, mapping):
        parts.append(part)
        rows += len(part)
        if limit is not None and rows >= limit:
            break
    log = concatenate(parts)
    return log if limit is None else log.select(np.arange(min(limit, rows)))


def _split(log: LoggedDataset, options: EvaluateOptions) -> tuple[NDArray[np.bool_], int]:
    """Choose the users who contribute by the seed; return a mask of their rows, and the number of these users."""
    names, user_of_row = np.unique(log.users, return_inverse=True)
    if len(names) < 2:
        raise LogError(f"{log.name}: expected at least 2 users, some to contribute and some to evaluate, got 1")
    count = min(max(1, round(len(names) * options.contributors)), len(names) - 1)
    chosen = np.zeros(len(names), dtype=np.bool_)
    chosen[np.random.default_rng([options.seed, _SPLIT]).permutation(len(names))[:count]] = True
    return chosen[user_of_row], count


def _config(options: EvaluateOptions, log: LoggedDataset, contributors: int) -> P2BConfig:
    """The configuration that fits a log, with the values that the caller set.

    Users of a log have few rows, and most decisions do not agree with it, so a slot is due after the first decision.
    """
    values: dict[str, Any] = {
        "deployment": "evaluate",
        "items": {"capacity": log.arms},
        "features": log.schema.plain,
        "expected_slots": contributors,
        "slot": {"after_interactions": 1},
        "feedback": {"attribution_window_seconds": REWARD_WAIT_SECONDS, "settle_seconds": NEVER_SECONDS},
        "release": {"window_units": max(1_000_000, contributors + 1)},
    }
    config = parse_as(P2BConfig, merged_values(values, options.config))
    if (config.arms, config.context.declared) != (log.arms, log.schema):
        raise HushstreamError(f"configuration: expected the log's {log.arms} arms and features, got others")
    return config


def measured_spreads(log: LoggedDataset, seed: int) -> Spreads:
    """The deviations of effects on log-odds in a log; those that nobody can learn are assumed."""
    assert log.propensities is not None
    weights = 1.0 / log.propensities
    rate = min(max(float((weights * log.rewards).sum() / weights.sum()), _LEAST_RATE), 1.0 - _LEAST_RATE)
    items, blocks = effects(log, seed)
    scale = rate * (1.0 - rate)
    return Spreads(items / scale, {name: one / scale for name, one in blocks.items()}, ASSUMED_REST, rate)


def _result(
    options: EvaluateOptions,
    log: LoggedDataset,
    plan: LoggedPlan,
    survives: NDArray[np.bool_],
    contributors: int,
    system: System,
    recording: Recording[LoggedPlayed],
    others: Sequence[NDArray[np.int64]],
    deployment: EvaluatedDeployment | None,
    progress: Progress | None,
) -> RunResult:
    if progress is not None:
        progress(0, 2, "estimates")
    estimates, compared, crosses = _evaluate(log, plan, survives, recording.played, others, options.seed)
    live: dict[str, Any] = {}
    if deployment is not None:
        live = deployment.live(log, compared.advice == "deploy", compared.own, measured_spreads(log, options.seed))
    if options.verify and progress is not None:
        progress(1, 2, "verify")
    common = run_fields(options, log.name, system, recording, recording.played.decisions)
    if deployment is not None:
        common["privacy"] = deployment.guarantee
    kept, users = compared.kept, len(np.unique(log.users))
    levels = cast("P2BConfig", system.config).release.levels
    given, rows = np.unique(log.rewards, return_counts=True)
    off = int(rows[np.isin(given, off_levels(given.tolist(), levels))].sum())
    marks = {
        f"{off:,} OF {len(log):,} REWARDS LIE BETWEEN LEVELS AND ARE ROUNDED DOWN "
        f"(feedback.reward_levels: {levels})": off,
        INTERNAL_MARK: log.internal,
        ESTIMATED_MARK: log.estimated,
        f"{log.left_out:,} ROWS WITHOUT AN ITEM LEFT OUT": log.left_out,
    }
    exact = f"{NOT_PRIVATE}: made from contributors' exact rows"
    first, *further = conclusion(compared, common["privacy"], crosses)
    visits = np.bincount(log.user_numbers[plan.contributes])
    early = "" if deployment is None else unfilled(deployment.config, visits)
    return RunResult(
        **common,
        **{
            **live,
            "details": {
                "public": not log.internal,
                "gains": {"advice": compared.advice, "without_privacy": ADDITIVE, **asdict(compared)},
                "crosses": crosses,
                **live.get("details", {}),
            },
        },
        title=f"What other policies would have earned: {log.name}",
        facts={"rows": len(log), "users": users, "users who contributed": contributors},
        verdict=(f"{first} {early}".rstrip(), *further),
        headline=None if kept is None else Headline(KEPT, kept.ratio, kept.low, kept.high),
        rows=policy_rows(estimates),
        picture=policies_drawing(estimates),
        remarks=remarks(estimates),
        warnings=tuple(mark for mark, stands in marks.items() if stands),
        unprotected={policy_name(policy): exact for policy in OF_EXACT_ROWS},
    )


def _evaluate(
    log: LoggedDataset,
    plan: LoggedPlan,
    survives: NDArray[np.bool_],
    played: LoggedPlayed,
    others: Sequence[NDArray[np.int64]],
    seed: int,
) -> tuple[tuple[PolicyEstimate, ...], Gains, tuple[tuple[str, str], ...]]:
    """Evaluate every condition of the comparison, and policies that do not learn, all on the same rows."""
    evaluated = ~plan.contributes
    part = log.select(evaluated)
    assert part.propensities is not None
    expected = expected_rewards(log, seed)[evaluated]
    decided = {condition: played.decided[condition][evaluated] for condition in plan.conditions}
    shown = {condition: one_arm(arms, part.arms) for condition, arms in decided.items()}
    draws: list[Float64] = []
    if others:
        draws = [shown[WARM_PRIVATE], *(one_arm(arms[evaluated], part.arms) for arms in others)]
        shown[WARM_PRIVATE] = np.mean(draws, axis=0)
    taught = log.select(plan.contributes)
    shown |= references(taught, part, seed)
    estimates = []
    for name, probabilities in shown.items():
        matched = None
        if name in decided:
            agrees = decided[name] == part.chosen
            matched = float(agrees.mean())
            estimates.append(PolicyEstimate(name, replay_value(part, agrees & survives[evaluated]), matched))
        found = policy_values(part, probabilities, expected)
        estimates += [PolicyEstimate(name, one, matched) for one in found]
    own = importance_sampling(part, part.propensities, self_normalised=False)
    compared = gains(part, shown, expected, WARM_PRIVATE, _POLICIES, OF_EXACT, NONLINEAR)
    earned = tuple(float(doubly_robust_terms(part, one, expected).mean()) for one in draws)
    compared = replace(compared, draws=earned if WARM_PRIVATE in compared.rewards else ())
    return (*estimates, PolicyEstimate("logged", own)), compared, tuple(crosses_that_help(taught, part))


def load_log(name: str, data_dir: str | Path | None = None, **options: Any) -> LoggedDataset:
    """Load a published log by name.

    Args:
        name: one of `known_logs`.
        data_dir: a local folder in place of the cache.
        options: the options of its loader.

    Raises:
        LogError: the name is unknown or is a world's, or an option is unknown or wrong.
        DatasetError: its files are absent or differ from the published ones.
    """
    known = known_logs()
    loader = LOGS.find(known, name, "" if name in known else hint(name))
    allowed = list(inspect.signature(loader).parameters)[1:]
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise LogError(f"log {name!r} has no option {', '.join(unknown)}; known: {', '.join(allowed)}")
    return loader(locate(name, data_dir), **options)


Float64 = npt.NDArray[np.float64]


def references(taught: LoggedDataset, evaluated: LoggedDataset, seed: int = 0) -> dict[str, Float64]:
    """Probabilities (n, K) of every reference policy on the evaluated rows, by name.

    Args:
        taught: the rows from which "popular", "non-private" and "nonlinear" learn, in clear.
        evaluated: the rows of other users, on which policies are evaluated.
        seed: of the trees.
    """
    allowed = (
        np.ones((len(evaluated), evaluated.arms), dtype=bool) if evaluated.eligible is None else evaluated.eligible
    )
    scores = {
        "popular": np.broadcast_to(_mean_rewards(taught), allowed.shape),
        "non-private": reward_model(taught)(evaluated.contexts),
        NONLINEAR: nonlinear_reward_model(taught, seed)(evaluated.contexts),
    }
    random = {"random": allowed / allowed.sum(axis=1, keepdims=True)}
    return random | {name: one_arm(_best(one, allowed), evaluated.arms) for name, one in scores.items()}


def one_arm(arms: npt.NDArray[np.int64], count: int) -> Float64:
    """Probabilities (n, K) of a policy that always shows the given arms (n,)."""
    probabilities = np.zeros((len(arms), count))
    probabilities[np.arange(len(arms)), arms] = 1.0
    return probabilities


def _best(scores: Float64, allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    return np.asarray(np.where(allowed, scores, -np.inf).argmax(axis=1), dtype=np.int64)


def _mean_rewards(log: LoggedDataset) -> Float64:
    """Mean reward of each arm over all visits, with one added row at the log's mean: no arm wins by one lucky row.

    Rows count by 1 / propensity, or an item that is shown to those alone who like it would pass for the best of all.
    """
    assert log.propensities is not None
    weights = 1.0 / log.propensities
    weights /= weights.mean()
    counts = np.bincount(log.chosen, weights, minlength=log.arms)
    earned = np.bincount(log.chosen, weights * log.rewards, minlength=log.arms)
    return np.asarray((earned + log.rewards.mean()) / (counts + 1), dtype=np.float64)
