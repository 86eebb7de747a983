"""Parts of a configuration that more than one system has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from hushstream.engine.values import REFUSE_UNKNOWN, ConfigurationError, number, require, seconds, whole
from hushstream.features.errors import FeatureError
from hushstream.features.schema import FeatureSchema, declare
from hushstream.learners.exploration import WHOLE, EpsilonMixture, Exploration, Softmax

_WIRE, _WIRE_VALUES = "wire", "wire_values"
"""Metadata of a setting that has another name in the canonical form: every digest is over that."""

_LATER = "later"
"""Metadata of a setting that is in the canonical form only where its value is not this one."""

_ASIDE = "aside"
"""Metadata of a setting that nothing is computed from: it is in no canonical form."""

LARGEST_EPSILON = 20.0
"""Of one release; more protects nobody."""


def renamed(wire: str, default: Any, values: Mapping[Any, Any] | None = None) -> Any:
    """A setting that was called ``wire`` once, and is still where a configuration's digest is computed from.

    Args:
        wire: its name there.
        default: its value where none is given.
        values: what some of its values were called, and are still there.
    """
    return field(default=default, metadata={_WIRE: wire, _WIRE_VALUES: dict(values or {})})


_AS_DEFAULT = object()


def later(default: Any, unused: Any = _AS_DEFAULT) -> Any:
    """A setting that was added when there were deployments: their digests are what they were while it is unused.

    Args:
        default: its value where none is given.
        unused: what it is where it is unused, if that is not the default.
    """
    return field(default=default, metadata={_LATER: default if unused is _AS_DEFAULT else unused})


def declared_features(given: Any, under: str = "") -> FeatureSchema:
    """The schema of features that a setting declares by name, or that it is already.

    Args:
        given: the setting.
        under: what its key begins with, and a dot, if anything.

    Raises:
        ConfigurationError: no declaration, or an impossible one.
    """
    if isinstance(given, FeatureSchema):
        return given
    try:
        return declare(given)
    except FeatureError as error:
        raise ConfigurationError(f"{under}{error}") from None


@runtime_checkable
class Declared(Protocol):
    """A setting that is a declaration of its own, with a canonical form of its own."""

    @property
    def canonical(self) -> bytes:
        """It as canonical JSON."""

    @property
    def plain(self) -> dict[str, Any]:
        """It as plain values, which declare the same."""


@dataclass(frozen=True, slots=True)
class PrivacyConfig:
    """What the operator knows of the promise and says in words.

    Attributes:
        person: protected, or unprotected where one person's whole life is promised nothing and only single units are:
            without this word such a deployment is not prepared. No figure follows from it.
    """

    __pydantic_config__ = REFUSE_UNKNOWN

    person: Literal["protected", "unprotected"] = "protected"

    def __post_init__(self) -> None:
        """Refuse another word."""
        words = ("protected", "unprotected")
        require(self.person in words, "privacy.person", " or ".join(words), self.person)


def said_aside() -> Any:
    """The `PrivacyConfig` of a deployment: no digest follows from it, and configurations are equal whatever it says."""
    return field(default_factory=PrivacyConfig, compare=False, metadata={_ASIDE: True})


Mode = Literal["live", "shadow"]


def mode_said_aside() -> Any:
    """The mode of a deployment: what clients show of its answers.

    No worker computes anything from it, and no digest follows from it: a deployment goes live by this word alone, with
    what it has learned and with what its users have paid.
    """
    return field(default="live", compare=False, metadata={_ASIDE: True, _LATER: "live"})


def require_mode(mode: str) -> None:
    """Refuse another word.

    Raises:
        ConfigurationError: it is no mode.
    """
    require(mode in ("live", "shadow"), "mode", "live or shadow", mode)


@dataclass(frozen=True, slots=True)
class FeedbackConfig:
    """How shown and reward are joined to the decision, in log time.

    Attributes:
        attribution_window_seconds: a decision that was shown and not clicked by then counts as reward 0.
        early_feedback: how many clicks may wait for a context that has not arrived, per partition; where users are
            known beforehand how many showings, each with its reward, divided among the users.
        remembered_events: how many past event ids a partition knows again (same id, same answer).
    """

    __pydantic_config__ = REFUSE_UNKNOWN

    attribution_window_seconds: float = renamed("reward_wait_seconds", 1800.0)
    early_feedback: int = renamed("parked_clicks", 10_000)
    remembered_events: int = 50_000

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        wait = seconds("feedback.attribution_window_seconds", self.attribution_window_seconds, 0.001)
        object.__setattr__(self, "attribution_window_seconds", wait)
        whole("feedback.early_feedback", self.early_feedback, 1, 10_000_000)
        whole("feedback.remembered_events", self.remembered_events, 1, 100_000_000)


@dataclass(frozen=True, slots=True)
class ExplorationConfig:
    """How an arm is chosen when scores are there; what is drawn is stated as the decision's propensity.

    Attributes:
        choice: greedy (the highest score; only ties are drawn), epsilon (with a chance of ``share`` any eligible arm),
            or softmax (arms by the exponential of their score over ``temperature``).
        share: of the decisions that epsilon gives to any eligible arm, the best one included.
        temperature: of softmax, in rewards: an arm that scores as much less is chosen 2.7 times less often.
    """

    __pydantic_config__ = REFUSE_UNKNOWN

    choice: Literal["greedy", "epsilon", "softmax"] = "greedy"
    share: float = 0.05
    temperature: float = 0.05

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        choices = ("greedy", "epsilon", "softmax")
        require(self.choice in choices, "exploration.choice", "greedy, epsilon or softmax", self.choice)
        expected = "a share from 0.0001 to 1"
        share = number("exploration.share", self.share, expected, lambda x: 0.0001 <= x <= 1)
        object.__setattr__(self, "share", share)
        expected = "a number from 0.0001 to 1000"
        temperature = number("exploration.temperature", self.temperature, expected, lambda x: 0.0001 <= x <= 1000)
        object.__setattr__(self, "temperature", temperature)

    def rule(self) -> Exploration | None:
        """What draws an arm from scores; None where the highest score is taken."""
        if self.choice == "epsilon":
            return EpsilonMixture(round(self.share * WHOLE))
        return Softmax(self.temperature) if self.choice == "softmax" else None


@dataclass(frozen=True, slots=True)
class PartitionConfig:
    """Partition counts; frozen for the life of a deployment.

    Attributes:
        learner: partitions of contexts, clicks and decisions.
        shuffler: partitions of reports.
    """

    __pydantic_config__ = REFUSE_UNKNOWN

    learner: int = 1
    shuffler: int = 1

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        whole("partitions.learner", self.learner, 1, 4096)
        whole("partitions.shuffler", self.shuffler, 1, 4096)


def canonical_form(config: Any, public_dataset: bool) -> bytes:
    """The bytes that stand for a configuration and for whether a public dataset is replayed under it."""
    values = {**_wire(config), "public_dataset": public_dataset}
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def config_digest(config: Any, public_dataset: bool = False, prepared: bytes = b"") -> bytes:
    """16 bytes that stand for a configuration, for whether a public dataset is replayed, and for what was prepared.

    Args:
        config: the configuration.
        public_dataset: whether a public dataset is replayed under it.
        prepared: what else all workers must agree on, in a form that no other content has.
    """
    canonical = canonical_form(config, public_dataset)
    hasher = hashlib.blake2b(digest_size=16, person=b"hush-config")
    hasher.update(len(canonical).to_bytes(8, "little") + canonical + prepared)
    return hasher.digest()


def hashed_name(one: Field[Any]) -> str:
    """What a setting is called in the canonical form."""
    name: str = one.metadata.get(_WIRE, one.name)
    return name


def is_later(one: Field[Any]) -> bool:
    """Whether a setting was made by `later`."""
    return _LATER in one.metadata


def unhashed_value(one: Field[Any], value: Any) -> Any:
    """A value of a setting that is given as the canonical form has it."""
    names = {wire: now for now, wire in one.metadata.get(_WIRE_VALUES, {}).items()}
    return names.get(value, value) if names else value


def _is_on_wire(one: Field[Any], config: Any) -> bool:
    if _ASIDE in one.metadata:
        return False
    return not is_later(one) or getattr(config, one.name) != one.metadata[_LATER]


def _value_on_wire(one: Field[Any], config: Any) -> Any:
    value = getattr(config, one.name)
    names = one.metadata.get(_WIRE_VALUES)
    return names.get(value, value) if names else value


def _wire(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Declared):
        return json.loads(value.canonical)
    if is_dataclass(value):
        there = [one for one in fields(value) if _is_on_wire(one, value)]
        return {hashed_name(one): _wire(_value_on_wire(one, value)) for one in there}
    if isinstance(value, dict):
        return {key: _wire(item) for key, item in value.items()}
    return [_wire(item) for item in value] if isinstance(value, tuple | list) else value
