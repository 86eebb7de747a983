"""The view of an experiment: a few lines, a data frame, and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hushstream.replay.experiments.figures import Picture, render
from hushstream.replay.experiments.findings import Findings
from hushstream.replay.views import View


def findings_view(findings: Findings, pictures: Sequence[Picture]) -> View:
    """Show the rows, the pictures, and how many of the evaluated targets are reached."""
    description = findings.description
    evaluated = [row.reached for row in findings.targets if row.reached is not None]
    marks = (mark for known in description.deployments for mark in known.guarantee.marks)
    return View(
        title=f"{description.name}: {description.title}",
        facts=(f"{sum(evaluated)} of {len(evaluated)} evaluated targets reached", f"Source: {description.source}."),
        marks=tuple(dict.fromkeys(marks)),
        rows=findings.rows,
        pictures={f"{description.name}{one.suffix}": partial(render, one, findings) for one in pictures},
    )
