"""The agreement of a deployment, as applications ship it to their users' devices."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from hushstream.engine.configuration import canonical_form
from hushstream.engine.devices.agreed import FORMAT
from hushstream.engine.devices.travelling import body_bytes
from hushstream.engine.values import ConfigurationError
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.server.warm_start import cold_start


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
    layout, form = system.linear.layout, system.linear
    start = cold_start(layout.arms, layout.cells, len(layout.schema.table))
    exchange, took_part = system.guarantee().life_prices.which, system.guarantee().life_prices.took_part
    assert took_part is not None, "whether somebody took part is not public here"
    agreement: dict[str, Any] = {
        "format": FORMAT,
        "deployment": config.deployment,
        "configuration": system.digest.hex(),
        "canonical": canonical_form(config, system.public_dataset).decode(),
        "sealing": {"public_key": sealing.keys[0].public_key.hex(), "vouch_key": sealing.keys[0].vouch_key.hex()},
        "signing_key": signing.keys[0].public_key.hex(),
        "promise": {
            "epsilon_micro": took_part.epsilon_micro,
            "delta_units": str(took_part.delta_units),
            "exchange_epsilon_micro": exchange.epsilon_micro,
            "exchange_delta_units": str(exchange.delta_units),
            "lifetime_slots": system.lifetime_slots,
            "text": _words(system),
        },
        "slot": {
            "content_bytes": form.content_bytes,
            "body_bytes": body_bytes(form.content_bytes),
            "period_ms": system.window_rules().period_ms,
            "delay_ms": round(config.slot.settle_seconds * 1000),
        },
        "terms": _terms(system),
        "layout": {
            "arms": layout.arms,
            "cells": layout.cells,
            "places": layout.places,
            "digest": form.layout_digest.hex(),
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


def _terms(system: P2BSystem) -> dict[str, Any]:
    terms = system.edge_terms()
    return {
        "after_interactions": terms.after_interactions,
        "lifetime_slots": terms.lifetime_slots,
        "levels": terms.levels,
        "attribution_window_ms": terms.attribution_window_ms,
        "contexts_per_period": terms.contexts_per_period,
        "quota_period_ms": terms.quota_period_ms,
        "renew_ms": terms.renew_ms,
        "click_chance": system.linear.chance,
        "exploration": asdict(system.config.exploration),
    }


def _words(system: P2BSystem) -> list[str]:
    """The promise in one sentence, and what it does not cover."""
    promises = system.promises
    return [promises.sentence(), *(f"Not protected: {one}" for one in promises.releases.not_protected)]
