"""Advises whether vendors should share: simulates the gain over separate learning with the deployment's sizes.

The synthetic world is played with the deployment's vendors, items, epsilon and traffic: once shared, and once with each
vendor alone with its exact clicks, under several seeds. The result is the gain in points of clicks with its interval,
and the advice "keep the vendors apart" where the gain is not above 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hushstream.engine.declare.plan import DAYS, Audience
from hushstream.engine.declare.plan import Plan as DeploymentPlan
from hushstream.replay.experiments.rows import over_seeds
from hushstream.replay.progress import Progress
from hushstream.replay.runners.grid import play_all
from hushstream.replay.studies.pdap.play import Form, Task, play
from hushstream.replay.worlds.world import WorldError
from hushstream.systems.pdap.algorithm.plan import Plan, plan
from hushstream.systems.pdap.configuration import PdapConfig
from hushstream.systems.pdap.plan import KEEP_APART

SHARE = "share"
UNCLEAR = "too close to call: share only if there are other reasons"
SEEDS = tuple(range(100, 106))
MOST_CONTEXTS = 2_000_000


@dataclass(frozen=True, slots=True)
class Advice:
    """The expected gain of sharing.

    Attributes:
        verdict: `SHARE`, `KEEP_APART` or `UNCLEAR`.
        gain: click rate of greedy choices at the end, shared minus apart, in points: mean and 95 % interval.
        online: the same gain over all answers of the run.
        plan: facts without simulation, with their warnings.
    """

    verdict: str
    gain: tuple[float, float, float]
    online: tuple[float, float, float]
    plan: Plan

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys; intervals as (mean, low, high)."""
        return {
            "verdict": self.verdict,
            "gain": list(self.gain),
            "online": list(self.online),
            "outcomes": self.plan.outcomes,
            "warnings": list(self.plan.warnings),
        }

    def as_text(self) -> str:
        """The advice as text."""
        mean, low, high = self.gain
        return (
            f"Advice: {self.verdict}.\nAgainst vendors that keep apart, with exact clicks: {mean:+.1f} points "
            f"at the end ({low:+.1f} to {high:+.1f}).\n{self.way_text}.\n{self.plan.as_text()}"
        )

    @property
    def way_text(self) -> str:
        """The gain over all answers of the run, as text."""
        mean, low, high = self.online
        return f"Over all answers of the run: {mean:+.1f} points against exact clicks apart ({low:+.1f} to {high:+.1f})"


def advise(
    config: PdapConfig,
    contexts: int,
    overlap: float = 0.02,
    seeds: Sequence[int] = SEEDS,
    progress: Progress | None = None,
    processes: int | None = None,
) -> Advice:
    """Simulate a deployment, and its vendors apart.

    Args:
        config: the deployment; all vendors count as equally large, and contexts as two-dimensional.
        contexts: how many decisions all vendors make in all.
        overlap: share of items that suit users of any vendor: .02 for specialised vendors, 1 for equal vendors.
        seeds: seeds of worlds, at least two.
        progress: called with runs done, runs in all, and what is played.
        processes: see `play_all`.

    Raises:
        WorldError: more contexts than can be simulated, or fewer than two seeds.
    """
    if not 1 <= contexts <= MOST_CONTEXTS or len(seeds) < 2:
        raise WorldError(
            f"advice: expected 1 to {MOST_CONTEXTS:,} contexts and at least two seeds, got {contexts}, {len(seeds)}"
        )
    found = plan(config, contexts)
    tasks = {form: [_task(config, form, contexts, overlap, seed) for seed in seeds] for form in _FORMS}
    played = play_all(play, [task for each in tasks.values() for task in each], "advice", progress, processes)
    ends = {form: np.array([100 * played[task].greedy for task in tasks[form]]) for form in _FORMS}
    ways = {form: np.array([100 * played[task].online[contexts] for task in tasks[form]]) for form in _FORMS}
    gain, online = (over_seeds(each["blocks"] - each["alone-exact"]) for each in (ends, ways))
    return Advice(_verdict(gain, found), gain, online, found)


def play_plan(
    config: PdapConfig,
    plan: DeploymentPlan,
    audience: Audience,
    overlap: float,
    progress: Progress | None = None,
    seeds: Sequence[int] = SEEDS,
    processes: int | None = None,
) -> DeploymentPlan:
    """Add the gain over vendors that keep apart to a deployment's plan, where the plan does not know it.

    Args:
        config: the deployment.
        plan: the plan that its system makes.
        audience: the audience that the plan was made for.
        overlap: see `advise`.
        progress: see `advise`.
        seeds: see `advise`.
        processes: see `advise`.
    """
    decisions = min(MOST_CONTEXTS, int(audience.visited(DAYS[-1])))
    if plan.beats is not None or decisions < 1:
        return plan
    found = advise(config, decisions, overlap, seeds, progress, processes)
    mean, low, high = found.gain
    beats = {SHARE: True, KEEP_APART: False, UNCLEAR: None}[found.verdict]
    words = {
        True: f"It will beat vendors that keep apart: {SHARE}.",
        False: f"It will not beat vendors that keep apart: {KEEP_APART}.",
        None: f"It may or may not beat vendors that keep apart: {UNCLEAR}.",
    }
    return plan.with_verdict(
        beats,
        f"{words[beats]} {mean:+.1f} points of clicks after {decisions:,} decisions ({low:+.1f} to {high:+.1f}).",
        (found.way_text,),
        found.as_json(),
        (f"simulated in {len(seeds)} synthetic worlds of such vendors; {overlap:.0%} of items suit any user",),
    )


_FORMS: tuple[Form, ...] = ("blocks", "alone-exact")


def _task(config: PdapConfig, form: Form, contexts: int, overlap: float, seed: int) -> Task:
    release, cells, estimate = config.release, config.cells, config.estimate
    vendors = len(config.vendors)
    return Task(
        form,
        release.epsilon,
        contexts,
        seed,
        options=(("arms", max(1, config.arms // vendors)), ("overlap", overlap), ("vendors", vendors)),
        release=_pairs(release, "epsilon", "reward_levels"),
        cells=_pairs(cells),
        estimate=_pairs(estimate),
    )


def _pairs(section: object, *without: str) -> tuple[tuple[str, object], ...]:
    names = [name for name in sorted(section.__dataclass_fields__) if name not in without]  # type: ignore[attr-defined] # sections are dataclasses
    return tuple((name, getattr(section, name)) for name in names)


def _verdict(gain: tuple[float, float, float], facts: Plan) -> str:
    hopeless = any(warning.startswith("no block") for warning in facts.warnings)
    if hopeless or gain[2] <= 0:
        return KEEP_APART
    return SHARE if gain[1] > 0 else UNCLEAR
