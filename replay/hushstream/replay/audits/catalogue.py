"""All audits by name: runs rows of the table, and the audit of one configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from typing import Any

from hushstream.privacy.audits import FALSE_ALARM
from hushstream.replay.audits import mechanisms
from hushstream.replay.audits.configured import RUNS, AuditReport, require_runs
from hushstream.replay.audits.row import Audit, Effort, Row
from hushstream.replay.runners.to_end import play_all
from hushstream.replay.study import Progress, studies, study_of
from hushstream.schemas.errors import HushstreamError


def run_audits(
    names: Sequence[str] = (),
    effort: Effort = "full",
    false_alarm: float = FALSE_ALARM,
    progress: Progress | None = None,
) -> list[Row]:
    """Run the named audits, or all, in the order of the table.

    Args:
        names: the names of the audits; all if empty.
        effort: how many runs each audit takes.
        false_alarm: the probability, for each row, that an honest mechanism fails.
        progress: called with (rows done, rows in all, what is being done).

    Raises:
        HushstreamError: an unknown name, or a false-alarm rate outside (0, 1).
    """
    if not 0 < false_alarm < 1:
        raise HushstreamError(f"audit: expected a false alarm in (0, 1), got {false_alarm}")
    attack = partial(_attack, effort=effort, false_alarm=false_alarm)
    return list(play_all(attack, chosen_audits(names), "audits", progress).values())


def audit_config(config: Any, runs: int = RUNS, false_alarm: float = FALSE_ALARM) -> AuditReport:
    """Attack the releases of a configuration.

    Args:
        config: a configuration of any system.
        runs: releases on each of two neighbours.
        false_alarm: the probability that an honest mechanism fails.

    Raises:
        HushstreamError: the configuration's release has no noise, or ``runs`` or ``false_alarm`` is out of range.
    """
    require_runs(runs, false_alarm)
    return study_of(config.system).audit_config(config, runs, false_alarm)


def chosen_audits(names: Sequence[str]) -> list[str]:
    """The named rows, or all, in the order of the table.

    Raises:
        HushstreamError: an unknown name.
    """
    known = _known()
    for name in names:
        if name not in known:
            raise HushstreamError(f"audit: expected one of {', '.join(known)}, got {name!r}")
    return [name for name in known if not names or name in names]


def _attack(name: str, effort: Effort, false_alarm: float) -> Row:
    return make_audit(name)(effort, false_alarm)


def make_audit(name: str) -> Audit:
    """A known row, whose test is not made yet."""
    return replace(_known()[name])


def audit_names() -> tuple[str, ...]:
    """The names of all rows, in the order of the table."""
    return tuple(_known())


@cache
def _known() -> Mapping[str, Audit]:
    of_studies = (study.audits() for study in studies().values())
    return {audit.name: audit for audit in chain(mechanisms.rows(), *of_studies)}
