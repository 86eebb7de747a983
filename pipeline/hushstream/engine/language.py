"""The language of configurations: it maps the keys of a ``deployment.yaml`` to attributes of a configuration's class.

A key means the same in every system. `SHARED` lists the keys that several systems have. An attribute whose key is not
its place in the class names it (`hushstream.engine.values.Is`). The reader and the reference
follow from these tables. Digests are over the values as their classes nest
them (`hushstream.engine.configuration.canonical_form`), so no key changes a digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

from hushstream.engine.configuration import Declared
from hushstream.engine.values import ConfigurationError, annotated

Path: TypeAlias = tuple[str, ...]
"""A key with the sections above it. An item of a list is given by its number, or by `EACH` for all items."""

EACH = "*"

ITEMS = "items.capacity"
NAMED_ITEMS = "items.named"
FEATURES = "features"
DIMENSION = "features.dimension"
EPSILON = "privacy.epsilon"
DELTA = "privacy.delta"
UNITS_PER_PERSON = "privacy.units_per_person"
EPOCHS = "privacy.epochs"
LIFETIME = "privacy.lifetime"
MECHANISM = "release.mechanism"
WINDOW_UNITS = "release.window_units"
WINDOW_SECONDS = "release.window_seconds"
HORIZON = "release.horizon"
REWARD_LEVELS = "feedback.reward_levels"
SETTLE_SECONDS = "feedback.settle_seconds"
REMEMBERED_EVENTS = "feedback.remembered_events"
PARTITIONS = "partitions"
LEARNERS = f"{PARTITIONS}.learner"
MODEL = "model"

SHARED: Mapping[str, str] = {
    "system": "which system this is a configuration of",
    "mode": "whether its answers are shown, or recorded beside the application's own choice",
    "deployment": "its name; topics and consumer groups begin with it",
    "kind": "hosted (the operator's workers hold what users do) or edge (users' devices do)",
    ITEMS: "how many items there may be, or how many one context shows",
    NAMED_ITEMS: "whether items have names, and come and go in a catalogue while the deployment runs",
    FEATURES: "what describes a visit, by name, each with its kind and settings",
    DIMENSION: "numbers that describe a visit, an item or a record",
    EPSILON: "the privacy cost of one privacy unit, over all releases that one epoch of noise serves",
    DELTA: "the probability beside epsilon",
    UNITS_PER_PERSON: "how many units of one person count, or are charged together",
    EPOCHS: "how often the privacy cost may be charged",
    "privacy.person": "whether one person's whole life must be guaranteed something",
    "privacy.tainted": "which inputs of preparation are accepted although they are not private",
    LIFETIME: "the lifetime budget of one privacy unit; null for what the configuration plans",
    f"{LIFETIME}.epsilon": "of all privacy costs together",
    f"{LIFETIME}.delta": "of all privacy costs together",
    f"{LIFETIME}.filter": "how privacy costs compose",
    MECHANISM: "what makes the sums that leave",
    WINDOW_UNITS: "a window closes at so many units (slots, rewards, outcomes)",
    WINDOW_SECONDS: "a window closes after so much log time, too",
    HORIZON: "the most windows that a counter serves",
    "feedback.attribution_window_seconds": "how long a decision waits for its reward",
    "feedback.early_feedback": "how much feedback may wait for a context that has not arrived",
    REMEMBERED_EVENTS: "past event ids that are known again",
    REWARD_LEVELS: "a reward is a whole number of so many levels",
    SETTLE_SECONDS: "spans of log time in which rewards arrive before anything leaves",
    "exploration.choice": "whether the best item is always chosen, or another one with a stated chance",
    "exploration.share": "of decisions that may go to any eligible item",
    "exploration.temperature": "how far an item may score below the best one and still be chosen often",
    f"{MODEL}.valid_seconds": "so long after a version was made devices begin with it",
    LEARNERS: "partitions of contexts, clicks and decisions",
    f"{PARTITIONS}.counter": "partitions of the counter; one",
}
"""The keys that more than one system has, in the order in which pages list them."""

ORDER = (
    "system",
    "deployment",
    "mode",
    "kind",
    "nodes",
    "vendors",
    "items",
    "features",
    "privacy",
    "release",
    "feedback",
    "measurement",
    "exploration",
    "partitions",
)
"""The order of keys in a configuration. Keys of a single system come last."""


UNITS: Mapping[str, str] = {
    "epsilon": "epsilon",
    "delta": "probability",
    "failure": "probability",
    "sampling": "probability",
    **dict.fromkeys(("share", "guardrail_share", "measurement", "baseline", "own"), "share"),
    "shares": "shares",
    "prior_share": "share",
    "units_per_person": "{unit}s",
    "window_units": "{unit}s",
    "horizon_units": "{unit}s",
    "epochs": "epochs of noise",
    "horizon": "windows",
    "half_life": "windows",
    "releases": "releases",
    "releases_per_version": "releases",
    "release.threshold": "slots",
    "model.threshold": "deviations of the noise",
    "edge_margin": "edges of the noise",
    "expected_slots": "slots",
    "label_slots": "slots",
    "after_interactions": "decisions",
    "decisions_per_user": "decisions",
    "contexts_per_period": "contexts",
    "split_at": "contexts",
    "early_feedback": "events",
    "remembered_events": "events",
    "capacity": "items",
    "top": "items",
    "pairs": "ratings",
    "dimension": "numbers",
    "digits": "decimal digits",
    "codes": "codes",
    "factors": "factors",
    "reward_levels": "levels",
    "cells.levels": "levels",
    "cells.cap": "cells",
    "branching": "parts of a side",
    "domains": "counters",
    "nodes": "nodes",
    "partitions.learner": "partitions",
    "partitions.shuffler": "partitions",
    "partitions.counter": "partitions",
    "partitions.rater": "partitions",
    "partitions.collector": "partitions",
    "lowest": "ratings",
    "highest": "ratings",
    "norm": "L2 length",
    "norm_l1": "L1 length",
    "clip": "L2 length",
    "factor_clip": "L2 length",
}
"""Units of numbers by the last part of their key. Any other number that is no time has no unit."""

_SECONDS = "seconds"

Form: TypeAlias = Literal["value", "optional", "list", "section"]


class Key(NamedTuple):
    """One key of a configuration.

    Attributes:
        key: its path in a ``deployment.yaml``.
        attribute: path of its value in the configuration's class.
        owner: the class of the attribute, whose docstring explains it.
        field: the attribute in that class.
        hint: the attribute's type.
        form: a value, a section that may be null, a list of sections, or a section, which itself is no key.
    """

    key: Path
    attribute: Path
    owner: type
    field: Field[Any]
    hint: Any
    form: Form

    @property
    def name(self) -> str:
        """The key as messages name it."""
        return ".".join(self.key)

    def unit(self, counted: str) -> str:
        """Unit of its number; ``counted`` is the unit of privacy. Empty if it has none."""
        if self.key[-1].endswith(_SECONDS):
            return f"{_SECONDS} of log time"
        ends = (".".join(self.key[-parts:]) for parts in (2, 1))
        return next((UNITS[end].format(unit=counted) for end in ends if end in UNITS), "")


class Refused(NamedTuple):
    """A key that cannot be read.

    Attributes:
        key: the key in the file.
        got: the value, if a section was expected there; absent if the key itself is wrong.
    """

    key: Path
    got: Any = MISSING


class Language:
    """The keys of one class of configurations, each of one attribute.

    Attributes:
        keys: all keys, in the order in which pages list them.
    """

    def __init__(self, made: type, moved: Mapping[str, str | None] | None = None) -> None:
        """Read the attributes of a class.

        Args:
            made: a dataclass.
            moved: keys by attribute, for attributes of shared classes whose key is another one in this system. None
                for an attribute with one possible value, which has no key.

        Raises:
            ConfigurationError: it moves something that is no attribute, or two attributes have one key.
        """
        moves = {_parted(old): None if new is None else _parted(new) for old, new in (moved or {}).items()}
        rows = list(_rows(made, ()))
        known = {**{row.attribute: row.key for row in rows if row.key}, **moves}
        placed = [(row, _moved(row.attribute, known)) for row in rows]
        shown = [row._replace(key=key) for row, key in placed if key is not None and row.form != "section"]
        self.keys: tuple[Key, ...] = tuple(sorted(shown, key=lambda one: _rank(one.key)))
        self._by_key = {one.key: one for one in self.keys}
        self._above = {key[:end] for key in self._by_key for end in range(1, len(key))}
        self._by_attribute = {row.attribute: key for row, key in placed if key is not None}
        self._sections = [row.attribute for row, _ in placed if row.form == "section"]
        wrong = [old for old in moves if old not in {row.attribute for row in rows}]
        if wrong:
            raise ConfigurationError(f"keys of {made.__name__}: expected attributes to move, got {wrong[0]}")
        if len(self._by_key) < len(self.keys):
            raise ConfigurationError(f"keys of {made.__name__}: expected one attribute of each key, got two of one")

    def read(self, values: Any) -> tuple[Any, list[Refused]]:
        """Convert values by key to values nested as in the class; also returns the keys that cannot be read.

        Args:
            values: nested, as in YAML.
        """
        if not isinstance(values, dict):
            return values, []
        found: dict[str, Any] = {}
        for section in self._sections:
            _put(found, section, {})
        refused: list[Refused] = []
        self._read(values, (), found, refused)
        return _listed(found), refused

    def written(self, config: Any) -> dict[str, Any]:
        """A configuration as plain values under its keys."""
        found: dict[str, Any] = {}
        declared = {one.key for one in self.keys if self._is_declaration(one) and any(_given(config, one))}
        for one in self.keys:
            if any(one.key[: len(above)] == above != one.key for above in declared):
                # The declaration stands in their place.
                continue
            if self._is_declaration(one) and one.key not in declared:
                continue
            for numbers, value in _values(config, one.attribute):
                if one.form == "value" or not value:
                    _put(found, _numbered(one.key, numbers), _plain(value))
        plain: dict[str, Any] = _listed(found)
        return plain

    def key_of(self, path: Path) -> Path:
        """The key of an attribute, for messages. Any other path is returned unchanged."""
        if _general(path) in self._by_key or _general(path) in self._above:
            return path
        for end in range(len(path), 0, -1):
            key = self._by_attribute.get(_general(path[:end]))
            if key is not None:
                return (*_numbered(key, path), *path[end:])
        return path

    def declares(self, key: Path, value: Any) -> bool:
        """Whether the mapping under such a key is a declaration of names, and not a section of keys."""
        named = isinstance(value, dict) and any(isinstance(item, dict) for item in value.values())
        return named and self._is_declaration_key(key)

    def beside(self, key: Path) -> list[Path]:
        """All keys whose values are in the same section of the class as that of ``key``."""
        found = self._by_key.get(_general(key))
        return [] if found is None else [one.key for one in self.keys if one.attribute[:-1] == found.attribute[:-1]]

    def _read(
        self,
        values: dict[Any, Any],
        above: Path,
        found: dict[str, Any],
        refused: list[Refused],
    ) -> None:
        for name, value in values.items():
            path = (*above, str(name))
            general = _general(path)
            as_section = isinstance(value, dict) and self._is_declaration_key(general)
            if general in self._by_key and (not as_section or self.declares(general, value)):
                one = self._by_key[general]
                attribute = _numbered(one.attribute, path)
                items = _items(one.form, value)
                if not items:
                    _put(found, attribute, value)
                for number, item in items:
                    _put(found, (*attribute, *number), {} if isinstance(item, dict) else item)
                    if isinstance(item, dict):
                        self._read(item, (*path, *number), found, refused)
            elif isinstance(value, dict) and general in self._above:
                self._read(value, path, found, refused)
            else:
                refused.append(Refused(path, value if general in self._above else MISSING))

    def _is_declaration(self, one: Key) -> bool:
        """Whether the value of a key may be a mapping of names as well as a section of keys."""
        return one.form == "value" and one.key in self._above

    def _is_declaration_key(self, key: Path) -> bool:
        return key in self._by_key and self._is_declaration(self._by_key[key])


def _rows(made: type, above: Path) -> Iterator[Key]:
    """Every attribute of a class, with the key that it names; a section comes before its attributes."""
    types = get_type_hints(made, include_extras=True)
    for one in fields(made):
        hint, named = annotated(types[one.name], one.name)
        attribute = (*above, one.name)
        key = () if named is None else _parted(named.key)
        if EACH in above:
            key = key and (*key[: above.index(EACH)], EACH, *key[above.index(EACH) :])
        if isinstance(hint, type) and is_dataclass(hint):
            yield Key(key, attribute, made, one, hint, "section")
            yield from _rows(hint, attribute)
            continue
        inside = next((part for part in get_args(hint) if isinstance(part, type) and is_dataclass(part)), None)
        several = get_origin(hint) is tuple and inside is not None
        yield Key(key, attribute, made, one, hint, "list" if several else "value" if inside is None else "optional")
        if inside is not None:
            each = (EACH,) if several else ()
            yield from _rows(inside, (*attribute, *each))


def _moved(attribute: Path, moves: Mapping[Path, Path | None]) -> Path | None:
    """The key of an attribute, by the longest matching prefix in ``moved``."""
    for end in range(len(attribute), 0, -1):
        if attribute[:end] in moves:
            new = moves[attribute[:end]]
            return None if new is None else (*new, *attribute[end:])
    return attribute


def _rank(key: Path) -> tuple[int, int]:
    top = ORDER.index(key[0]) if key[0] in ORDER else len(ORDER)
    shared = [_parted(name) for name in SHARED]
    return top, shared.index(key) if key in shared else len(shared)


def _parted(name: str) -> Path:
    return tuple(name.split("."))


def _general(path: Path) -> Path:
    return tuple(EACH if part.isdigit() else part for part in path)


def _numbered(general: Path, path: Path) -> Path:
    """A path with `EACH` replaced by the item numbers of another path."""
    numbers = iter([part for part in path if part.isdigit()])
    return tuple(next(numbers) if part == EACH else part for part in general)


def _items(form: Form, value: Any) -> list[tuple[Path, Any]]:
    """The sections at a path: the items of a list, or the one section unless it is null."""
    if form == "list" and isinstance(value, list | tuple):
        return [((str(number),), item) for number, item in enumerate(value)]
    return [((), value)] if form == "optional" and isinstance(value, dict) else []


def _plain(value: Any) -> Any:
    """A value in the form that YAML writes."""
    if isinstance(value, Declared):
        return value.plain
    return list(value) if isinstance(value, tuple) else value


def _given(config: Any, one: Key) -> Iterator[bool]:
    return (value is not None for _, value in _values(config, one.attribute))


def _values(config: Any, attribute: Path, numbers: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The values of an attribute, one for each item of the lists that it is in, with their numbers."""
    for place, part in enumerate(attribute):
        if part == EACH:
            for number, item in enumerate(config):
                yield from _values(item, attribute[place + 1 :], (*numbers, str(number)))
            return
        if config is None:
            return
        config = getattr(config, part)
    yield numbers, config


def _put(found: dict[str, Any], path: Path, value: Any) -> None:
    """Set one value; existing sections are kept."""
    for part in path[:-1]:
        found = found.setdefault(part, {})
    if value == {} and isinstance(found.get(path[-1]), dict):
        return
    found[path[-1]] = value


def _listed(tree: Any) -> Any:
    """Replace sections whose keys are numbers by lists."""
    if not isinstance(tree, dict):
        return tree
    plain = {name: _listed(value) for name, value in tree.items()}
    return list(plain.values()) if plain and all(name.isdigit() for name in plain) else plain
