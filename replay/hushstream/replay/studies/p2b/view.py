"""What a p2b run shows of itself in a few lines, as a data frame and as pictures."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from hushstream.replay.report.sheet import png
from hushstream.replay.report.wording import provenance_lines, verify_sentence
from hushstream.replay.studies.p2b.report.plots import plots
from hushstream.replay.studies.p2b.report.results import RunResult
from hushstream.replay.studies.p2b.report.summaries import headline
from hushstream.replay.studies.p2b.report.wording import figures_of, figures_of_rows, title
from hushstream.replay.views import Headline, View


def run_view(result: RunResult) -> View:
    """Warm private users against cold ones, and every condition's reward by interaction."""
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
