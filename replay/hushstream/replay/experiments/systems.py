"""Experiments over all systems: what joining brings, how well plans foretell it, and the table of the papers.

Each system's study plays its own rows (`hushstream.replay.study.Study.joining`, `Study.forecast` and `Study.paper`);
this module knows no system.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from hushstream.privacy.amounts import delta_value, epsilon_float, epsilon_micro, epsilon_text, float_up
from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay.audits.catalogue import run_audits
from hushstream.replay.audits.row import Row as AuditRow
from hushstream.replay.datasets.builtin import DatasetError
from hushstream.replay.experiments.findings import Curve, Experiment, Findings, Foretold, Scale
from hushstream.replay.experiments.rows import BenchRow, Row, columns, privacy_columns, share
from hushstream.replay.runners.to_end import play_all
from hushstream.replay.study import Progress, Study

NAME = "papers"


def _chosen(scale: Scale) -> Iterator[tuple[str, Study]]:
    """Every study, or that of one system.

    Raises:
        UnknownStudy: there is no such system.
    """
    from hushstream.replay.study import studies, study_of

    return iter((studies() if scale.system is None else {scale.system: study_of(scale.system)}).items())


def _gathered(part: str, scale: Scale, progress: Progress | None) -> Findings:
    """Play a part of every study, or of one; a system whose dataset is absent has a remark in place of its rows."""
    rows: list[Row] = []
    targets: list[BenchRow] = []
    played: dict[str, Findings] = {}
    for name, study in _chosen(scale):
        play: Callable[[Scale, Progress | None], Findings] | None = getattr(study, part)
        if play is None:
            continue
        try:
            found = play(scale, progress)
        except DatasetError as error:
            rows.append({"system": name, "world": f"not played: {error}"})
            continue
        played[name] = found
        rows += [{"system": name, **row} for row in found.rows]
        targets += [replace(one, name=f"{name}: {one.name}") for one in found.targets]
    return Findings(
        rows,
        targets,
        tuple(dict.fromkeys(f"of {row['system']}: {row['world']}" for row in rows)),
        tuple(sorted({seed for one in played.values() for seed in one.seeds})),
        tuple(f"{name}: {text}" for name, one in played.items() for text in one.settings),
    )


COMPARED = ("joined", "mixture", "alone", "without_privacy")
GAINS = tuple(f"{name}_over_alone" for name in COMPARED if name != "alone")


def run_joining(scale: Scale, progress: Progress | None) -> Findings:
    """Play what joining brings: all rows of one system, or the table of all (`Scale.compared`)."""
    found = _gathered("joining", scale, progress)
    if scale.system is not None:
        return found
    return replace(found, rows=[_compared(row) for row in found.rows if "alone" in row or "not played" in row["world"]])


def _compared(row: Row) -> Row:
    """The columns of a row that all systems have."""
    place = (("items", "{} items"), ("slots", "{:,} reports"), ("windows", "windows: {}"), ("placement", "{} counter"))
    world = ", ".join([row["world"], *(text.format(row[name]) for name, text in place if name in row)])
    names = [one for one in (*COMPARED, *GAINS) if one in row]
    figures = {f"{one}{end}": row[f"{one}{end}"] for one in names for end in ("", "_low", "_high")}
    named: Row = {name: row[name] for name in ("form", "measure", "seeds", "deployment", "marks") if name in row}
    return {"system": row["system"], "world": world, "epsilon_asked": row.get("epsilon"), **named, **figures}


JOINING = Experiment(
    "joining",
    "What joining brings and costs: alone, joined, mixed and without privacy",
    "our variants of the five papers",
    run_joining,
    (
        Curve(
            "Joined beside alone and without privacy",
            COMPARED,
            "epsilon_asked",
            panels=("system", "world", "measure"),
            log="x",
        ),
    ),
    data="tmc2007, filmtrust, ml-100k",
)

DRAWN = range(2_000, 2_040)
"""Seeds of the drawn worlds; a quick run takes the first `FEW`. No plan was fitted on worlds of these seeds."""

FEW = 4
HOLDS = 0.9
"""The share of drawn worlds whose gain the range of a plan should hold."""


def foretold_worlds(
    foretold: Callable[[int], Foretold],
    scale: Scale,
    progress: Progress | None,
    processes: int | None = None,
    drawn: Sequence[int] | None = None,
) -> Findings:
    """Play the drawn worlds of a system, and count how often its plan was right.

    Args:
        foretold: plays the world of a seed; a function at the top level of a module.
        scale, progress: as of every experiment.
        processes: as in `hushstream.replay.runners.to_end.play_all`.
        drawn: seeds of the worlds; None: `DRAWN`.
    """
    every = DRAWN if drawn is None else drawn
    seeds = every[:FEW] if scale.quick else every
    found = list(play_all(foretold, seeds, "drawn worlds", progress, processes).values())
    rows = [_foretold_row(seed, one) for seed, one in zip(seeds, found, strict=True)]
    counted = {
        "gain within the plan's range": ([one.held for one in found if one.held is not None], HOLDS),
        "will or will not, and so it was": ([one.right for one in found if one.right is not None], 1.0),
    }
    targets = []
    for name, (known, least) in counted.items():
        if known:
            part = share("", known)
            title = f"{name}: {sum(known)} of {len(known)} (95 %: {part['_low']:.2f} to {part['_high']:.2f})"
            target = ("", None) if scale.quick else (f"at least {least:g}", part[""] >= least)
            targets.append(BenchRow(title, part[""], "share", *target))
    settings = (f"Gain: {found[0].measure}.", "Worlds, keys and configurations are drawn: REPRODUCIBLE, NOT PRIVATE.")
    return Findings(rows, targets, tuple(row["world"] for row in rows), seeds, settings)


_WORDS = {True: "will", False: "will not", None: "may"}


def _foretold_row(seed: int, one: Foretold) -> Row:
    said: Row = {}
    if one.said is not None:
        said = {"forecast": one.said.middle, "forecast_least": one.said.low, "forecast_most": one.said.high}
    return {
        "part": "drawn worlds",
        "world": one.world,
        "seed": seed,
        "gain": one.gain,
        **said,
        "held": one.held,
        "word": _WORDS[one.beats],
        "right": one.right,
        **privacy_columns(one.guarantee),
    }


FORECAST = Experiment(
    "forecast",
    "Does `hushstream plan` hold? Its forecasts beside what comes out, in drawn worlds",
    "the plans of the five systems",
    partial(_gathered, "forecast"),
    (
        Curve(
            "Gain in drawn worlds over the plan's forecast and its range, by the plan's word",
            ("gain",),
            "forecast",
            by=("word",),
            panels=("system", "part"),
            label="gain that came out",
            diagonal=True,
        ),
    ),
)

MOST_EPSILON = 64.0
"""An epsilon above this is no useful guarantee.

