"""A log of another policy: one row per decision, with the arm shown, its reward and its propensity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hushstream.features.schema import FeatureSchema
from hushstream.schemas.errors import HushstreamError

INTERNAL_MARK = "INTERNAL, NOT PRIVATE"
"""The warning beside every figure on an internal log."""

ESTIMATED_MARK = "PROPENSITIES ESTIMATED"
"""The warning beside every figure that uses propensities that the log did not have."""

Scalar = TypeVar("Scalar", bound=np.generic)


_OPTIONAL = ("propensities", "eligible", "positions", "visits")


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
        contexts: (n, d) float32; with declared features the cells of their blocks, side by side.
        chosen: (n,) arms that were shown.
        rewards: (n,) in [0, 1].
        propensities: (n,) probability in (0, 1] with which the logging policy showed that arm, or None.
        eligible: (n, K) booleans, which arms could be shown, or None for all.
        positions: (n,) place on the screen, or None where there is one.
        arm_names: K names, or empty where arms are numbers.
        internal: whether figures on it may be shown only inside the owner's organisation.
        estimated: whether the propensities were estimated from the log itself.
        schema: the declared features; None where contexts are histograms.
        visits: (n,) values of declared features by name, as an application sends them; None without features.
    """

    name: str
    arms: int
    users: npt.NDArray[np.str_] = field(repr=False)
    timestamps_ms: npt.NDArray[np.int64] = field(repr=False)
    contexts: npt.NDArray[np.float32] = field(repr=False)
    chosen: npt.NDArray[np.int64] = field(repr=False)
    rewards: npt.NDArray[np.float64] = field(repr=False)
    propensities: npt.NDArray[np.float64] | None = field(default=None, repr=False)
    eligible: npt.NDArray[np.bool_] | None = field(default=None, repr=False)
    positions: npt.NDArray[np.int64] | None = field(default=None, repr=False)
    arm_names: tuple[str, ...] = field(default=(), repr=False)
    internal: bool = False
    estimated: bool = False
    schema: FeatureSchema | None = field(default=None, repr=False)
    visits: npt.NDArray[np.object_] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        rows = self.chosen.shape[0]
        lengths = {
            "users": self.users.shape[0],
            "timestamps_ms": self.timestamps_ms.shape[0],
            "contexts": self.contexts.shape[0],
            "rewards": self.rewards.shape[0],
        }
        for column in _OPTIONAL:
            values = getattr(self, column)
            if values is not None:
                lengths[column] = values.shape[0]
        uneven = {column: length for column, length in lengths.items() if length != rows}
        if uneven:
            raise LogError(f"{self.name}: expected {rows} rows in every column, got {uneven}")
        if rows:
            self._check_values()

    def __len__(self) -> int:
        return int(self.chosen.shape[0])

    def visit(self, row: int) -> npt.NDArray[np.float32] | Mapping[str, Any]:
        """The context of a row as an application would send it: values by name, or a histogram (d,)."""
        if self.visits is None:
            return np.asarray(self.contexts[row])
        values: Mapping[str, Any] = self.visits[row]
        return values

    @property
    def dimension(self) -> int:
        """d, the length of a context."""
        return int(self.contexts.shape[1])

    def select(self, rows: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> LoggedDataset:
        """Return a log of these rows, given by their numbers or by a mask (n,), in this order."""
        optional = {name: None if getattr(self, name) is None else getattr(self, name)[rows] for name in _OPTIONAL}
        return LoggedDataset(
            name=self.name,
            arms=self.arms,
            users=self.users[rows],
            timestamps_ms=self.timestamps_ms[rows],
            contexts=self.contexts[rows],
            chosen=self.chosen[rows],
            rewards=self.rewards[rows],
            arm_names=self.arm_names,
            internal=self.internal,
            estimated=self.estimated,
            schema=self.schema,
            **optional,
        )

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
        if self.propensities is not None and not ((self.propensities > 0.0) & (self.propensities <= 1.0)).all():
            raise LogError(f"{self.name}: every propensity must be in (0, 1]")
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
        same = (part.arms, part.dimension, part.arm_names, part.schema) == (
            first.arms,
            first.dimension,
            first.arm_names,
            first.schema,
        )
        if not same:
            raise LogError(f"{first.name}: expected parts with the same arms and dimension")
    return LoggedDataset(
        name=first.name,
        arms=first.arms,
        users=np.concatenate([part.users for part in parts]),
        timestamps_ms=np.concatenate([part.timestamps_ms for part in parts]),
        contexts=np.concatenate([part.contexts for part in parts]),
        chosen=np.concatenate([part.chosen for part in parts]),
        rewards=np.concatenate([part.rewards for part in parts]),
        propensities=_joined(first.name, [part.propensities for part in parts]),
        eligible=_joined(first.name, [part.eligible for part in parts]),
        positions=_joined(first.name, [part.positions for part in parts]),
        arm_names=first.arm_names,
        internal=first.internal,
        estimated=first.estimated,
        schema=first.schema,
        visits=_joined(first.name, [part.visits for part in parts]),
    )


def _joined(name: str, columns: Sequence[npt.NDArray[Scalar] | None]) -> npt.NDArray[Scalar] | None:
    present = [column for column in columns if column is not None]
    if not present:
        return None
    if len(present) != len(columns):
        raise LogError(f"{name}: an optional column is in some parts of the log and not in others")
    return np.concatenate(present)
