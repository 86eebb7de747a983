"""Parts of a configuration that more than one system has."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from hushstream.engine.values import Checked, ConfigurationError, Is, between, check_fields, require, seconds, whole
from hushstream.features.checks import FeatureError
from hushstream.features.schema import FeatureSchema, declare
from hushstream.learners.exploration import WHOLE, EpsilonMixture, Exploration, Softmax

_ENTRY = re.compile(r" {4}(\w+(?:, \w+)*): (.+)")
_UNDIGESTED = "undigested"
"""Metadata of a setting that no computation uses. It is in no canonical form."""

LARGEST_EPSILON = 20.0
"""The largest epsilon of one release; a larger one protects nobody."""


def meanings(made: type) -> dict[str, str]:
    """The meaning of each field by its name: the entries below ``Attributes:`` of a class, each joined to one line."""
    _, _, below = (inspect.getdoc(made) or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in below.splitlines():
        entry = _ENTRY.fullmatch(line)
        if entry is not None:
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        elif line.startswith(" " * 8):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            names = []
    return found


def declared_features(given: Any, under: str = "") -> FeatureSchema:
    """The schema of the features that a setting declares by name; a setting that is a schema already is returned.

    Args:
        given: the setting.
        under: prefix of its key with a dot, or nothing.

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
        """The declaration as canonical JSON."""

    @property
    def plain(self) -> dict[str, Any]:
        """The declaration as plain values, from which it can be made again."""


@dataclass(frozen=True, slots=True)
class PrivacyConfig(Checked):
    """What the operator states about the promise.

    Attributes:
        person: ``unprotected`` states that only single units are protected, and that a person's whole life is not.
            `hushstream prepare` refuses such a deployment without this word. No figure depends on it. The other value
            is ``protected``.
        tainted: the inputs of preparation that are accepted although they are marked as not private (a start from a
            seeded key, for instance); everything that is derived from them is marked, too.
    """

    person: Annotated[Literal["protected", "unprotected"], Is("privacy.")] = "protected"
    tainted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse another word."""
        check_fields(self)
        named = all(isinstance(one, str) for one in self.tainted)
        require(named, "privacy.tainted", "names of inputs of preparation", self.tainted)


def undigested_privacy() -> Any:
    """The `PrivacyConfig` of a deployment. It is in no digest, and comparisons of configurations ignore it."""
    return field(default_factory=PrivacyConfig, compare=False, metadata={_UNDIGESTED: True})


Mode = Literal["live", "shadow"]


def undigested_mode() -> Any:
    """The mode of a deployment: which of its answers clients show.

    No worker computes anything from it, and it is in no digest. So an operator brings a deployment live by changing
    this word alone; the model and the spent budgets stay.
    """
    return field(default="live", compare=False, metadata={_UNDIGESTED: True})


@dataclass(frozen=True, slots=True)
class FeedbackConfig(Checked):
    """How shown and reward are joined to the decision, in log time.

    Attributes:
        attribution_window_seconds: a decision that was shown, and not clicked within this time, counts as reward 0.
        early_feedback: how many clicks of one partition may wait for a context that has not arrived. Where users are
            known beforehand: how many showings, each with its reward; the number is divided among the users.
        remembered_events: how many past event ids a partition remembers (a repeated id gets the same answer).
    """

    attribution_window_seconds: Annotated[float, Is("feedback.", seconds, 0.001)] = 1800.0
    early_feedback: Annotated[int, Is("feedback.", whole, 1, 10_000_000)] = 10_000
    remembered_events: Annotated[int, Is("feedback.", whole, 1, 100_000_000)] = 50_000


@dataclass(frozen=True, slots=True)
class ExplorationConfig(Checked):
    """How an arm is chosen from the scores. The probability of the choice is the decision's propensity.

    Attributes:
        choice: greedy (the highest score; ties are drawn at random), epsilon (with probability ``share`` any eligible
            arm), or softmax (probabilities proportional to exp(score / ``temperature``)).
        share: share of decisions for which epsilon draws any eligible arm, also the best one.
        temperature: of softmax, in units of the reward: an arm whose score is lower by this much is chosen 2.7 times
            less often.
    """

    choice: Annotated[Literal["greedy", "epsilon", "softmax"], Is("exploration.")] = "greedy"
    share: Annotated[float, Is("exploration.", between, 0.0001, 1)] = 0.05
    temperature: Annotated[float, Is("exploration.", between, 0.0001, 1000)] = 0.05

    def rule(self) -> Exploration | None:
        """The rule that draws an arm from scores; None if the highest score is taken."""
        if self.choice == "epsilon":
            return EpsilonMixture(round(self.share * WHOLE))
        return Softmax(self.temperature) if self.choice == "softmax" else None


@dataclass(frozen=True, slots=True)
class PartitionConfig(Checked):
    """Partition counts; frozen for the life of a deployment.

    Attributes:
        learner: partitions of contexts, clicks and decisions.
        shuffler: partitions of reports.
    """

    learner: Annotated[int, Is("partitions.", whole, 1, 4096)] = 1
    shuffler: Annotated[int, Is("partitions.", whole, 1, 4096)] = 1


def canonical_form(config: Any, public_dataset: bool) -> bytes:
    """The bytes that a configuration's digest is computed from, with whether a public dataset is replayed."""
    values = {**_canonical(config), "public_dataset": public_dataset}
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def config_digest(config: Any, public_dataset: bool = False, prepared: bytes = b"") -> bytes:
    """Digest of a configuration, of whether a public dataset is replayed, and of the prepared artefacts (16 bytes).

    Args:
        config: the configuration.
        public_dataset: whether a public dataset is replayed under it.
        prepared: what else all workers must agree on, encoded so that different contents give different bytes.
    """
    canonical = canonical_form(config, public_dataset)
    hasher = hashlib.blake2b(digest_size=16, person=b"hush-config")
    hasher.update(len(canonical).to_bytes(8, "little") + canonical + prepared)
    return hasher.digest()


def _canonical(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Declared):
        return json.loads(value.canonical)
    if is_dataclass(value):
        digested = [one.name for one in fields(value) if _UNDIGESTED not in one.metadata]
        return {name: _canonical(getattr(value, name)) for name in digested}
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    return [_canonical(item) for item in value] if isinstance(value, tuple | list) else value
