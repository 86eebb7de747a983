"""What a device agreed to: the settings that it goes by, the keys that it trusts, and what its user is promised.

An application ships the agreement with its code. Its ``configuration`` is the digest of the settings and of the first
keys of shuffler and aggregator; slots name it, and models are signed for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hushstream.engine.configuration import ExplorationConfig
from hushstream.engine.values import ConfigurationError
from hushstream.features.errors import FeatureError
from hushstream.features.schema import declare
from hushstream.learners.sparse import SparseModel
from hushstream.systems.p2b.contribution.errors import BadSeal, ContributionError
from hushstream.systems.p2b.contribution.feature_layout import FeatureLayout
from hushstream.systems.p2b.contribution.feature_slots import slot_bytes
from hushstream.systems.p2b.contribution.recipients import Recipient, Recipients
from hushstream.systems.p2b.device.errors import BadAgreement, BadModel, OlderModel, WeakerAgreement
from hushstream.systems.p2b.device.signing import SigningKey, SigningKeys
from hushstream.systems.p2b.device.stated import ModelBody, Statement
from hushstream.systems.p2b.device.travelling import body_bytes
from hushstream.systems.p2b.edge.choosing import TwoCandidates
from hushstream.systems.p2b.edge.feature_policy import FeaturePolicy
from hushstream.systems.p2b.edge.policy import COLD
from hushstream.systems.p2b.edge.terms import EdgeTerms

FORMAT = 1
TRACK = "private"
"""Of the model that devices start from."""


class Price(NamedTuple):
    """What a user's whole life costs them, as the agreement states it; see `Agreement.promise`.

    Attributes:
        epsilon_micro, delta_units: whether they took part.
        exchange_epsilon_micro, exchange_delta_units: which of two things they did.
        lifetime_slots: slots in their life.
    """

    epsilon_micro: int
    delta_units: int
    exchange_epsilon_micro: int
    exchange_delta_units: int
    lifetime_slots: int

    def require_no_weaker_than(self, other: Price) -> None:
        """Refuse a promise of which any figure is larger than before.

        Raises:
            WeakerAgreement: one is.
        """
        for name, mine, theirs in zip(self._fields, self, other, strict=True):
            if mine > theirs:
                raise WeakerAgreement(f"agreement: expected {name} of at most {theirs}, as was agreed, got {mine}")


@dataclass(frozen=True, slots=True)
class Agreement:
    """See the module.

    Attributes:
        deployment: its name.
        configuration: 16 bytes.
        sealing, signing: the first keys, as chains of one.
        promise: the price of a user's life.
        text: the promise in words.
        layout: of a slot.
        layout_digest: 16 bytes.
        period_ms, delay_ms: of a report; up to how long a slot waits beside what its rewards take.
        after_interactions, levels, attribution_window_ms, contexts_per_period, quota_period_ms, renew_ms: see
            `EdgeTerms`.
        click_chance: see `candidates.click_chance`.
        exploration: how an arm is chosen.
        cold: mean, variance and variance of a reward before any model.
    """

    deployment: str
    configuration: bytes
    sealing: Recipients
    signing: SigningKeys
    promise: Price
    text: tuple[str, ...]
    layout: FeatureLayout
    layout_digest: bytes
    period_ms: int
    delay_ms: int
    after_interactions: int
    levels: int
    attribution_window_ms: int
    contexts_per_period: int | None
    quota_period_ms: int
    renew_ms: int | None
    click_chance: float | None
    exploration: ExplorationConfig
    cold: tuple[float, float, float]

    @classmethod
    def read(cls, content: str | bytes) -> Agreement:
        """An agreement as it is shipped.

        Raises:
            BadAgreement: it is none of this format, or its parts do not fit one another.
        """
        try:
            values = json.loads(content)
            if values["format"] != FORMAT:
                raise BadAgreement(f"agreement: expected format {FORMAT}, got another")
            return _agreement(values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadAgreement(f"agreement: expected what a deployment makes, got {type(error).__name__}") from None
        except (BadSeal, BadModel, ContributionError, FeatureError, ConfigurationError) as error:
            raise BadAgreement(f"agreement: {error}") from None

    @property
    def content_bytes(self) -> int:
        """Of every slot."""
        return slot_bytes(self.layout.places)

    @property
    def body_bytes(self) -> int:
        """Of every slot as it travels."""
        return body_bytes(self.content_bytes)

    def terms(self) -> EdgeTerms:
        """What an agent goes by, with a policy that has seen no model."""
        shape, (mean, variance, reward_variance) = (self.layout.arms, self.layout.cells), self.cold
        cold = SparseModel.of(_filled(shape, mean), _filled(shape, variance), reward_variance)
        return EdgeTerms(
            policy=FeaturePolicy(self.layout, cold, (COLD, TRACK)),
            after_interactions=self.after_interactions,
            lifetime_slots=self.promise.lifetime_slots,
            levels=self.levels,
            attribution_window_ms=self.attribution_window_ms,
            contexts_per_period=self.contexts_per_period,
            quota_period_ms=self.quota_period_ms,
            choice=TwoCandidates(self.click_chance),
            exploration=self.exploration.rule(),
            renew_ms=self.renew_ms,
        )

    def require_keys(self, model: ModelBody, signing: SigningKeys, sealing: Recipients) -> None:
        """Refuse keys that do not follow from those that a device knows.

        Args:
            model: as it came; its chains are vouched for within.
            signing, sealing: the longest chains that the device has seen; at first the agreement's.

        Raises:
            BadModel: one that was known is another, or gone.
        """
        for found, known in ((model.signing.keys, signing.keys), (model.sealing.keys, sealing.keys)):
            if tuple(found[: len(known)]) != tuple(known):
                raise BadModel("model: expected keys that follow from those that are known, got others")

    def stated(self, model: ModelBody, now_ms: int, seen: Statement | None) -> Statement:
        """What a model states, if a device may take it; its arrays are checked by `stated.arrays_of`.

        Args:
            model: whose keys were checked.
            now_ms: the device's clock.
            seen: the statement of the newest version that the device has seen.

        Raises:
            OlderModel: it is older than ``seen``, or has expired.
            BadModel: it is not signed, or not what was agreed to.
        """
        statement = Statement.read(model.statement)
        model.signing.verify(statement.version, model.signing_key, model.signature, model.statement)
        layout = self.layout
        told = (statement.deployment, statement.configuration, statement.layout, statement.arms, statement.cells)
        agreed = (self.deployment, self.configuration.hex(), self.layout_digest.hex(), layout.arms, layout.cells)
        if told != agreed:
            raise BadModel("model: expected one of the deployment and configuration that was agreed to, got another")
        price = (statement.epsilon_micro, _whole(statement.delta_units))
        weaker = price[0] > self.promise.epsilon_micro or price[1] > self.promise.delta_units
        if weaker or not statement.private_as_stated:
            raise BadModel("model: expected one as private as was agreed, got a weaker one")
        if seen is not None and statement.version < seen.version:
            raise OlderModel(f"model: expected version {seen.version} or later, got {statement.version}")
        if seen is not None and statement.version == seen.version and statement != seen:
            raise BadModel(f"model: expected what was stated of version {seen.version} before, got another")
        if statement.expires_ms <= now_ms:
            raise OlderModel("model: expected one that has not expired, got one that has")
        return statement


def configuration_of(canonical: str, pinned: bytes) -> bytes:
    """The digest of settings in their canonical form and of the first keys; as `configuration_digest` makes it."""
    settings = canonical.encode()
    said = len(settings).to_bytes(8, "little") + settings + pinned
    return hashlib.blake2b(said, digest_size=16, person=b"hush-config").digest()


def _agreement(values: Mapping[str, Any]) -> Agreement:
    terms, slot, layout, promise = (values[name] for name in ("terms", "slot", "layout", "promise"))
    public, vouch = (bytes.fromhex(values["sealing"][name]) for name in ("public_key", "vouch_key"))
    sealing = Recipients((Recipient(public, vouch),))
    signing = SigningKeys((SigningKey(bytes.fromhex(values["signing_key"])),))
    configuration = bytes.fromhex(values["configuration"])
    if configuration != configuration_of(values["canonical"], sealing.pinned + signing.pinned):
        raise BadAgreement("agreement: expected the digest of its settings and keys, got another")
    renew, per_period = terms["renew_ms"], terms["contexts_per_period"]
    made = Agreement(
        deployment=values["deployment"],
        configuration=configuration,
        sealing=sealing,
        signing=signing,
        promise=Price(
            int(promise["epsilon_micro"]),
            _whole(promise["delta_units"]),
            int(promise["exchange_epsilon_micro"]),
            _whole(promise["exchange_delta_units"]),
            int(terms["lifetime_slots"]),
        ),
        text=tuple(map(str, promise["text"])),
        layout=FeatureLayout(
            declare(layout["features"]), int(layout["arms"]), int(terms["levels"]), tuple(map(int, layout["budgets"]))
        ),
        layout_digest=bytes.fromhex(layout["digest"]),
        period_ms=int(slot["period_ms"]),
        delay_ms=int(slot["delay_ms"]),
        after_interactions=int(terms["after_interactions"]),
        levels=int(terms["levels"]),
        attribution_window_ms=int(terms["attribution_window_ms"]),
        contexts_per_period=None if per_period is None else int(per_period),
        quota_period_ms=int(terms["quota_period_ms"]),
        renew_ms=None if renew is None else int(renew),
        click_chance=terms["click_chance"],
        exploration=ExplorationConfig(**terms["exploration"]),
        cold=tuple(float(values["cold"][name]) for name in ("mean", "variance", "reward_variance")),  # type: ignore[arg-type]  # three names
    )
    found = (made.content_bytes, made.body_bytes, made.layout.cells, made.layout.places)
    if found != (slot["content_bytes"], slot["body_bytes"], layout["cells"], layout["places"]):
        raise BadAgreement(f"agreement: expected sizes {found} of its features, got others")
    return made


def _whole(text: str) -> int:
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 40):
        raise BadModel("expected a whole number as decimal digits, got something else")
    return int(text)


def _filled(shape: tuple[int, int], value: float) -> Any:
    return np.full(shape, value)
