"""Gauges of machines, which roles may show besides counters. All of them follow from releases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hushstream.engine.noise.spending import Spending
from hushstream.privacy.ledger import Exhausted


class Versioned(Protocol):
    """A machine that publishes versions of a model."""

    version: int


class Spender(Protocol):
    """A machine that charges a budget for its releases."""

    @property
    def spending(self) -> Spending: ...
    @property
    def refused(self) -> Exhausted | None: ...


def version_gauges(machine: Versioned, now_seconds: float) -> Mapping[str, float]:
    """The version that was published last."""
    return {"model_version": machine.version}


def spending_gauges(scope_class: str, machine: Spender, now_seconds: float) -> Mapping[str, float]:
    """What a unit pays for the releases of a machine."""
    return budget_gauges(scope_class, machine.spending, machine.refused)


def model_gauges(version: int, published_ms: int, now_seconds: float) -> Mapping[str, float]:
    """The version in use, and its age in seconds; 0 before there is a version.

    The age is left out if the record was deleted before this start, because then the time of its publication is
    unknown.
    """
    if not version or not published_ms:
        return {"model_version": version}
    return {"model_version": version, "model_age_seconds": max(0.0, now_seconds - published_ms / 1000)}


def budget_gauges(scope_class: str, spending: Spending, refused: Exhausted | None) -> Mapping[str, float]:
    """What one unit of a class of scopes has paid, its limit, the next price, and whether the budget is exhausted."""
    return {
        f"{scope_class}_spent_micro_epsilon": spending.spent.epsilon_micro,
        f"{scope_class}_limit_micro_epsilon": spending.terms.ceiling.epsilon_micro,
        f"{scope_class}_price_micro_epsilon": spending.terms.price.cost.epsilon_micro,
        f"{scope_class}_refusing": refused is not None,
    }
