"""The prepared files of a deployment of P2B. They are made once, and must be the same for all its workers.

``encoder.json``: the fitted centroids as whole numbers; they are kept, because another machine's k-means may find
others. ``start.json``, if a model was named: the exported model that new users begin with. Where learners are devices:
``sealing.json`` and ``signing.json``, the public keys of the shuffler and of the aggregator, and ``agreement.json``,
which follows from all of these and which applications ship to devices.

*Agreement.* The agreement of a deployment, as applications ship it to their users' devices.

*Device service.* What a gateway needs to take slots from devices, for P2B with declared features.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.configuration import canonical_form
from hushstream.engine.declare.artefacts import Artefacts, Given
from hushstream.engine.devices.agreed import FORMAT
from hushstream.engine.devices.envelope import ModelBody
from hushstream.engine.devices.published import AGREEMENT, first_keys, read_sealing, read_signing
from hushstream.engine.devices.sealing import Recipients, body_bytes, period_of
from hushstream.engine.devices.signing import SigningKeys
from hushstream.engine.values import ConfigurationError, require
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.codebook import Encoder
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.deployment import FeaturesForm, P2BSystem
from hushstream.systems.p2b.guarantee import summed_of
from hushstream.systems.p2b.models import ExportedModel, Statement
from hushstream.systems.p2b.server.estimate import cold_start
from hushstream.systems.p2b.slots import SLOT_RECORD
from hushstream.systems.p2b.succession import FOLLOWS, STARTED_FROM, Predecessor


def agreement_of(system: P2BSystem) -> bytes:
    """The agreement that applications ship to devices. One deployment always gives the same bytes.

    Raises:
        ConfigurationError: the deployment's learners are no devices.
    """
    config, sealing, signing = system.config, system.sealing, system.signing
    if sealing is None or signing is None:
        raise ConfigurationError(
            f"deployment {config.deployment}: expected kind edge with declared features, whose learners are devices, "
            f"got kind {config.kind} with form {config.release.form}"
        )
    layout, terms, promise = system.linear.layout, system.edge_terms(), system.guarantee().life_prices
    assert promise.zero_out is not None, "a slot may be empty here"
    start = cold_start(layout.arms, layout.cells, len(layout.schema.table))
    agreement: dict[str, Any] = {
        "format": FORMAT,
        "deployment": config.deployment,
        "configuration": system.digest.hex(),
        "canonical": canonical_form(config, system.public_dataset).decode(),
        "sealing": {"public_key": sealing.keys[0].public_key.hex(), "vouch_key": sealing.keys[0].vouch_key.hex()},
        "signing_key": signing.keys[0].public_key.hex(),
        "promise": {
            "epsilon_micro": promise.zero_out.epsilon_micro,
            "delta_units": str(promise.zero_out.delta_units),
            "exchange_epsilon_micro": promise.which.epsilon_micro,
            "exchange_delta_units": str(promise.which.delta_units),
            "lifetime_slots": system.lifetime_slots,
            "text": _words(system),
        },
        "slot": {
            "content_bytes": system.form.content_bytes,
            "body_bytes": body_bytes(system.form.content_bytes),
            "period_ms": system.window_rules().period_ms,
            "delay_ms": round(config.slot.settle_seconds * 1000),
        },
        "terms": {
            "after_interactions": terms.after_interactions,
            "lifetime_slots": terms.lifetime_slots,
            "levels": terms.levels,
            "attribution_window_ms": terms.attribution_window_ms,
            "contexts_per_period": terms.contexts_per_period,
            "quota_period_ms": terms.quota_period_ms,
            "renew_ms": terms.renew_ms,
            "click_chance": system.linear.chance,
            "exploration": asdict(config.exploration),
        },
        "layout": {
            "arms": layout.arms,
            "cells": layout.cells,
            "places": layout.places,
            "digest": layout.digest.hex(),
            "budgets": list(layout.budgets),
            "features": layout.schema.plain,
        },
        "cold": {
            "mean": float(start.means[0, 0]),
            "variance": float(start.variances[0, 0]),
            "reward_variance": start.reward_variance,
        },
    }
    return (json.dumps(agreement, indent=1, ensure_ascii=False) + "\n").encode()


def _words(system: P2BSystem) -> list[str]:
    """The promise in one sentence, and what it does not cover."""
    promise = system.guarantee()
    return [promise.sentence(), *(f"Not protected: {one}" for one in promise.not_protected)]


ENCODER, START, PREDECESSOR = "encoder.json", "start.json", "predecessor.json"


def prepare(config: P2BConfig, given: Given) -> Mapping[str, bytes]:
    """Make the files: fit the encoder on the public grid of contexts, and publish the public keys; see the module.

    Raises:
        ConfigurationError: devices need public keys, and neither the prepared files nor the key files hold them; others
            are published already; or the model that was named does not fit.
    """
    made: dict[str, bytes] = {}
    artefacts = given.artefacts
    if FOLLOWS.name in given.inputs:
        made |= _predecessor_of(config, artefacts, *given.inputs[FOLLOWS.name])
    if STARTED_FROM.name in given.inputs:
        made |= _start_of(config, artefacts, *given.inputs[STARTED_FROM.name])
    if config.devices:
        made |= first_keys(given)
        so_far = Artefacts(artefacts.where, {**artefacts.files, **made})
        made[AGREEMENT] = agreement_of(
            P2BSystem.declared(config, False, read_start(so_far), *_published_keys(config, so_far))
        )
    if summed_of(config).fits_encoder and not artefacts.has(ENCODER):
        made[ENCODER] = encoder_file(P2BSystem.fitted(config).encoder)
    return made


def assemble(config: P2BConfig, artefacts: Artefacts) -> P2BSystem:
    """Join a configuration with its prepared files: encoder, start, predecessor and public keys.

    Raises:
        ConfigurationError: a file is missing, damaged, or belongs to another configuration.
    """
    return _assembled(config, artefacts).following(read_predecessor(artefacts))


def _assembled(config: P2BConfig, artefacts: Artefacts) -> P2BSystem:
    if not summed_of(config).fits_encoder:
        start, public_keys = read_start(artefacts), _published_keys(config, artefacts)
        return P2BSystem.declared(config, artefacts.public_dataset is not None, start, *public_keys)
    public, lattice = artefacts.public_dataset is not None, _read_lattice(config, artefacts)
    return P2BSystem.of(config, lattice, public)


def _read_lattice(config: P2BConfig, artefacts: Artefacts) -> NDArray[np.int64]:
    """The fitted centroids, (k, d) in units of 2^-16.

    Raises:
        ConfigurationError: they are missing, damaged, or belong to another configuration.
    """
    where = artefacts.path(ENCODER)
    content = artefacts.json(ENCODER, "the fitted encoder")
    try:
        lattice, digits = np.array(content["centroids"]), content["digits"]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{where}: expected centroids as whole numbers, got {type(error).__name__}") from None
    if lattice.dtype != np.int64:
        raise ConfigurationError(f"{where}: expected centroids as whole numbers, got {lattice.dtype}")
    if lattice.ndim != 2:
        raise ConfigurationError(f"{where}: expected centroids of shape (k, d), got {lattice.shape}")
    if digits != config.context.digits:
        raise ConfigurationError(
            f"{where}: expected centroids fitted for {config.context.digits} digits, got {digits!r}; "
            f"the configuration of a deployment is frozen, and the encoder belongs to another one"
        )
    return lattice


def read_start(artefacts: Artefacts) -> ExportedModel | None:
    """The exported model that new users begin with; None if no model was named.

    Raises:
        ConfigurationError: the file is damaged, or its golden decisions cannot be reproduced.
    """
    if not artefacts.has(START):
        return None
    return _exported(json.dumps(artefacts.json(START, "an exported model")).encode(), artefacts.path(START))


def read_predecessor(artefacts: Artefacts) -> Predecessor | None:
    """The generation before this deployment; None for the first.

    Raises:
        ConfigurationError: the file is damaged.
    """
    if not artefacts.has(PREDECESSOR):
        return None
    return _left(artefacts.json(PREDECESSOR, FOLLOWS.help), artefacts.path(PREDECESSOR))


def _left(plain: Any, where: str) -> Predecessor:
    try:
        return Predecessor.of(plain)
    except HushstreamError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _predecessor_of(config: P2BConfig, artefacts: Artefacts, where: str, text: str) -> Mapping[str, bytes]:
    """The prepared file of the generation before.

    Raises:
        ConfigurationError: the text is no such file, another one than before, or learners are devices.
    """
    require_no_devices(config)
    try:
        found, before = _left(json.loads(text), where), read_predecessor(artefacts)
    except ValueError as error:
        raise ConfigurationError(f"{where}: expected JSON, got {type(error).__name__}") from None
    if before is not None and before.digest != found.digest:
        raise ConfigurationError(f"{where}: expected the generation that this deployment follows, got another")
    return {PREDECESSOR: json.dumps(found.plain).encode()}


def require_no_devices(config: P2BConfig) -> None:
    """Refuse a deployment of devices as the next generation.

    Raises:
        ConfigurationError: learners are devices.
    """
    if config.devices:
        raise ConfigurationError(
            "kind: expected hosted, got edge: devices keep themselves what they were charged, and refuse what passes "
            "the life that they first agreed to; prepare a deployment of another name, and ship its agreement to them"
        )


def _exported(content: bytes, where: str) -> ExportedModel:
    try:
        model = ExportedModel.read(content)
        # A model without its price or its number of slots cannot be continued.
        _ = model.paid, model.slots
    except HushstreamError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    return model


def _start_of(config: P2BConfig, artefacts: Artefacts, where: str, text: str) -> Mapping[str, bytes]:
    """The prepared file of the model that was named as the start.

    Raises:
        ConfigurationError: the text is no exported model, another one than before, or one that users of this deployment
            cannot begin with.
    """
    require(config.release.form == "features", "start", "none for form codes", where)
    model = _exported(text.encode(), where)
    before = read_start(artefacts)
    if before is not None and before.digest != model.digest:
        raise ConfigurationError(f"{where}: expected the model that this deployment began with, got another")
    FeaturesForm.of(config, model)
    return {START: model.as_json()}


def encoder_file(encoder: Encoder) -> bytes:
    """A fitted encoder as the content of its file."""
    return json.dumps({"digits": encoder.digits, "centroids": encoder.lattice.tolist()}).encode()


def _published_keys(config: P2BConfig, artefacts: Artefacts) -> tuple[Recipients | None, SigningKeys | None]:
    """The public keys for sealing and for signing; none without devices."""
    return (read_sealing(artefacts), read_signing(artefacts)) if config.devices else (None, None)


_BEHIND = 1
"""A slot may name the current period or the one before it."""


class VisitDeviceService:
    """See `DeviceService`."""

    topic = "reports"
    opening: bytes | None = None

    def __init__(self, system: P2BSystem) -> None:
        """Bind to a deployment whose learners are devices."""
        self.partitions, self.digest, self._system = system.config.partitions.shuffler, system.digest, system
        self.body_bytes, self.agreement = body_bytes(system.form.content_bytes), agreement_of(system)
        self._period_ms = system.window_rules().period_ms

    def is_stale(self, fields: Mapping[str, Any], now_ms: int) -> bool:
        return not 0 <= now_ms // self._period_ms - period_of(fields) <= _BEHIND

    def record(self, fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        return SLOT_RECORD, fields

    def follow(self, fields: Mapping[str, Any]) -> ModelBody:
        """See `DeviceService.follow`. No slot depends on a model, so nothing of it is kept."""
        body = ModelBody.of(fields, self._system)
        Statement.signed_in(fields, body.signing, self.digest)
        return body
