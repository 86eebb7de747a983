"""Shows the evaluation of a log as a table, a few lines, and a folder with JSON, CSV, a picture and a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.replay.report.folder import csv_bytes, write_files
from hushstream.replay.report.sheet import png
from hushstream.replay.report.wording import EXACT, provenance_lines
from hushstream.replay.studies.p2b.evaluation.evaluation import Evaluation, PolicyRow
from hushstream.replay.studies.p2b.evaluation.page import evaluation_page, policies_drawing
from hushstream.replay.studies.p2b.report.results import WARM_NONPRIVATE
from hushstream.replay.studies.p2b.report.wording import policy_name
from hushstream.replay.views import View

OF_EXACT_ROWS = frozenset({WARM_NONPRIVATE, "popular", "non-private"})
"""Policies made from contributors' exact rows; they are not private, whatever the guarantee says."""

FILES = ("evaluation.json", "evaluation.csv", "policies.png", "index.html")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownEvaluation(Evaluation):
    """An evaluation that can be printed, drawn and written."""

    def view(self) -> View:
        """Warm private users compared with cold ones, and a row for each policy and estimator."""
        checks = {check.status for check in (self.verify or {}).values()}
        return View(
            title=f"{self.log}: {self.rows} rows of {self.users} users, {self.contributors} of whom contributed",
            verdict=self.verdict,
            headline=self.headline,
            facts=(self.privacy.summary, f"verify: {', '.join(sorted(checks)) or 'not asked for'}"),
            marks=self.marks,
            rows=[_flat(row, self.marks) for row in self.policies],
            pictures={"policies": partial(png, policies_drawing(self), self._provenance())},
        )

    def table(self) -> Table:
        """The policies for a terminal, with the private condition's guarantee above and the warnings below."""
        marks = "".join(f"\n{mark}" for mark in self.marks)
        title = (
            f"{self.log}: {self.policies[0].rows} rows of users who did not contribute\n{EXACT}\n"
            f"{self.privacy.summary}{marks}"
        )
        warnings = "\n".join(
            f"{policy_name(row.policy)} ({row.estimator}): {text}" for row in self.policies for text in row.warnings
        )
        table = Table(title=title, caption=warnings or None, caption_justify="left")
        for name in ("policy", "estimator"):
            table.add_column(name, no_wrap=True)
        for name in ("mean reward", "95 % interval", "matched", "effective rows"):
            table.add_column(name, justify="right", no_wrap=name.startswith("95"))
        for row in self.policies:
            table.add_row(
                policy_name(row.policy),
                row.estimator,
                "-" if row.value is None else f"{row.value:.4f}",
                "-" if row.ci95 is None else f"{row.ci95.low:.4f} to {row.ci95.high:.4f}",
                "-" if row.matched_share is None else f"{row.matched_share:.1%}",
                f"{row.effective_sample_size:.0f}",
            )
        return table

    def write(self, folder: Path) -> list[Path]:
        """Write ``evaluation.json``, ``evaluation.csv``, ``policies.png`` and ``index.html``.

        Raises:
            ReportNotWritten: the folder cannot be written.
        """
        rows = [_flat(row, self.marks) for row in self.policies]
        made = (
            (json.dumps(self.as_json(), indent=2, allow_nan=False) + "\n").encode(),
            csv_bytes(rows[0], (tuple(row.values()) for row in rows)),
            png(policies_drawing(self), self._provenance()),
            evaluation_page(self, FILES[:-1]).encode(),
        )
        return write_files(folder, dict(zip(FILES, made, strict=True)))

    def _provenance(self) -> list[str]:
        return [*provenance_lines(self), *self.marks]


def _flat(row: PolicyRow, marks: Sequence[str]) -> dict[str, Any]:
    """One CSV line: the interval as two columns, warnings and marks as one text each."""
    values = row.as_json()
    low, high = values.pop("ci95") or (None, None)
    values |= {"ci95_low": low, "ci95_high": high}
    figures = f"{NOT_PRIVATE}: made from contributors' exact rows; {EXACT}" if row.policy in OF_EXACT_ROWS else EXACT
    return values | {"warnings": "; ".join(row.warnings), "marks": "; ".join(marks), "figures": figures}
