"""Reads the mapping file of a table, which says what the columns of a user's own log mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from hushstream.features.confirmation import without_marks
from hushstream.features.errors import FeatureError
from hushstream.features.schema import FeatureSchema, declare
from hushstream.replay.logged.log import LogError
from hushstream.schemas.errors import unreadable

PUBLIC, INTERNAL = DATA = ("public", "internal")
DATA_MEANING = (
    "`data: public`, if exact figures may be shown to everybody, or `data: internal`, for a log of your own "
    "users: every output is then marked INTERNAL, NOT PRIVATE"
)
SWAPPED = "; are --mapping and --deployment swapped?"
TIMESTAMP_UNITS = ("iso", "s", "ms")
_REQUIRED = ("arm", "arms", "reward")
_COLUMN_KEYS = ("user", "timestamp", "arm", "reward", "propensity", "eligible", "position")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMapping:
    """The columns of a table by their meaning; the values are names of columns in the file.

    Attributes:
        context: the columns of the context, in order; none where features are declared.
        arm: the arm that was shown.
        arms: K, or the names of the K arms in order (then the arm column holds names).
        reward: a number in [0, 1].
        user: the user; None: every row counts as another user.
        timestamp: the time; None: rows get times a millisecond apart.
        timestamp_unit: ``iso`` (ISO 8601, without zone: UTC), ``s`` or ``ms`` since 1970.
        propensity: probability in (0, 1] with which that arm was shown; estimated where there is neither it nor
            ``uniform``.
        eligible: the arms that could be shown, joined by ``eligible_separator``, or in Parquet also a list.
        eligible_separator: the separator in ``eligible``.
        position: place on the screen, an integer.
        delimiter: separator of the fields in a CSV file.
        uniform: the log has no propensities, and every eligible arm was shown with the same probability.
        bounds: (low, high) of a number, by column of the context; public, never computed from the rows.
        categories: the values of a column of the context that holds names; public, in order.
        data: ``public`` (exact figures on the log may be shown to everybody) or ``internal`` (only inside the owner's
            organisation; every output is marked); None where it is not given.
        features: declared features, each read from the column of its name; None where ``context`` names the columns.
    """

    context: tuple[str, ...] = ()
    arm: str
    arms: int | tuple[str, ...]
    reward: str
    user: str | None = None
    timestamp: str | None = None
    timestamp_unit: str = "iso"
    propensity: str | None = None
    eligible: str | None = None
    eligible_separator: str = "|"
    position: str | None = None
    delimiter: str = ","
    uniform: bool = False
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    data: str | None = None
    features: FeatureSchema | None = None

    @property
    def arm_count(self) -> int:
        """K."""
        return self.arms if isinstance(self.arms, int) else len(self.arms)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is needed, once."""
        single = (getattr(self, key) for key in _COLUMN_KEYS)
        declared = () if self.features is None else self.features.layout.names or ()
        return tuple(dict.fromkeys([*self.context, *declared, *(column for column in single if column is not None)]))


def load_mapping(path: str | Path, features: FeatureSchema | None = None) -> TableMapping:
    """Read a mapping file (YAML); ``features`` are those that the deployment declares, if any.

    Raises:
        LogError: it cannot be read, has an unknown key, lacks a required one, or a value has the wrong form.
    """
    return parse_mapping(read_keys(path), str(path), features)


def read_keys(path: str | Path) -> dict[Any, Any]:
    """Read the keys and values of a mapping file, unchecked.

    Raises:
        LogError: the file cannot be read, is no YAML, holds something other than keys with values, or is a deployment's
            configuration.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise LogError(f"{path}: expected a readable UTF-8 mapping file, got {unreadable(error)}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise LogError(f"{path}{where}: expected YAML") from error
    if not isinstance(content, dict):
        raise LogError(f"{path}: expected keys with values, got {type(content).__name__}")
    if "deployment" in content or "system" in content:
        raise LogError(
            f"{path}: expected a mapping of the log's columns, got what looks like the configuration of a deployment"
            f"{SWAPPED}"
        )
    return content


def looks_like_mapping(content: Mapping[Any, Any]) -> bool:
    """Whether the keys of a file are those of a mapping rather than those of a deployment's configuration."""
    return "deployment" not in content and content.keys() >= {"arm", "reward"}


def require_keys(content: Mapping[Any, Any], source: str, made: type, needed: Iterable[str]) -> None:
    """Refuse a key that is no field of ``made``, and a missing key that is needed.

    Raises:
        LogError: there is an unknown key, or else a missing one.
    """
    known = [entry.name for entry in fields(made)]
    unknown = sorted(str(key) for key in content if key not in known)
    if unknown:
        raise LogError(f"{source}: unknown key {', '.join(unknown)}; known: {', '.join(known)}")
    missing = [key for key in needed if key not in content]
    if missing:
        said = f" ({DATA_MEANING})" if "data" in missing else ""
        raise LogError(f"{source}: missing key {', '.join(missing)}{said}")


