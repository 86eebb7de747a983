"""A strict reader of ARFF, the form in which Mulan publishes its multi-label datasets, with dense or sparse rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hushstream.replay.worlds.world import WorldError
from hushstream.schemas.errors import unreadable

_ATTRIBUTE = re.compile(r"@attribute\s+(?P<name>'[^']+'|\"[^\"]+\"|\S+)\s*\{\s*0\s*,\s*1\s*\}\s*", re.IGNORECASE)
_NUMERIC = re.compile(r"@attribute\s+(?P<name>'[^']+'|\"[^\"]+\"|\S+)\s+(?:numeric|real|integer)\s*", re.IGNORECASE)
_ROW = re.compile(r"\{\s*(?:\d+ [01](?:\s*,\s*\d+ [01])*)?\s*\}\s*")


@dataclass(frozen=True, slots=True)
class ArffTable:
    """The content of an ARFF file.

    Attributes:
        number_names: m names of numeric attributes, in the order of the file.
        label_names: l names of attributes ``{0,1}``, likewise.
        numbers: (n, m) float32, finite.
        labels: (n, l) booleans.
    """

    number_names: tuple[str, ...]
    label_names: tuple[str, ...]
    numbers: npt.NDArray[np.float32]
    labels: npt.NDArray[np.bool_]


def read_arff(path: Path) -> ArffTable:
    """Read a file whose attributes are numeric or ``{0,1}``, in any order, line by line; a sparse row has 0 and 1.

    Comments (%), blank lines and a byte-order mark are accepted, and either line end; a missing value (?) is not.

    Raises:
        WorldError: the file is missing, empty or malformed; the message names the line, never its content.
    """
    names: list[str] = []
    numeric: list[bool] = []
    rows: list[npt.NDArray[np.float32]] = []
    in_data, is_number = False, np.zeros(0, dtype=np.bool_)
    try:
        with path.open(encoding="utf-8-sig") as stream:
            for number, line in enumerate(stream, start=1):
                where = f"{path}, line {number}"
                if not line.strip() or line.startswith("%"):
                    continue
                if in_data:
                    read = _sparse if line.startswith("{") else _dense
                    rows.append(read(line, is_number, where))
                elif line.lower().startswith("@data"):
                    in_data, is_number = True, np.array(numeric)
                elif not line.lower().startswith("@relation"):
                    match = _NUMERIC.fullmatch(line) or _ATTRIBUTE.fullmatch(line)
                    if match is None:
                        raise WorldError(f"{where}: expected '@attribute NAME numeric' or '@attribute NAME {{0,1}}'")
                    names.append(match["name"].strip("'\""))
                    numeric.append(match.re is _NUMERIC)
    except (OSError, UnicodeDecodeError) as error:
        raise WorldError(f"{path}: expected a readable UTF-8 file, got {unreadable(error)}") from error
    if len(set(names)) != len(names):
        raise WorldError(f"{path}: an attribute name occurs twice")
    if not names or not rows:
        raise WorldError(f"{path}: expected attributes and rows, got {len(names)} and {len(rows)}")
    values = np.stack(rows)
    return ArffTable(
        tuple(name for name, number in zip(names, numeric, strict=True) if number),
        tuple(name for name, number in zip(names, numeric, strict=True) if not number),
        values[:, is_number],
        values[:, ~is_number] == 1.0,
    )


def _dense(line: str, is_number: npt.NDArray[np.bool_], where: str) -> npt.NDArray[np.float32]:
    fields = line.split(",")
    if len(fields) != len(is_number):
        raise WorldError(f"{where}: expected {len(is_number)} values separated by commas, got {len(fields)}")
    try:
        values = np.fromiter(map(float, fields), dtype=np.float32, count=len(fields))
    except ValueError:
        # Not chained, as numpy's message repeats the field.
        raise WorldError(f"{where}: expected numbers, got something else") from None
    if not np.isfinite(values).all():
        raise WorldError(f"{where}: expected finite numbers")
    labels = values[~is_number]
    if ((labels != 0.0) & (labels != 1.0)).any():
        raise WorldError(f"{where}: expected 0 or 1 for every attribute {{0,1}}")
    return values


def _sparse(line: str, is_number: npt.NDArray[np.bool_], where: str) -> npt.NDArray[np.float32]:
    if _ROW.fullmatch(line) is None:
        raise WorldError(f"{where}: expected a sparse row of 'INDEX 0|1' pairs in braces")
    body = line.strip()[1:-1]
    pairs = [pair.split() for pair in body.split(",")] if body.strip() else []
    indices = [int(index) for index, _ in pairs]
    if any(later <= earlier for earlier, later in pairwise(indices)):
        raise WorldError(f"{where}: expected indices in increasing order")
    if indices and indices[-1] >= len(is_number):
        raise WorldError(f"{where}: expected indices below {len(is_number)}, got {indices[-1]}")
    values = np.zeros(len(is_number), dtype=np.float32)
    values[indices] = [float(value) for _, value in pairs]
    return values