In this case our variant is played at the epsilon that the paper claims.
"""


def sound_epsilon(claimed: float, proven: Guarantee) -> float:
    """The epsilon at which our variant is compared with the paper's: the proven one, or the claim if that is no use.

    Args:
        claimed: the paper's epsilon.
        proven: the guarantee of the paper's mechanism by our analysis.
    """
    epsilon = epsilon_float(proven.epsilon_micro)
    usable = delta_value(proven.delta_units) < 0.5 and 0 < epsilon <= MOST_EPSILON
    return epsilon if usable else claimed


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper's claim, why it fails, and what is compared; all but numbers in words.

    Attributes:
        system: name of the system.
        source: the paper.
        claimed_epsilon: the epsilon that is given to its mechanism.
        claimed_as: delta and neighbours of the claim, and where it is made.
        claimed_by: who chose this epsilon.
        fails: why its mechanism does not satisfy the claim.
        reading: how the paper is read here, where it can be read otherwise; empty where it cannot.
        audit: the row of audits that attacks the claim.
        protects, protects_here: what the paper's claim covers, and what ours does.
        printed_in_paper: the paper's own result; empty where it prints none.
        measure: what is measured.
        better: which way it is better, in words.
        local_only_is: the baseline without data of other users.
    """

    system: str
    source: str
    claimed_epsilon: float
    claimed_as: str
    fails: str
    audit: str
    protects: str
    protects_here: str
    printed_in_paper: str
    measure: str
    better: Literal["more is better", "less is better"]
    local_only_is: str
    claimed_by: Literal["paper", "ours"] = "paper"
    reading: str = ""

    def row(
        self,
        setting: str,
        proven: Guarantee,
        ours: Guarantee,
        *,
        published: Sequence[float],
        reached: Sequence[float],
        local_only: Sequence[float],
        random: Sequence[float],
        constant: Sequence[float] = (),
        tuned: Sequence[float] = (),
        first_seed: int = 0,
    ) -> Row:
        """Make its row.

        Args:
            setting: the world and its size, in words.
            proven: guarantee of the paper's mechanism by our analysis, an upper bound.
            ours: guarantee of our variant.
            published: results of the paper's mechanism, reimplemented, one value a seed.
            reached: results of our variant.
            local_only: results of the local baseline.
            random: results of choices or predictions at random.
            constant: results of the best choice or prediction that is always the same, where there is one.
            tuned: results of the paper's mechanism with our ridge, where the two differ.
            first_seed: the seeds count up from this.
        """
        figures: Row = {}
        mine, sign = np.array(reached), -1 if self.better == "less is better" else 1
        rivals = {"published": published, "local_only": local_only} | ({"tuned": tuned} if tuned else {})
        over = {f"over_{name}": sign * (mine - values) for name, values in rivals.items()}
        trivial = {"random": random} | ({"constant": constant} if constant else {})
        for name, values in (rivals | trivial | {"ours": reached} | over).items():
            figures |= columns(name, values)
        return {
            **asdict(self),
            "setting": setting,
            **_most_columns(proven),
            **_our_columns(ours),
            **figures,
            "seeds": len(reached),
            "first_seed": first_seed,
        }