def parse_mapping(content: Mapping[Any, Any], source: str, features: FeatureSchema | None = None) -> TableMapping:
    """Check the keys and values of a mapping; ``features`` are those that the deployment declares, if any.

    Marks of a draft on values from rows are accepted here, as a mapping publishes nothing.

    Raises:
        LogError: as `load_mapping`.
    """
    if "public" in content:
        raise LogError(f"{source}: public: expected the key `data` in its place: {DATA_MEANING}")
    values = with_features(content, source, features)
    declared = values.get("features") is not None
    require_keys(values, source, TableMapping, _REQUIRED if declared else ("context", *_REQUIRED))
    values["context"] = () if declared else _names(source, "context", values["context"])
    values["arms"] = _arms(source, values["arms"])
    for key, value in values.items():
        if key == "uniform":
            flag(source, key, value)
        elif key in ("bounds", "categories"):
            values[key] = _columns_with_values(source, key, value, values["context"])
        elif key not in ("context", "arms", "features") and not (isinstance(value, str) and value):
            raise LogError(f"{source}: {key}: expected a non-empty text, got {type(value).__name__}")
    mapping = TableMapping(**values)
    _check_features(source, mapping)
    if mapping.uniform and mapping.propensity is not None:
        raise LogError(f"{source}: uniform: expected uniform or a propensity column, got both")
    if mapping.data not in (None, *DATA):
        raise LogError(f"{source}: data: expected {DATA_MEANING}")
    if mapping.timestamp_unit not in TIMESTAMP_UNITS:
        raise LogError(f"{source}: timestamp_unit: expected one of {', '.join(TIMESTAMP_UNITS)}")
    if len(mapping.delimiter) != 1:
        raise LogError(f"{source}: delimiter: expected one character, got {len(mapping.delimiter)}")
    return mapping


def with_features(content: Mapping[Any, Any], source: str, features: FeatureSchema | None = None) -> dict[Any, Any]:
    """Replace the features in a mapping by checked ones, its own or the deployment's; keep the other values.

    Raises:
        LogError: the declaration is invalid, or the mapping names columns of a context as well.
    """
    values = dict(content)
    if features is None and "features" not in content:
        return values
    said = [key for key in ("context", "bounds", "categories") if key in content]
    if said:
        raise LogError(f"{source}: {said[0]}: expected none beside declared features, got some")
    if features is not None and "features" in content:
        raise LogError(f"{source}: features: expected none, as the deployment declares them, got some")
    try:
        values["features"] = declare(without_marks(content["features"])) if features is None else features
    except FeatureError as error:
        raise LogError(f"{source}: {error}") from None
    return values


def _columns_with_values(source: str, key: str, value: object, context: tuple[str, ...]) -> dict[str, Any]:
    """Check the entries of ``bounds`` or ``categories``, and return them."""
    if not isinstance(value, dict):
        raise LogError(f"{source}: {key}: expected columns with values, got {type(value).__name__}")
    unknown = sorted(str(name) for name in value if name not in context)
    if unknown:
        raise LogError(f"{source}: {key}: expected columns of the context, got {', '.join(unknown)}")
    read = pair if key == "bounds" else _names
    return {name: read(source, f"{key}.{name}", given) for name, given in value.items()}


def text(source: str, key: str, value: object) -> str:
    """A value that must be a text and not empty."""
    if not isinstance(value, str) or not value:
        raise LogError(f"{source}: {key}: expected a text, got {type(value).__name__}")
    return value


def flag(source: str, key: str, value: object) -> bool:
    """A value that must be true or false."""
    if not isinstance(value, bool):
        raise LogError(f"{source}: {key}: expected true or false, got {type(value).__name__}")
    return value


def pair(source: str, key: str, value: object) -> tuple[float, float]:
    """A value that must be the two ends of a range."""
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in value)
        or value[0] >= value[1]
    ):
        raise LogError(f"{source}: {key}: expected [low, high], two finite numbers with low below high")
    return (float(value[0]), float(value[1]))


def _check_features(source: str, mapping: TableMapping) -> None:
    """Require that all columns of the context are converted, or none is."""
    both = sorted(set(mapping.bounds) & set(mapping.categories))
    if both:
        raise LogError(f"{source}: expected bounds or categories for a column, got both for {', '.join(both)}")
    bare = [name for name in mapping.context if name not in mapping.bounds and name not in mapping.categories]
    if bare and len(bare) < len(mapping.context):
        raise LogError(
            f"{source}: expected bounds or categories for every column of the context or for none, "
            f"got none for {', '.join(bare)}"
        )


def _names(source: str, key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(name, str) and name for name in value):
        raise LogError(f"{source}: {key}: expected a list of names")
    if len(set(value)) != len(value):
        raise LogError(f"{source}: {key}: a name occurs twice")
    return tuple(value)


def _arms(source: str, value: object) -> int | tuple[str, ...]:
    if isinstance(value, bool) or not isinstance(value, (int, list)):
        raise LogError(f"{source}: arms: expected a number or a list of names, got {type(value).__name__}")
    arms = value if isinstance(value, int) else _names(source, "arms", value)
    count = arms if isinstance(arms, int) else len(arms)
    if count < 2:
        raise LogError(f"{source}: arms: expected at least 2, got {count}")
    return arms
