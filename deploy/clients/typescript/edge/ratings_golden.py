"""Write the results that a device of ratings must give: ``deploy/clients/typescript/edge/ratings_golden.py [--check]``.

The Python agent (`hushstream.systems.bgt.edge.agent.RatingAgent`) and its parts make all of them from seeds: agreements
and their digests, signed models, the rounds that they ask for, contents and ids of slots, predictions. Slots and rounds
are compared byte for byte, predictions within `golden.MARGIN`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden  # beside this file
import numpy as np

from hushstream.engine.configuration import PrivacyConfig
from hushstream.engine.devices.envelope import ModelBody
from hushstream.engine.devices.sealing import Recipients
from hushstream.engine.devices.signing import Signer, SigningKeys
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.privacy.keys import Key
from hushstream.systems.bgt.artefacts import BgtSystem, agreement_of
from hushstream.systems.bgt.configuration import KINDS, BgtConfig, ModelConfig, ReleaseConfig, ScaleConfig
from hushstream.systems.bgt.edge.agent import RatingAgent
from hushstream.systems.bgt.edge.device import Agreement
from hushstream.systems.bgt.records import Model, Round, Statement, content_of, first_round, packed_slots

TARGET = Path(__file__).parent / "tests" / "ratings.json"
NOW_MS = 1_800_000_000_000
SIGNING, SEALING = Key(bytes(range(32))), Key(bytes(range(1, 33)))

CONFIGS = (
    BgtConfig(
        deployment="films",
        items=24,
        kind="edge",
        scale=ScaleConfig(lowest=1.0, highest=5.0),
        release=ReleaseConfig(pairs=8, top=10, factors=2),
    ),
    BgtConfig(
        deployment="songs",
        items=40,
        features=3,
        kind="edge",
        scale=ScaleConfig(lowest=-1.0, highest=1e6, middle=0.25),
        release=ReleaseConfig(epsilon=10.0, delta=1e-12, pairs=12, top=300, factors=9, clip=0.5, count_weight=1.0),
        model=ModelConfig(valid_seconds=86_400.0, factor_ridge=0.01),
        budget=BudgetConfig(epsilon=20.0, delta=1e-06),
        privacy=PrivacyConfig(person="unprotected"),
        settle_seconds=0.001,
    ),
)


def system_of(config: BgtConfig) -> BgtSystem:
    """A deployment with keys that follow from seeds, and features of the items."""
    features = np.random.default_rng(3).normal(size=(config.items, config.features))
    return BgtSystem.of(config, features, False, Recipients.first(SEALING), SigningKeys.first(SIGNING))


def made() -> dict[str, Any]:
    """The whole content of the file."""
    sealing = SEALING.prf("sealing-private").hex()
    deployments = [_deployment(config) for config in CONFIGS]
    return {"margin": golden.MARGIN, "now": NOW_MS, "sealing": sealing, "deployments": deployments}


def _deployment(config: BgtConfig) -> dict[str, Any]:
    system = system_of(config)
    agreement = Agreement.read(agreement_of(system))
    asked = [first_round(config), *rounds(config)]
    return {
        "agreement": json.loads(agreement_of(system)),
        "models": [_body(system, one, version) for version, one in enumerate(asked) if version],
        "users": list(_users(agreement, asked)),
        "prices": [agreement.price_from(round) for round in range(4)],
    }


def rounds(config: BgtConfig) -> Iterator[Round]:
    """Later rounds, with models as an aggregator might make them."""
    rng = np.random.default_rng(7)
    biases = rng.normal(0, 0.1, config.items)
    yield Round(
        1, KINDS[1], Model(biases, np.zeros((config.items, 0))), _top(config, rng), rng.uniform(0.1, 1, config.top)
    )
    yield Round(2, KINDS[2], Model(biases, rng.normal(0, 0.3, (config.items, config.release.factors))))


def _top(config: BgtConfig, rng: np.random.Generator) -> Any:
    return rng.permutation(config.items)[: config.top].astype(np.int64)


def body_of(system: BgtSystem, asked: Round, version: int, **changes: Any) -> ModelBody:
    """A signed model and the round that it asks for; ``changes`` replace parts of its statement."""
    price = system.guarantee().life_prices.zero_out
    assert price is not None
    columns = {
        "biases": asked.model.biases.astype("<f8").tobytes(),
        "factors": asked.model.factors.astype("<f8").tobytes(),
        "top": asked.top.astype("<i4").tobytes(),
        "gains": asked.gains.astype("<f8").tobytes(),
    }
    content = content_of(columns)
    said: dict[str, Any] = {
        "deployment": system.config.deployment,
        "configuration": system.digest.hex(),
        "version": version,
        "issued_ms": NOW_MS - 1,
        "expires_ms": NOW_MS + 1000,
        "epsilon_micro": price.epsilon_micro,
        "delta_units": str(price.delta_units),
        "private_as_stated": True,
        "content_sha256": hashlib.sha256(content).hexdigest(),
        "content_bytes": len(content),
        "kind": asked.kind,
        "factors": asked.model.factors.shape[1],
        "top": len(asked.top),
    }
    assert system.signing is not None
    assert system.sealing is not None
    statement = Statement(**{**said, **changes}).as_bytes()
    number, signature = Signer(system.signing, (SIGNING,)).sign(version, statement)
    return ModelBody(statement, number, signature, system.signing, system.sealing, content)


def _body(system: BgtSystem, asked: Round, version: int) -> str:
    return base64.b64encode(body_of(system, asked, version).as_bytes()).decode()


def _users(agreement: Agreement, rounds: list[Round]) -> Iterator[dict[str, Any]]:
    """Users with no ratings, one, few, as many as fit, more, and with all items; the last rates all items the same."""
    config, rng = agreement.config, np.random.default_rng(11)
    low, high = config.scale.lowest, config.scale.highest
    for number, count in enumerate(
        (0, 1, 5, config.release.pairs, config.release.pairs + 1, config.items, config.items)
    ):
        items = rng.permutation(config.items)[:count].tolist()
        ratings = rng.uniform(low, high, count).tolist() if number < 6 else [high] * count
        key = bytes((3 * number + place) % 256 for place in range(32))
        agent = RatingAgent(config, Key(key), lambda answered: None, 0, agreement.features, agreement.configuration)
        agent.rate(items, ratings)
        sent = [agent.answer(asked, agreement.configuration) for asked in rounds]
        yield {
            "key": key.hex(),
            "items": items,
            "ratings": ratings,
            "slots": [[one.slot_id.hex(), packed_slots(one.slot)[0].hex()] for one in sent],
            "predicted": [agent.predict(range(config.items), asked.model).tolist() for asked in rounds],
        }


def text() -> str:
    """The text that the file must have."""
    return json.dumps(made(), ensure_ascii=False, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    sys.exit(golden.main(text, TARGET, __doc__))
