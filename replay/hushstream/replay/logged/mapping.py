"""Reads the mapping file of a table, which says what the columns of a user's own log mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from hushstream.agents.yaml_file import read_yaml
from hushstream.engine.values import ConfigurationError, flag, number, whole
from hushstream.features.checks import FeatureError, without_marks
from hushstream.features.schema import FeatureSchema, declare
from hushstream.replay.logged.log import LogError

PUBLIC, INTERNAL = DATA = ("public", "internal")
DATA_MEANING = (
    "`data: public`, if exact figures may be shown to everybody, or `data: internal`, for a log of your own "
    "users: every output is then marked INTERNAL, NOT PRIVATE"
)
_MEANINGS = {"data": DATA_MEANING, "features": "declared here, or by the --deployment"}
SWAPPED = "; are --mapping and --deployment swapped?"
TIMESTAMP_UNITS = ("iso", "s", "ms")
_NO_FEATURE = ("user", "arm", "item", "reward", "label", "propensity")
"""Keys of columns that no learner may see: who somebody is, what was shown and what came of it."""
_COLUMN_KEYS = ("user", "timestamp", "arm", "reward", "propensity", "eligible", "position")


T = TypeVar("T")

Reader = Callable[[str, Any], Any]
"""(key, value) -> the value, checked; it raises `ConfigurationError` or `LogError`."""


def text(key: str, value: object) -> str:
    """A value that must be a text and not empty."""
    if not isinstance(value, str) or not value:
        raise LogError(f"{key}: expected a text, got {type(value).__name__}")
    return value


def names(key: str, value: object) -> tuple[str, ...]:
    """A value that must be a list of different names; YAML reads some as whole numbers."""
    given = value if isinstance(value, list) and all(type(name) in (str, int) for name in value) else ()
    found = tuple(map(str, given))
    if not found or "" in found or len(set(found)) != len(found):
        raise LogError(
            f"{key}: expected a list of different names, in quotes where YAML reads another value (no, on, null, 1.50 "
            "and dates)"
        )
    return found


def within(least: int, most: int) -> Reader:
    """Reads a whole number within bounds."""
    return partial(whole, low=least, high=most)


def finite(key: str, value: object) -> float:
    """A value that must be a finite number."""
    return number(key, value, "a finite number", lambda found: True)


def count_or_names(least: int, most: int) -> Reader:
    """Reads how many things there are, or the list of their names."""

    def read(key: str, value: object) -> int | tuple[str, ...]:
        found = names(key, value) if isinstance(value, list) else value
        count = len(found) if isinstance(found, tuple) else found
        if isinstance(count, bool) or not isinstance(count, int) or not least <= count <= most:
            raise LogError(f"{key}: expected {least} to {most}, as a number or as a list of names")
        return found if isinstance(found, tuple) else count

    return read


def each(read: Reader, least: int = 0) -> Reader:
    """Reads a value for each of some names, of which there must be some number."""

    def read_all(key: str, value: object) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) < least:
            raise LogError(f"{key}: expected names with values, got {type(value).__name__}")
        return {str(name): read(f"{key}.{name}", one) for name, one in value.items()}

    return read_all


_LARGEST_ARMS = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMapping:
    """The columns of a table by their meaning; the values are names of columns in the file.

    Attributes:
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
        data: ``public`` (exact figures on the log may be shown to everybody) or ``internal`` (only inside the owner's
            organisation; every output is marked); None where it is not given.
        features: declared features, each read from the column of its name; None where a draft is yet to declare them.
    """

    arm: str
    arms: Annotated[int | tuple[str, ...], count_or_names(2, _LARGEST_ARMS)]
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
    data: str | None = None
    features: FeatureSchema | None = None

    @property
    def arm_count(self) -> int:
        """K."""
        return self.arms if isinstance(self.arms, int) else len(self.arms)

    @property
    def meanings(self) -> dict[str, str | None]:
        """The column of each key, where the mapping names one."""
        return {key: getattr(self, key) for key in _COLUMN_KEYS}

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is needed, once."""
        declared = () if self.features is None else self.features.layout.names or ()
        return tuple(dict.fromkeys([*declared, *(one for one in self.meanings.values() if one is not None)]))


