"""The Open Bandit Dataset (Saito et al. 2020): impressions logged with their propensities by two policies.

Folder layout, small or full release: ``{random|bts}/{all|men|women}/{campaign}.csv``. Three items are shown
at a time, one row each with its position; the propensity is that of the item at its position. The Thompson
policy's propensities were computed by its authors by Monte Carlo.

The context is a normalised histogram: one-hot codes of the four hashed user features, a quarter each. The codes number
the sorted values in the logs of both policies of the campaign, so both logs use the same codes. Each log is read once
for the codes, and once for the rows. The affinities are not used, as they are zero in most rows.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np

from hushstream.replay.logged.log import LogError, LoggedDataset

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
