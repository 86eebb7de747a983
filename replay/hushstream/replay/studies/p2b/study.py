"""Declares P2B's study, which `hushstream.replay.study` finds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hushstream.replay.experiments.findings import Scale
from hushstream.replay.experiments.rows import Row
from hushstream.replay.experiments.systems import NAME, Paper, sound_epsilon
from hushstream.replay.report.replayed import RunResult
from hushstream.replay.studies.p2b import audits, run
from hushstream.replay.studies.p2b.audits import audit_config
from hushstream.replay.studies.p2b.bench import compute_rows
from hushstream.replay.studies.p2b.evaluation import EvaluateOptions, evaluate_with
from hushstream.replay.studies.p2b.experiments import EXPERIMENTS, LN_2, MODES, SOFTMAX
from hushstream.replay.studies.p2b.features import run_features, run_forecast
from hushstream.replay.studies.p2b.play import Line, Point, play, without_learning
from hushstream.replay.studies.p2b.run import P2BOptions, run_p2b
from hushstream.replay.study import Progress, Study
from hushstream.replay.worlds.criteo import criteo
from hushstream.replay.worlds.mixed_table import catalogue
from hushstream.replay.worlds.movielens import movielens_100k
from hushstream.replay.worlds.multilabel import mediamill, tmc2007
from hushstream.replay.worlds.shop import shop
from hushstream.replay.worlds.synthetic import synthetic


def _demo(seed: int | None, bootstrap: str | None, security: Path | None) -> P2BOptions:
    return P2BOptions(
        dataset="shop",
        runner="stream",
        seed=seed or 0,
        secret_keys=seed is None,
        contributors=3000,
        evaluated=600,
        config={"deployment": "demo", "privacy": {"epsilon": 1.0}},
        bootstrap=bootstrap,
        security=security,
    )


def _evaluate(options: Mapping[str, Any], progress: Progress | None) -> RunResult:
    return evaluate_with(EvaluateOptions(**options), progress)


def _plays(made: Any) -> bool:
    """Whether an object is a class of worlds of unrelated users; a factory without a return type counts as one."""
    return made is None or (hasattr(made, "rounds") and not hasattr(made, "relation"))


CLAIM = Paper(
    system="p2b",
    source="Malekzadeh et al., Privacy-Preserving Bandits (P2B; MLSys 2020)",
    claimed_epsilon=float(LN_2),
    claimed_as="δ exp(-Ω(l (1 - p)²)), at l = 10, p = 1/2 by Lemma 13 0.0076",
    audit="p2b-paper",
    fails="its threshold counts reports of a code, not equal tuples. So a unique tuple, and in it its context's code, "
    "is released once it is sampled, at any l. Ours adds noise to every sum; mode `tuples` (p2b-fig3) counts equal "
    "tuples",
    protects="one user's context",
    protects_here="one report",
    printed_in_paper="",
    measure="mean reward of new users",
    better="more is better",
    local_only_is="own learning only",
)


def paper_line(scale: Scale, progress: Progress | None) -> Row:
    """The row in the table of papers: thresholds on codes against slot sums, at p = 1/2 (claimed: epsilon ln 2)."""
    users, seeds = (500, range(2)) if scale.quick else (5_000, range(10))
    lines = (Line("paper", 8, MODES["paper"]), Line("slot sums", 8, MODES["slot-sums"]))
    point = Point(NAME, {}, SOFTMAX, users, 10, 10, 10, lines)
    played, trivial = play(point, seeds, progress), [without_learning(point, seed) for seed in seeds]
    true, ours = played.guarantees
    claimed = CLAIM.claimed_epsilon
    assert sound_epsilon(claimed, true) == claimed, "our line is played at the claim: the true delta is large"
    return CLAIM.row(
        f"softmax world, clicks, {users:,} users, 10 items, 8 codes",
        true,
        ours,
        published=played.means[:, 2].tolist(),
        reached=played.means[:, 3].tolist(),
        local_only=played.means[:, 0].tolist(),
        constant=[best for best, _ in trivial],
        random=[mean for _, mean in trivial],
    )


STUDY = Study(
    system="p2b",
    options=P2BOptions,
    dataset="synthetic",
    play=run_p2b,
    worlds={
        "shop": shop,
        "catalogue": catalogue,
        "synthetic": synthetic,
        "tmc2007": tmc2007,
        "mediamill": mediamill,
        "criteo": criteo,
        "ml-100k": movielens_100k,
    },
    plays=_plays,
    experiments=lambda: EXPERIMENTS,
    paper=paper_line,
    forecast=run_forecast,
    joining=run_features,
    audits=audits.rows,
    audit_config=audit_config,
    bench=compute_rows,
    demo=_demo,
    evaluate=_evaluate,
    sample=run.sample,
    live=run.live,
)