def _most_columns(proven: Guarantee) -> Row:
    """Epsilon and delta of a paper's mechanism, without what the tables of our sampler add; no epsilon at delta 1."""
    delta = float_up(delta_value(proven.delta_units - proven.truncation_units))
    epsilon = {} if delta == 1 else {"most_epsilon": epsilon_float(proven.epsilon_micro)}
    return epsilon | {"most_delta": delta, "relation": proven.relation.partition(":")[0]}


def _our_columns(ours: Guarantee) -> Row:
    """Epsilon and delta of our variant under both relations; under replace-one alone where no content is empty."""
    costs = {"ours_replace_one": ours.replace_one} | ({} if ours.any_content else {"ours_zero_out": ours.cost})
    return {
        f"{name}_{part}": value
        for name, cost in costs.items()
        for part, value in (
            ("epsilon", epsilon_float(cost.epsilon_micro)),
            ("delta", float_up(delta_value(cost.delta_units))),
        )
    }


def run_papers(scale: Scale, progress: Progress | None) -> Findings:
    """Compute the row of each study, or of one system, with the attack on its paper's claim.

    Where its dataset is absent a remark stands in for figures.
    """
    rows: list[Row] = []
    for name, study in _chosen(scale):
        if study.paper is None:
            continue
        try:
            rows.append(study.paper(scale, progress))
        except DatasetError as error:
            rows.append({"system": name, "setting": f"not played: {error}"})
    attacks = [row["audit"] for row in rows if "audit" in row]
    attacked = {row.name: row for row in run_audits(attacks, "quick" if scale.quick else "full", progress=progress)}
    rows = [with_costs(row | _attacked_columns(attacked[row["audit"]])) if "audit" in row else row for row in rows]
    seeds = {row["first_seed"] + count for row in rows for count in range(row.get("seeds", 0))}
    worlds = tuple(f"of {row['system']}: {row['setting']}" for row in rows)
    return Findings(rows, [] if scale.quick else targets(rows), worlds, sorted(seeds), SETTINGS)


