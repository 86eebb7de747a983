"""Measures when sharing is better than separate vendors, by epsilon, items and contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hushstream.replay.bench.rows import BenchRow, at_least, at_most
from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.findings import Description, Findings
from hushstream.replay.experiments.rows import Row, pick
from hushstream.replay.progress import Progress
from hushstream.replay.runners.grid import play_all
from hushstream.replay.studies.pdap.play import Form, Task, make_world, play
from hushstream.replay.studies.pdap.rows import SETTINGS, SOURCE, row_of, under_seeds

NAME = "pdap-sharing"
TITLE = "The gain of sharing, by epsilon, items and contexts"
FORMS_NAME = "pdap-forms"
FORMS_TITLE = "Mechanisms at equal epsilon"
GP_NAME = "pdap-gp"
GP_TITLE = "An epsilon for each level, between two uniform ones"

EPSILONS = (0.01, 0.03, 0.1, 0.3, 1.0, 4.0)
SEEDS = (0, 1, 2)
GP_LOW, GP_HIGH, GP_GROWTH = 0.035355, 0.1, 0.5
"""eps0 2^(.5 * 3) = .1: GP's deepest level has the epsilon of the higher uniform setting."""


@dataclass(frozen=True, slots=True)
class Part:
    """One world at one traffic.

    Attributes:
        part: its name in rows.
        tasks: its runs, under seed 0.
    """

    part: str
    tasks: tuple[Task, ...]


def part(name: str, contexts: int, epsilons: Sequence[float], world: str = "vendors", **options: Any) -> Part:
    """The runs of a world with all forms of sharing and of separate vendors."""
    given = tuple(sorted(options.items()))

    def task(form: Form, epsilon: float = 0.0, **release: Any) -> Task:
        return Task(form, epsilon, contexts, 0, world, given, tuple(sorted(release.items())))

    exact = (task("exact"), task("alone-exact"), task("own-statistics"))
    shared = tuple(task("blocks", epsilon) for epsilon in epsilons)
    homes = tuple(task("blocks", epsilon, placement="home") for epsilon in epsilons if epsilon in (0.1, 1.0))
    alone = tuple(task("alone-blocks", epsilon) for epsilon in epsilons if epsilon in (0.1, 1.0))
    return Part(name, (*exact, *shared, *homes, *alone))


