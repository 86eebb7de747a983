"""The forecast of a deployment before it runs: how many outcomes its blocks need, and when they come."""

from __future__ import annotations

from dataclasses import dataclass

from hushstream.privacy.amounts import count_text
from hushstream.systems.pdap.algorithm.noise import block_variances
from hushstream.systems.pdap.algorithm.pool import FLOOR, pool_size
from hushstream.systems.pdap.configuration import PdapConfig

_ARMS_TOLD_APART = 0.5
"""The plan warns if less than this share of the arms can be shown: most items are then never shown."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The forecast for a number of outcomes.

    Attributes:
        outcomes: decisions in the life of the deployment, of all vendors.
        least: smallest number of outcomes in a block at the root.
        windows: number of windows.
        first_model: number of outcomes at which the first window closes.
        pool: arms that may be shown at the end.
        arms: of all vendors.
        noise_outcomes: number of outcomes in a block whose noise is as large as the rewards' own deviation.
        warnings: problems, in words.
    """

    outcomes: int
    least: int
    windows: int
    first_model: int
    pool: int
    arms: int
    noise_outcomes: float
    warnings: tuple[str, ...]

    def as_text(self) -> str:
        """One fact a line."""
        lines = [
            f"{count_text(self.outcomes, 'outcome', ',')}: {count_text(self.windows, 'window')}, the first "
            f"model after {self.first_model:,}.",
            f"A block has at least {count_text(self.least, 'outcome', ',')}; noise and scatter are equal "
            f"at {self.noise_outcomes:,.0f}.",
            f"At the end {self.pool:,} of {self.arms:,} arms may be shown.",
        ]
        return "\n".join([*lines, *(f"Warning: {warning}." for warning in self.warnings)]) + "\n"


def plan(config: PdapConfig, outcomes: int) -> Plan:
    """The forecast for ``outcomes`` decisions of all vendors together.

    With a counter at each home, a block fills from one vendor's traffic alone; homes are assumed to be equally busy.
    """
    release = config.release
    share, least = outcomes // config.counters, config.least_counts[0]
    windows = config.schedule.windows(share)
    # Estimates weigh n^2 sigma2 / n against V: both are equal at n = V / sigma2.
    noise = block_variances(config)[0] / config.estimate.reward_variance
    size = pool_size(config.arms, outcomes, release.kappa / max(config.level_epsilons))
    return Plan(
        outcomes,
        least,
        windows,
        release.schedule.closes_at(0),
        size,
        config.arms,
        noise,
        tuple(_warnings(config, share, least, windows, config.arms - size)),
    )


def notes(config: PdapConfig) -> tuple[str, ...]:
    """Problems of a deployment that remain with any traffic, up to its horizon."""
    return plan(config, config.release.horizon * config.counters).warnings


def _warnings(config: PdapConfig, share: int, least: int, windows: int, hidden: int) -> list[str]:
    found, arms = [], config.arms
    if share < least or not windows:
        found.append(
            f"no block will ever be released: the smallest needs {count_text(least, 'outcome', ',')}, a counter takes"
            f" {share:,}, and {count_text(windows, 'window')} will close"
        )
    elif share < FLOOR * least:
        found.append(
            f"hardly any block will be released: {FLOOR} arms are tried from the start, which needs"
            f" {count_text(FLOOR * least, 'outcome', ',')} a counter, and it takes {share:,}"
        )
    if arms - hidden < _ARMS_TOLD_APART * arms:
        found.append(f"{hidden:,} of {arms:,} arms will never be shown")
    if len(config.vendors) == 1:
        found.append("one vendor has nobody to share with: a counter of its own needs no noise")
    return found
