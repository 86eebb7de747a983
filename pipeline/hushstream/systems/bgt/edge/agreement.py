"""What a device agreed to: all settings, public features of items, keys, and what its user is promised."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hushstream.engine.configuration import PartitionConfig, PrivacyConfig
from hushstream.engine.devices.agreed import FORMAT, Agreed, keys_of, price_of
from hushstream.engine.devices.envelope import ModelBody
from hushstream.engine.devices.errors import BadAgreement, BadModel, BadSeal
from hushstream.engine.devices.travelling import body_bytes
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.values import ConfigurationError
from hushstream.systems.bgt.configuration import BgtConfig, ModelConfig, ReleaseConfig, ScaleConfig, bgt_digest
from hushstream.systems.bgt.features import features_bytes
from hushstream.systems.bgt.rounds import ROUNDS
from hushstream.systems.bgt.slots import Float64, slot_bytes
from hushstream.systems.bgt.stated import Statement

_PARTS: Mapping[str, type] = {
    "scale": ScaleConfig,
    "release": ReleaseConfig,
    "model": ModelConfig,
    "partitions": PartitionConfig,
    "privacy": PrivacyConfig,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement(Agreed[Statement]):
    """What a device agreed to; see the module.

    Attributes:
        config: the whole configuration.
        features: (I, f) public features of items.
    """

    config: BgtConfig
    features: Float64

    @classmethod
    def read(cls, content: str | bytes) -> Agreement:
        """An agreement as it is shipped.

        Raises:
            BadAgreement: it is no agreement of this format and system, or its parts do not fit one another.
        """
        try:
            values = json.loads(content)
            if (values["format"], values.get("system")) != (FORMAT, "bgt"):
                raise BadAgreement(f"agreement: expected format {FORMAT} of bgt, got another")
            return _agreement(values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadAgreement(f"agreement: expected what a deployment makes, got {type(error).__name__}") from None
        except (BadSeal, BadModel, ConfigurationError) as error:
            raise BadAgreement(f"agreement: {error}") from None

    @property
    def body_bytes(self) -> int:
        """The size of every slot as it travels."""
        return body_bytes(slot_bytes(self.config))

    def stated(self, model: ModelBody, now_ms: int, seen: Statement | None) -> Statement:
        """See `Agreed.stated`."""
        return self.require_stated(model, Statement.read(model.statement), now_ms, seen)


def _agreement(values: Mapping[str, Any]) -> Agreement:
    config, features = _config(values["settings"]), np.array(values["features"], dtype=np.float64)
    features = features.reshape(config.items, config.features)
    sealing, signing = keys_of(values)
    configuration = bytes.fromhex(values["configuration"])
    pinned = sealing.pinned + signing.pinned
    if configuration != bgt_digest(config, features_bytes(features), False, pinned) or not config.devices:
        raise BadAgreement("agreement: expected the digest of its settings and keys, got another")
    made = Agreement(
        deployment=values["deployment"],
        configuration=configuration,
        sealing=sealing,
        signing=signing,
        promise=price_of(values["promise"], int(values["promise"]["lifetime_slots"])),
        text=tuple(map(str, values["promise"]["text"])),
        delay_ms=int(values["slot"]["delay_ms"]),
        config=config,
        features=features,
    )
    stated = (made.deployment, made.delay_ms, values["slot"]["content_bytes"], values["slot"]["body_bytes"])
    expected = (config.deployment, round(config.settle_seconds * 1000), slot_bytes(config), made.body_bytes)
    if stated != expected or made.promise.lifetime_slots != ROUNDS:
        raise BadAgreement("agreement: expected figures of its settings, got others")
    return made


def _config(settings: Mapping[str, Any]) -> BgtConfig:
    parts: dict[str, Any] = {name: part(**settings[name]) for name, part in _PARTS.items()}
    if settings["budget"] is not None:
        parts["budget"] = BudgetConfig(**settings["budget"])
    return BgtConfig(**{**settings, **parts})