def run(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play the grid of sharing."""
    if scale.quick:
        small = (part("4 x 100", 4_000, (0.1, 1.0), arms=100),)
        return _findings(NAME, TITLE, small, (0, 1), progress)
    parts: tuple[Part, ...] = (
        part("4 x 1,000", 200_000, EPSILONS),
        part("4 x 1,000", 20_000, EPSILONS),
        part("4 x 100", 200_000, EPSILONS, arms=100),
        part("4 x 100", 20_000, EPSILONS, arms=100),
        part("overlapping", 200_000, (0.1, 1.0), overlap=1.0),
        part("drifting", 200_000, (0.1, 1.0), drift=1.0),
        part("ml-vendors", 200_000, (0.1, 1.0), "ml-vendors", **scale.world_options),
        part("ml-vendors", 20_000, (0.1, 1.0), "ml-vendors", **scale.world_options),
    )
    findings = _findings(NAME, TITLE, parts, SEEDS, progress)
    return Findings(findings.description, findings.rows, sharing_targets(findings.rows))


def run_forms(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play every mechanism at equal epsilon."""
    contexts, epsilons = (4_000, (1.0,)) if scale.quick else (200_000, (0.01, 0.1, 1.0, 4.0))
    options = (("arms", 100),) if scale.quick else ()
    forms: tuple[Form, ...] = ("blocks", "negative-digit", "binary", "exponential", "alone-blocks")
    tasks = [Task("exact", 0.0, contexts, 0, options=options)]
    tasks += [Task(form, epsilon, contexts, 0, options=options) for epsilon in epsilons for form in forms]
    name = "4 x 100" if scale.quick else "4 x 1,000"
    findings = _findings(
        FORMS_NAME, FORMS_TITLE, (Part(name, tuple(tasks)),), (0, 1) if scale.quick else SEEDS, progress
    )
    return findings if scale.quick else Findings(findings.description, findings.rows, forms_targets(findings.rows))


def run_gp(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play GP-DAP's epsilons on blocks, and two uniform epsilons below and above."""
    contexts, options = (4_000, (("arms", 100),)) if scale.quick else (200_000, ())
    growth = (("level_growth", GP_GROWTH),)
    tasks = (
        Task("blocks", GP_LOW, contexts, 0, options=options),
        Task("blocks", GP_LOW, contexts, 0, options=options, release=growth),
        Task("blocks", GP_HIGH, contexts, 0, options=options),
    )
    name = "4 x 100" if scale.quick else "4 x 1,000"
    # These differ by a few points, which is also the spread between runs at so small an epsilon.
    seeds = (0, 1) if scale.quick else tuple(range(12))
    findings = _findings(GP_NAME, GP_TITLE, (Part(name, tasks),), seeds, progress)
    return findings if scale.quick else Findings(findings.description, findings.rows, gp_targets(findings.rows))


def _findings(
    name: str, title: str, parts: Sequence[Part], seeds: Sequence[int], progress: Progress | None
) -> Findings:
    tasks = [one for each in parts for task in each.tasks for one in under_seeds(task, seeds)]
    played = play_all(play, tasks, name, progress)
    rows = [
        row_of(task, played, seeds, part=each.part, **_release_columns(task)) for each in parts for task in each.tasks
    ]
    names = dict.fromkeys(make_world(task.world, task.options, 0).name for each in parts for task in each.tasks)
    return Findings(Description(name, title, SOURCE, tuple(names), tuple(seeds), SETTINGS), rows, [])


def _release_columns(task: Task) -> Row:
    release = dict(task.release)
    return {"placement": release.get("placement", "serving"), "level_growth": release.get("level_growth", 0.0)}


def sharing_targets(rows: Sequence[Row]) -> list[BenchRow]:
    """Compare the figures with those of the design's simulation."""

    def accuracy(name: str, contexts: int, form: str, epsilon: float | None = None) -> float:
        wanted = {"part": name, "contexts": contexts, "form": form, "epsilon_asked": epsilon, "placement": "serving"}
        return float(pick(rows, **wanted)["accuracy"])

    large, small = ("4 x 1,000", 200_000), ("4 x 100", 200_000)
    exact, alone = accuracy(*large, "exact"), accuracy(*large, "alone-exact")
    one, tenth, hundredth = (accuracy(*large, "blocks", epsilon) for epsilon in (1.0, 0.1, 0.01))
    online = float(
        pick(rows, part=large[0], contexts=large[1], form="blocks", epsilon_asked=1.0, placement="serving")["online"]
    )
    return [
        at_least("4 x 1,000, epsilon 1", [one], "%", 86.5),
        at_most("4 x 1,000, exact sharing less epsilon 1", [exact - one], "points", 2.0),
        *_within("4 x 1,000, epsilon .1", tenth, 79.0, 83.0),
        *_within("4 x 1,000, epsilon .01", hundredth, 56.0, 71.0),
        at_least("4 x 1,000, epsilon 1, online", [online], "%", 74.0),
        at_least("4 x 1,000, epsilon 1 less exact no sharing", [one - alone], "points", 10.0),
        at_least("4 x 1,000, epsilon .1 less exact no sharing", [tenth - alone], "points", 3.0),
        *_within("4 x 100, exact sharing", accuracy(*small, "exact"), 85.5, 88.5),
        at_least("4 x 100, epsilon 1", [accuracy(*small, "blocks", 1.0)], "%", 84.2),
        at_least("4 x 100, epsilon .1", [accuracy(*small, "blocks", 0.1)], "%", 74.5),
        *_within("4 x 100, no sharing", accuracy(*small, "alone-exact"), 61.4, 65.4),
        at_least("4 x 100, 20,000 contexts, epsilon 1", [accuracy("4 x 100", 20_000, "blocks", 1.0)], "%", 76.0),
        at_most("4 x 100, 20,000 contexts, no sharing", [accuracy("4 x 100", 20_000, "alone-exact")], "%", 60.0),
    ]


def forms_targets(rows: Sequence[Row]) -> list[BenchRow]:
    """The target: at equal epsilon, blocks are the best form."""

    def accuracy(form: str, epsilon: float) -> float:
        return float(pick(rows, form=form, epsilon_asked=epsilon)["accuracy"])

    found = []
    for epsilon in (0.1, 1.0):
        blocks, digits, binary, chosen = (
            accuracy(form, epsilon) for form in ("blocks", "negative-digit", "binary", "exponential")
        )
        found += [
            at_least(f"epsilon {epsilon:g}: blocks less negative-digit tree", [blocks - digits], "points", 0.0),
            at_least(f"epsilon {epsilon:g}: negative-digit tree less exponential", [digits - chosen], "points", 0.0),
            at_least(f"epsilon {epsilon:g}: blocks less binary tree", [blocks - binary], "points", 10.0),
        ]
    return found


def gp_targets(rows: Sequence[Row]) -> list[BenchRow]:
    """The target: GP lies between the two uniform settings, with a tolerance of two points."""
    low, geometric, high = (row["accuracy"] for row in rows)
    return [
        at_least("GP less the lower neighbour", [geometric - low], "points", -2.0),
        at_least("the upper neighbour less GP", [high - geometric], "points", -2.0),
    ]


def _within(name: str, value: float, low: float, high: float) -> list[BenchRow]:
    return [at_least(name, [value], "%", low), at_most(name, [value], "%", high)]
