"""A log of another policy: one row per decision, with the arm shown, its reward and its propensity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hushstream.features.schema import FeatureSchema
from hushstream.schemas.errors import HushstreamError

INTERNAL_MARK = "INTERNAL, NOT PRIVATE"
"""The warning beside every figure on an internal log."""

ESTIMATED_MARK = "PROPENSITIES ESTIMATED"
"""The warning beside every figure that uses propensities that the log did not have."""


LEAST_PROPENSITY = 1e-9
"""Decisions state propensities in units of 1e-9: a smaller one is a mistake, and one row of it would outweigh a log."""


class LogError(HushstreamError):
    """A log or its mapping is missing, malformed, empty or unfit for this use."""


@dataclass(frozen=True, slots=True)
class LoggedDataset:
    """The columns of a log; all have n rows, in the order of the log.

    Attributes:
        name: name of its source, for reports.
        arms: K; arms are numbered 0 .. K - 1.
        users: (n,) identifiers.
        timestamps_ms: (n,) Unix time in milliseconds.
        schema: the declared features.
        visits: (n,) their values by name, as an application sends them.
        contexts: (n, d) float32, the cells of their blocks, side by side.
        chosen: (n,) arms that were shown.
        rewards: (n,) in [0, 1].
        propensities: (n,) probability in (0, 1] with which the logging policy showed that arm, or None.
        eligible: (n, K) booleans, which arms could be shown, or None for all.
        positions: (n,) place on the screen, or None where there is one.
        arm_names: K names, or empty where arms are numbers.
        internal: whether figures on it may be shown only inside the owner's organisation.
        estimated: whether the propensities were estimated from the log itself.
        left_out: number of further rows of the source, in which no item was shown.
    """

    name: str
    arms: int
    users: npt.NDArray[np.str_] = field(repr=False)
    timestamps_ms: npt.NDArray[np.int64] = field(repr=False)
    schema: FeatureSchema = field(repr=False)
    visits: npt.NDArray[np.object_] = field(repr=False)
    contexts: npt.NDArray[np.float32] = field(repr=False)
    chosen: npt.NDArray[np.int64] = field(repr=False)
    rewards: npt.NDArray[np.float64] = field(repr=False)
    propensities: npt.NDArray[np.float64] | None = field(default=None, repr=False)
    eligible: npt.NDArray[np.bool_] | None = field(default=None, repr=False)
    positions: npt.NDArray[np.int64] | None = field(default=None, repr=False)
    arm_names: tuple[str, ...] = field(default=(), repr=False)
    internal: bool = False
    estimated: bool = False
    left_out: int = 0

    def __post_init__(self) -> None:
        rows = self.chosen.shape[0]
        uneven = {name: len(values) for name, values in self.columns.items() if len(values) != rows}
        if uneven:
            raise LogError(f"{self.name}: expected {rows} rows in every column, got {uneven}")
        if rows:
            self._check_values()

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that it has, by name, (n, ...) each."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: values for name, values in found.items() if isinstance(values, np.ndarray)}

    def __len__(self) -> int:
        return int(self.chosen.shape[0])

    @property
    def user_numbers(self) -> npt.NDArray[np.int64]:
        """The users as numbers from 0 on, (n,)."""
        return np.unique(self.users, return_inverse=True)[1]

    @property
    def dimension(self) -> int:
        """d, the length of a context."""
        return int(self.contexts.shape[1])

    def select(self, rows: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> LoggedDataset:
        """Return a log of these rows, given by their numbers or by a mask (n,), in this order."""
        return replace(self, **{name: values[rows] for name, values in self.columns.items()})

    def in_time_order(self) -> LoggedDataset:
        """Return a log sorted by time; rows with equal times keep their order."""
        if not (np.diff(self.timestamps_ms) < 0).any():
            return self
        return self.select(np.argsort(self.timestamps_ms, kind="stable"))

    def _check_values(self) -> None:
        if self.chosen.min() < 0 or self.chosen.max() >= self.arms:
            raise LogError(f"{self.name}: every arm must be in 0..{self.arms - 1}")
        if not np.isfinite(self.contexts).all():
            raise LogError(f"{self.name}: every context must be finite")
        if not ((self.rewards >= 0.0) & (self.rewards <= 1.0)).all():
            raise LogError(f"{self.name}: every reward must be in [0, 1]")
        if self.propensities is not None:
            allowed = (self.propensities >= LEAST_PROPENSITY) & (self.propensities <= 1.0)
            if not allowed.all():
                row = int(allowed.argmin())
                raise LogError(
                    f"{self.name}: row {row + 1}: expected a propensity from {LEAST_PROPENSITY:g} to 1, got "
                    f"{self.propensities[row]:g}: state the logging policy's own, or leave out the row"
                )
        if self.eligible is not None and not self.eligible[np.arange(len(self)), self.chosen].all():
            raise LogError(f"{self.name}: an arm was shown that was not eligible")


def concatenate(parts: Sequence[LoggedDataset]) -> LoggedDataset:
    """Join consecutive parts of one log.

    Raises:
        LogError: there is no part, or the parts differ in their columns or arms.
    """
    if not parts:
        raise LogError("expected at least one part of a log, got none")
    first = parts[0]
    for part in parts[1:]:
        same = ("arms", "arm_names", "schema")
        if any(getattr(part, name) != getattr(first, name) for name in same):
            raise LogError(f"{first.name}: expected parts with the same arms and features")
        if part.columns.keys() != first.columns.keys():
            raise LogError(f"{first.name}: an optional column is in some parts of the log and not in others")
    joined: dict[str, Any] = {name: np.concatenate([part.columns[name] for part in parts]) for name in first.columns}
    return replace(first, left_out=sum(part.left_out for part in parts), **joined)
