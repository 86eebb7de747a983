"""What a device agreed to: the settings that it follows, the keys that it trusts, and the promise to its user.

An application ships the agreement with its code. Its ``configuration`` is the digest of the settings and of the first
keys of shuffler and aggregator; slots name it, and models are signed for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hushstream.engine.configuration import ExplorationConfig
from hushstream.engine.devices.agreed import FORMAT, Agreed, configuration_of, keys_of, price_of
from hushstream.engine.devices.envelope import ModelBody
from hushstream.engine.devices.errors import BadAgreement, BadModel, BadSeal
from hushstream.engine.devices.travelling import body_bytes
from hushstream.engine.values import ConfigurationError
from hushstream.features.errors import FeatureError
from hushstream.features.schema import declare
from hushstream.learners.sparse import SparseModel
from hushstream.systems.p2b.contribution.errors import ContributionError
from hushstream.systems.p2b.contribution.feature_layout import FeatureLayout
from hushstream.systems.p2b.contribution.feature_slots import slot_bytes
from hushstream.systems.p2b.device.stated import Statement
from hushstream.systems.p2b.edge.candidates import TwoCandidates
from hushstream.systems.p2b.edge.feature_policy import FeaturePolicy
from hushstream.systems.p2b.edge.policy import COLD
from hushstream.systems.p2b.edge.terms import EdgeTerms

TRACK = "private"
"""The track of the model that devices start from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement(Agreed[Statement]):
    """What a device agreed to; see the module.

    Attributes:
        layout: the layout of a slot.
        layout_digest: 16 bytes that identify the layout.
        period_ms: length of a report period.
        after_interactions, levels, attribution_window_ms, contexts_per_period, quota_period_ms, renew_ms: see
            `EdgeTerms`.
        click_chance: see `candidates.click_chance`.
        exploration: how an arm is chosen.
        cold: before any model: mean and variance of a coefficient, and the variance of a reward.
    """

    layout: FeatureLayout
    layout_digest: bytes
    period_ms: int
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
            BadAgreement: it is no agreement of this format, or its parts do not fit one another.
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
        """The size of every slot's content."""
        return slot_bytes(self.layout.places)

    @property
    def body_bytes(self) -> int:
        """The size of every slot as it travels."""
        return body_bytes(self.content_bytes)

    def terms(self) -> EdgeTerms:
        """The terms of the device's agent, with a policy that has no model yet."""
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

    def stated(self, model: ModelBody, now_ms: int, seen: Statement | None) -> Statement:
        """See `Agreed.stated`; the layout must be the one that was agreed to."""
        statement = self.require_stated(model, Statement.read(model.statement), now_ms, seen)
        layout = self.layout
        stated = (statement.layout, statement.arms, statement.cells)
        if stated != (self.layout_digest.hex(), layout.arms, layout.cells):
            raise BadModel(
                "model: expected a layout of the deployment and configuration that was agreed to, got another"
            )
        return statement


def _agreement(values: Mapping[str, Any]) -> Agreement:
    terms, slot, layout, promise = (values[name] for name in ("terms", "slot", "layout", "promise"))
    sealing, signing = keys_of(values)
    configuration = bytes.fromhex(values["configuration"])
    if configuration != configuration_of(values["canonical"].encode(), sealing.pinned + signing.pinned):
        raise BadAgreement("agreement: expected the digest of its settings and keys, got another")
    renew, per_period = terms["renew_ms"], terms["contexts_per_period"]
    made = Agreement(
        deployment=values["deployment"],
        configuration=configuration,
        sealing=sealing,
        signing=signing,
        promise=price_of(promise, int(terms["lifetime_slots"])),
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


def _filled(shape: tuple[int, int], value: float) -> Any:
    return np.full(shape, value)