def _attacked_columns(attacked: AuditRow) -> Row:
    """What an attack on a paper's claim proves: epsilon at its delta, and delta at its epsilon."""
    claim = attacked.paper_claim
    assert claim is not None, "the row of a paper names its claim"
    return {
        "attacked_epsilon": epsilon_float(claim.epsilon_micro),
        "attacked_delta": float_up(delta_value(claim.delta_units)),
        "least_epsilon": attacked.paper_bound,
        "least_delta": attacked.paper_delta_bound,
        "attack_runs": attacked.result.runs,
        "attack_false_alarm": attacked.result.false_alarm,
    }


SMALL = 1e-9
"""A delta below this is shown as 0."""


def with_costs(row: Row) -> Row:
    """The row with its costs in words, as pairs (epsilon, delta).

    Lower bounds are rounded down, and upper bounds up.
    """
    claimed, attacked = (f"({row[f'{name}_epsilon']:.3g}, {row['attacked_delta']:.2g})" for name in _CLAIMS)
    is_not = (
        f"({_down(row['least_epsilon'], 3)}, {row['attacked_delta']:.2g}), "
        f"({row['attacked_epsilon']:.3g}, {_down(row['least_delta'], 2)})"
    )
    if "most_epsilon" in row:
        at_most = f"({_up(row['most_epsilon'])}, {row['most_delta']:.2g})"
    else:
        at_most = "nothing: δ is 1 at every ε"
    relations = [name for name in ("zero_out", "replace_one") if f"ours_{name}_epsilon" in row]
    ours = ", ".join(
        f"{name.replace('_', '-')} ({_up(row[f'ours_{name}_epsilon'])}, {_delta(row[f'ours_{name}_delta'])})"
        for name in relations
    )
    return row | {
        "claimed": claimed + " (our choice)" * (row["claimed_by"] == "ours"),
        "is_not": is_not + f" where {attacked} is claimed" * (attacked != claimed),
        "at_most": at_most,
        "ours_costs": ours,
    }


_CLAIMS = ("claimed", "attacked")


def _delta(delta: float) -> str:
    return f"{delta:.0e}" if delta >= SMALL else "0"


def _up(epsilon: float) -> str:
    """Epsilon, rounded up to thousandths."""
    return epsilon_text(-(-epsilon_micro(epsilon) // 1000) * 1000)


def _down(bound: float, digits: int) -> str:
    """A lower bound, rounded down to so many digits."""
    if bound <= 0:
        return "0"
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(bound)))
    return f"{math.floor(bound * scale) / scale:g}"


SETTINGS = (
    "± is half of the 95 % interval of the mean over seeds; differences are paired by seed.",
    "Costs are pairs (epsilon, delta). Claimed: by the paper. Is not: refuted by an attack, with the claimed delta and "
    "with the claimed epsilon (hushstream audit --only NAME). At most: our upper bound for the paper's mechanism.",
    "Published: the paper's algorithm, reimplemented. Ours: a DP-corrected variant at the epsilon of at most, or at "
    f"the claimed one where there is none or it is above {MOST_EPSILON:g}.",
    "Keys come from seeds: REPRODUCIBLE, NOT PRIVATE.",
)
"""How the figures are read."""


def targets(rows: Sequence[Row]) -> list[BenchRow]:
    """The target of each paper: at a cost that is not higher, our variant is better than the published one."""
    found = []
    for row in rows:
        if "ours" in row:
            name = f"{row['system']}: ours over published; low end of the 95 % interval"
            low = row["over_published_low"]
            found.append(BenchRow(name, low, row["measure"], "above 0", low > 0))
    return found


PAPERS = Experiment(
    NAME,
    "Five papers: what is claimed, what holds by our analysis, and what a DP-corrected variant reaches",
    "the five papers",
    run_papers,
    (
        Curve(
            "The papers' algorithms as published, ours, and baselines",
            ("published", "ours", "local_only", "constant", "random"),
            panels=("system", "measure", "better"),
            label="mean over seeds",
        ),
    ),
    (
        *("system", "claimed", "is_not", "at_most", "ours_costs", "measure", "better"),
        *("published", "ours", "local_only", "constant", "random", "over_published", "over_local_only"),
    ),
    data="tmc2007, filmtrust",
)
