"""Declares P2B's study, which `hushstream.replay.study` finds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from hushstream.replay.bench.rows import BenchRow
from hushstream.replay.bench.stream.on_kafka import kafka_rows
from hushstream.replay.bench.stream.release_times import release_time_rows
from hushstream.replay.bench.stream.rows import stream_rows
from hushstream.replay.bench.stream.soak import SoakSizes, run_soak, soak_table
from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.papers import NAME, line, sound_epsilon
from hushstream.replay.experiments.rows import Row, privacy_columns
from hushstream.replay.progress import Progress
from hushstream.replay.quickstart import run as quickstart
from hushstream.replay.report.sheet import png
from hushstream.replay.report.wording import provenance_lines, verify_sentence
from hushstream.replay.studies.p2b import samples
from hushstream.replay.studies.p2b.audits import rows
from hushstream.replay.studies.p2b.audits.configured import audit_config
from hushstream.replay.studies.p2b.audits.slot_sums import MECHANISMS, audit
from hushstream.replay.studies.p2b.bench.compute import compute_rows
from hushstream.replay.studies.p2b.evaluation.run import EvaluateOptions, evaluate_with
from hushstream.replay.studies.p2b.evaluation.shown import ShownEvaluation
from hushstream.replay.studies.p2b.experiments.catalogue import EXPERIMENTS
from hushstream.replay.studies.p2b.experiments.modes import MODES, SOFTMAX
from hushstream.replay.studies.p2b.experiments.paper import LN_2
from hushstream.replay.studies.p2b.experiments.points import Line, Point, play
from hushstream.replay.studies.p2b.report.document import as_json
from hushstream.replay.studies.p2b.report.folder import write_report
from hushstream.replay.studies.p2b.report.plots import plots
from hushstream.replay.studies.p2b.report.results import RunResult
from hushstream.replay.studies.p2b.report.summaries import headline
from hushstream.replay.studies.p2b.report.table import terminal_table
from hushstream.replay.studies.p2b.report.wording import figures_of, figures_of_rows, title
from hushstream.replay.studies.p2b.run import P2BOptions, run_p2b
from hushstream.replay.study import Study
from hushstream.replay.views import Headline, View
from hushstream.replay.worlds.criteo import criteo
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


def _quickstart(options: Mapping[str, Any], say: Callable[[str], None]) -> Mapping[str, Any]:
    return asyncio.run(quickstart.run(quickstart.QuickstartOptions(**options), say))


def _evaluate(options: Mapping[str, Any], progress: Progress | None) -> ShownEvaluation:
    return evaluate_with(EvaluateOptions(**options), progress)


def _bench(progress: Callable[[str], None], rounds: int) -> list[BenchRow]:
    return compute_rows(progress, rounds) + release_time_rows(progress, rounds)


def _soak(sizes: Sequence[Any], progress: Callable[[str], None]) -> tuple[Any, RenderableType]:
    asked = SoakSizes(*sizes)
    found = run_soak(asked, progress)
    return asdict(found), soak_table(found, asked)


def _plays(made: Any) -> bool:
    """Whether an object is a class of worlds of unrelated users; a factory without a return type counts as one."""
    return made is None or (hasattr(made, "rounds") and not hasattr(made, "relation"))


def paper_line(scale: Scale, progress: Progress | None) -> Row:
    """The row in the table of papers: thresholds on codes against slot sums, at p = 1/2 (claimed: epsilon ln 2)."""
    users, seeds = (500, range(2)) if scale.quick else (5_000, range(3))
    lines = (Line("paper", 8, MODES["paper"]), Line("slot sums", 8, MODES["slot-sums"]))
    played = play(Point(NAME, {}, SOFTMAX, users, 10, 10, 10, lines), seeds, progress)
    true, sound = (privacy_columns(one) for one in played.guarantees)
    claimed = float(LN_2)
    assert sound_epsilon(claimed, true) == claimed, "the sound line is played at the claim: the true delta is large"
    return line(
        system="p2b",
        source="Malekzadeh et al. 2020 (P2B)",
        setting=f"softmax world, clicks, {users:,} users, 10 items, 8 codes",
        measure="mean reward of new users",
        less_is_better=False,
        claimed=claimed,
        true=true,
        reached=played.means[:, 2].tolist(),
        sound=sound,
        sound_reached=played.means[:, 3].tolist(),
        alone=played.means[:, 0].tolist(),
        alone_is="users who start cold",
    )


def run_view(result: RunResult) -> View:
    """Warm private users compared with cold ones, and every condition's reward by interaction."""
    compared = headline(result)
    return View(
        title=title(result),
        answers=result.answers,
        headline=None
        if compared is None
        else Headline("mean reward of warm private users over cold ones", compared.ratio, compared.low, compared.high),
        facts=(result.privacy.summary, verify_sentence(result.verify)),
        marks=result.marks,
        rows=[{**asdict(row), "figures": text} for row, text in zip(result.rows, figures_of_rows(result), strict=True)],
        pictures={one.name: partial(png, one, provenance_lines(result, figures_of(result))) for one in plots(result)},
    )


STUDY = Study(
    system="p2b",
    options=P2BOptions,
    flags={
        "contributors": "--contributors",
        "first": "--from",
        "pace": "--pace",
        "in_flight": "--in-flight",
        "conditions": "--condition",
    },
    dataset="synthetic",
    play=run_p2b,
    document=as_json,
    table=terminal_table,
    view=run_view,
    report=write_report,
    worlds={
        "shop": shop,
        "synthetic": synthetic,
        "tmc2007": tmc2007,
        "mediamill": mediamill,
        "criteo": criteo,
        "ml-100k": movielens_100k,
    },
    plays=_plays,
    experiments=lambda: EXPERIMENTS,
    paper=paper_line,
    audits=rows.rows,
    audit_config=audit_config,
    mechanisms={name: partial(audit, name) for name in MECHANISMS},
    bench=_bench,
    stream_bench=stream_rows,
    kafka_bench=kafka_rows,
    demo=_demo,
    quickstart=_quickstart,
    soak=_soak,
    evaluate=_evaluate,
    sample=samples.sample,
    live=samples.live,
)