def read_mapping(
    given: Mapping[Any, Any] | str | Path,
    made: type[T],
    features: FeatureSchema | None = None,
    needed: Iterable[str] = (),
) -> T:
    """Read the mapping of a table of any system: keys are the fields of a class, most of them names of columns.

    Args:
        given: the keys and values, or the path of a mapping file.
        made: the class of the mapping; fields without a default must be there, and one whose annotation has no reader
            is a text, or true or false.
        features: those that the deployment declares, if any.
        needed: further keys that must be there.

    Raises:
        LogError: the file cannot be read, has an unknown key, lacks a required one, a value has the wrong form, or a
            feature is the column of a user, an item, a reward or a propensity.
    """
    source = source_of(given)
    content = given if isinstance(given, Mapping) else read_keys(given)
    require_keys(content, source, made, needed)
    values = with_features(content, source, features)
    hints = get_type_hints(made, include_extras=True)
    try:
        read = {key: _reader(hints[key])(key, value) for key, value in values.items()}
    except (ConfigurationError, LogError) as error:
        raise LogError(f"{source}: {error}") from None
    schema = read.get("features")
    seen = () if schema is None else schema.layout.names or ()
    for key in _NO_FEATURE:
        if read.get(key) in seen:
            raise LogError(
                f"{source}: {key}: expected a column that is no feature, got {read[key]}: take it out of the features, "
                "as no learner may see it"
            )
    return made(**read)


def _reader(hint: Any) -> Reader:
    if hasattr(hint, "__metadata__"):
        found: Reader = hint.__metadata__[0]
        return found
    if hint == FeatureSchema | None:
        return lambda key, value: value  # `with_features` has checked it
    return flag if hint is bool else text


def source_of(given: object) -> str:
    """The name of a mapping in messages: its file's, or what it is."""
    return "mapping" if isinstance(given, Mapping) else str(given)


def read_keys(path: str | Path) -> dict[Any, Any]:
    """Read the keys and values of a mapping file, unchecked.

    Raises:
        LogError: the file cannot be read, is no YAML, holds something other than keys with values, or is a deployment's
            configuration.
    """
    try:
        content: dict[Any, Any] = read_yaml(Path(path))
    except ConfigurationError as error:
        raise LogError(str(error)) from None
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
    """Refuse a key that is no field of ``made``, and a missing one that is needed or has no default.

    Raises:
        LogError: there is an unknown key, or else a missing one.
    """
    known = [entry.name for entry in fields(made)]
    unknown = sorted(str(key) for key in content if key not in known)
    if unknown:
        raise LogError(f"{source}: unknown key {', '.join(unknown)}; known: {', '.join(known)}")
    bare = [one.name for one in fields(made) if one.default is MISSING and one.default_factory is MISSING]
    missing = [key for key in (*needed, *bare) if key not in content]
    if missing:
        said = "".join(f" ({meaning})" for key, meaning in _MEANINGS.items() if key in missing)
        raise LogError(f"{source}: missing key {', '.join(missing)}{said}")


def table_mapping(
    given: Mapping[Any, Any] | str | Path, features: FeatureSchema | None = None, draft: bool = False
) -> TableMapping:
    """Read the mapping of a log; ``features`` are those that the deployment declares, if any, or is yet to (a draft).

    Marks of a draft on values from rows are accepted here, as a mapping publishes nothing.

    Raises:
        LogError: as `read_mapping`; or combinations of values that are not valid.
    """
    content, source = given if isinstance(given, Mapping) else read_keys(given), source_of(given)
    if "public" in content:
        raise LogError(f"{source}: public: expected the key `data` in its place: {DATA_MEANING}")
    needed = () if draft or features is not None else ("features",)
    mapping = read_mapping(given, TableMapping, features, needed)
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
        LogError: the declaration is invalid, or there are two.
    """
    values = dict(content)
    if features is None and "features" not in content:
        return values
    if features is not None and "features" in content:
        raise LogError(f"{source}: features: expected none, as the deployment declares them, got some")
    try:
        values["features"] = declare(without_marks(content["features"])) if features is None else features
    except FeatureError as error:
        raise LogError(f"{source}: {error}") from None
    return values
