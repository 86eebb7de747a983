"""Every audit by name, and the run of all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

from hushstream.counting import Plan
from hushstream.privacy.audits.audit import FALSE_ALARM
from hushstream.privacy.audits.laws import laplace_pair, pure
from hushstream.privacy.mechanisms.exponential import exponential_choice, exponential_guarantee
from hushstream.privacy.mechanisms.gaussian import discrete_gaussian
from hushstream.privacy.mechanisms.k_norm import discrete_k_norm_joint
from hushstream.privacy.mechanisms.noise import discrete_laplace
from hushstream.privacy.mechanisms.response import RandomisedResponse
from hushstream.privacy.mechanisms.rewards import LocalReward
from hushstream.replay.audits import counters, mechanisms
from hushstream.replay.audits.report import RUNS, AuditReport, require_runs
from hushstream.replay.audits.row import Audit, Effort, Recipe, Row, Run, made
from hushstream.replay.study import studies, study_of
from hushstream.schemas.errors import HushstreamError

Asked = TypeVar("Asked")
Done = TypeVar("Done")
"""The result of `in_processes` for one row."""


def run_audits(
    names: Sequence[str] = (),
    effort: Effort = "full",
    false_alarm: float = FALSE_ALARM,
    processes: int | None = None,
) -> Iterator[Row]:
    """Run the named audits, or all, in the order of the table.

    Args:
        names: the names of the audits; all if empty.
        effort: how many runs each audit takes.
        false_alarm: the probability, for each row, that an honest mechanism fails.
        processes: how many processes work at the same time; None: one for each processor.

    Raises:
        HushstreamError: an unknown name, or a false-alarm rate outside (0, 1).
    """
    if not 0 < false_alarm < 1:
        raise HushstreamError(f"audit: expected a false alarm in (0, 1), got {false_alarm}")
    yield from in_processes(partial(_attack, effort=effort, false_alarm=false_alarm), chosen_audits(names), processes)


def in_processes(work: Callable[[Asked], Done], asked: Sequence[Asked], processes: int | None = None) -> Iterator[Done]:
    """Apply a function to each row in several processes; return the results in the order of the rows."""
    count = min(len(asked), processes or os.cpu_count() or 1)
    if count <= 1:
        yield from map(work, asked)
        return
    # New interpreters, as a forked process would inherit locks that threads of this process hold.
    with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        yield from pool.map(work, asked)


def count_audits(names: Sequence[str] = ()) -> int:
    """How many rows `run_audits` gives.

    Raises:
        HushstreamError: an unknown name.
    """
    return len(chosen_audits(names))


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
    """Make the audit of a known row."""
    return _known()[name].make()


def _one_thread() -> None:
    # Two processes with two linear algebra threads each would compete for two processors.
    threadpool_limits(limits=1)


def audit_names() -> tuple[str, ...]:
    """The names of all rows, in the order of the table."""
    return tuple(_known())


@cache
def _known() -> Mapping[str, Recipe]:
    return {recipe.name: recipe for recipe in _recipes()}


def _recipes() -> tuple[Recipe, ...]:
    shared = (*map(made, _mechanisms()), *_k_norm(), *map(made, _counters()))
    return (*shared, *(recipe for study in studies().values() for recipe in study.audits()))


def _mechanisms() -> tuple[Audit, ...]:
    ratio, size = mechanisms.likelihood_ratio, mechanisms.sizes
    laplace = mechanisms.LAPLACE_COST, mechanisms.LAPLACE_FAMILY
    gaussian = mechanisms.GAUSSIAN_COST, mechanisms.GAUSSIAN_FAMILY
    epsilon = mechanisms.EPSILON
    response = RandomisedResponse.of(mechanisms.CATEGORIES, epsilon)
    bit, noised = LocalReward.of(1, epsilon, "response"), LocalReward.of(mechanisms.LEVELS, epsilon, "laplace")
    choice = exponential_guarantee(mechanisms.CANDIDATES, epsilon, 1).cost
    one, steps = pure(lambda e: laplace_pair(e).power), pure(lambda e: laplace_pair(e, 1, noised.levels).power)
    return (
        _mechanism("discrete-laplace", discrete_laplace, 1_000, ratio(mechanisms.laplace_score(), *laplace)),
        _size("discrete-laplace-size", size(mechanisms.laplace_draw, laplace[0], mechanisms.laplace_sizes())),
        _mechanism("discrete-gaussian", discrete_gaussian, 1_000, ratio(mechanisms.gaussian_score(), *gaussian)),
        _size("discrete-gaussian-size", size(mechanisms.gaussian_draw, gaussian[0], mechanisms.gaussian_sizes())),
        _mechanism(
            "randomised-response",
            response,
            1_000,
            ratio(
                mechanisms.response_score(response),
                response.guarantee().cost,
                mechanisms.response_family(mechanisms.CATEGORIES),
            ),
        ),
        _mechanism("local-reward-response", bit, 1_000, ratio(mechanisms.reward_score(bit), bit.guarantee().cost, one)),
        _mechanism(
            "local-reward-laplace",
            noised,
            2_000,
            ratio(mechanisms.reward_score(noised), noised.guarantee().cost, steps),
        ),
        _mechanism(
            "exponential",
            exponential_choice,
            2_000,
            ratio(mechanisms.choice_score(), choice, mechanisms.choice_family()),
        ),
    )


def _k_norm() -> tuple[Recipe, ...]:
    """The audits of K-norm noise, whose tables take a second to make."""

    def size() -> Audit:
        run = mechanisms.sizes(mechanisms.k_norm_draw, mechanisms.k_norm_cost(), mechanisms.k_norm_sizes())
        return _size("k-norm-size", run, 5_000)

    return (
        Recipe("k-norm", lambda: _mechanism("k-norm", discrete_k_norm_joint, 2_000, mechanisms.audit_k_norm())),
        Recipe("k-norm-size", size),
    )


def _counters() -> tuple[Audit, ...]:
    binary, digits, honaker, buffered = counters.BINARY, counters.NEGATIVE_DIGIT, counters.HONAKER, counters.BUFFERED
    return (
        _counter("binary-tree", binary, 5_000, counters.audit_tree(binary)),
        _counter("negative-digit-tree", digits, 5_000, counters.audit_tree(digits)),
        _counter("honaker-tree", honaker, 2_000, counters.audit_linear(honaker, counters.honaker_family(honaker))),
        _counter("buffered-toeplitz", buffered, 2_000, counters.audit_linear(buffered, counters.gaussian_family())),
    )


def _mechanism(name: str, subject: object, runs: int, run: Run) -> Audit:
    return Audit(name, "mechanism", "two neighbouring inputs, likelihood ratio", runs, run, subjects=(subject,))


def _size(name: str, run: Run, runs: int = 10_000) -> Audit:
    return Audit(name, "mechanism", "mean size of the noise", runs, run)


def _counter(name: str, plan: Plan, runs: int, run: Run) -> Audit:
    about = "two streams that differ in one leaf, all releases seen"
    return Audit(name, "counter", about, runs, run, subjects=(plan,))
