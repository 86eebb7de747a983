"""A log of another policy: one row per decision, with the arm shown, its reward and its propensity.

*Published logs.* Published logs by name, and the one that is built in: the Open Bandit Dataset (Saito et al. 2020),
impressions logged with their propensities by two policies.

Folder layout, small or full release: ``{random|bts}/{all|men|women}/{campaign}.csv``. Three items are shown at a time,
one row each with its position; the propensity is that of the item at its position. The Thompson policy's propensities
were computed by its authors by Monte Carlo.

The context is a normalised histogram: one-hot codes of the four hashed user features, a quarter each. The codes number
the sorted values in the logs of both policies of the campaign, so both logs use the same codes. Each log is read once
for the codes, and once for the rows. The affinities are not used, as they are zero in most rows.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hushstream.features.schema import FeatureSchema
from hushstream.replay.study import Registry
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
        left_out: number of further rows of the source, in which no item was shown.
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

    def visit(self, row: int) -> npt.NDArray[np.float32] | Mapping[str, Any]:
        """The context of a row as an application would send it: values by name, or a histogram (d,)."""
        if self.visits is None:
            return np.asarray(self.contexts[row])
        values: Mapping[str, Any] = self.visits[row]
        return values

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
        same = ("arms", "dimension", "arm_names", "schema")
        if any(getattr(part, name) != getattr(first, name) for name in same):
            raise LogError(f"{first.name}: expected parts with the same arms and dimension")
        if part.columns.keys() != first.columns.keys():
            raise LogError(f"{first.name}: an optional column is in some parts of the log and not in others")
    joined: dict[str, Any] = {name: np.concatenate([part.columns[name] for part in parts]) for name in first.columns}
    return replace(first, left_out=sum(part.left_out for part in parts), **joined)


Loader = Callable[..., LoggedDataset]
"""A function that reads a log from the dataset's folder; options are passed by keyword."""

LOGS: Registry[Loader] = Registry("log", "hushstream.logs", Callable, LogError)
"""Logs that other packages offer by entry point."""

POLICIES = ("random", "bts")
CAMPAIGNS = ("all", "men", "women")
ARMS = {"all": 80, "men": 34, "women": 46}

_USER_FEATURES = tuple(f"user_feature_{number}" for number in range(4))
_COLUMNS = ("timestamp", "item_id", "position", "click", "propensity_score", *_USER_FEATURES)


def load_obd(folder: str | Path, policy: str = "random", campaign: str = "all") -> LoggedDataset:
    """Read one log.

    Args:
        folder: the folder that holds ``random`` and ``bts``.
        policy: ``random`` or ``bts``, the policy that wrote the log.
        campaign: ``all`` (80 arms), ``men`` (34) or ``women`` (46).

    Returns:
        The log in the order of the file. Its users are the combinations of user features, as the release has no user
        ids.

    Raises:
        LogError: policy or campaign is unknown, the file is missing or empty, or a row is malformed.
    """
    if policy not in POLICIES or campaign not in CAMPAIGNS:
        raise LogError(f"obd: expected policy in {POLICIES} and campaign in {CAMPAIGNS}")
    codes = _feature_codes(Path(folder), campaign)
    path = _log_path(Path(folder), policy, campaign)
    width = sum(len(code) for code in codes)
    starts = np.concatenate(([0], np.cumsum([len(code) for code in codes])))[:-1]
    active, times, plain = [], [], []
    for line, row in _rows(path):
        features = row[-len(_USER_FEATURES) :]
        try:
            times.append(round(datetime.fromisoformat(row[0]).timestamp() * 1000.0))
            plain.append((int(row[1]), int(row[2]), float(row[3]), float(row[4])))
        except ValueError as error:
            raise LogError(f"{path}, line {line}: expected a time, three integers and a propensity") from error
        active.append([code[value] for code, value in zip(codes, features, strict=True)])
    if not plain:
        raise LogError(f"{path}: the log has no rows")
    numbers = np.array(plain)
    hot = np.array(active) + starts
    contexts = np.zeros((len(plain), width), dtype=np.float32)
    np.put_along_axis(contexts, hot, np.float32(1.0 / len(_USER_FEATURES)), axis=1)
    return LoggedDataset(
        name=f"obd/{policy}/{campaign}",
        arms=ARMS[campaign],
        users=np.array(["-".join(map(str, entry)) for entry in active], dtype=np.str_),
        timestamps_ms=np.array(times, dtype=np.int64),
        contexts=contexts,
        chosen=numbers[:, 0].astype(np.int64),
        rewards=numbers[:, 2],
        propensities=numbers[:, 3],
        positions=numbers[:, 1].astype(np.int64),
    )


def _feature_codes(folder: Path, campaign: str) -> list[dict[str, int]]:
    """Number the values of each user feature over the logs of all policies that are in the folder."""
    values: list[set[str]] = [set() for _ in _USER_FEATURES]
    for policy in POLICIES:
        path = _log_path(folder, policy, campaign)
        if path.is_file():
            for _, row in _rows(path):
                for seen, value in zip(values, row[-len(_USER_FEATURES) :], strict=True):
                    seen.add(value)
    return [{value: number for number, value in enumerate(sorted(seen))} for seen in values]


def _log_path(folder: Path, policy: str, campaign: str) -> Path:
    return folder / policy / campaign / f"{campaign}.csv"


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and the values of `_COLUMNS` of each row."""
    try:
        stream = path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise LogError(f"{path}: expected a readable log, got: {error.strerror}") from error
    with stream:
        reader = csv.reader(stream)
        header = next(reader, [])
        missing = [column for column in _COLUMNS if column not in header]
        if missing:
            raise LogError(f"{path}: missing column {', '.join(missing)}")
        places = [header.index(column) for column in _COLUMNS]
        for row in reader:
            if len(row) != len(header):
                raise LogError(f"{path}, line {reader.line_num}: expected {len(header)} fields, got {len(row)}")
            yield reader.line_num, [row[place] for place in places]


def known_logs() -> dict[str, Loader]:
    """Return the loader of every published log by the name of its dataset, sorted.

    Raises:
        LogError: two packages claim one name.
    """
    return LOGS.known({"obd": load_obd})
