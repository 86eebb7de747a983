"""Debits hold the words of their promise: with others, journals of an earlier release would not be recomputed."""

from __future__ import annotations

import json
from pathlib import Path

from hushstream.agents.worker.deployment import parse_config
from hushstream.systems.bgt.price.guarantee import epoch_guarantee as bgt_guarantee
from hushstream.systems.colin.budget import release_guarantee
from hushstream.systems.p2b.guarantee.promise import release_guarantee as p2b_guarantee
from hushstream.systems.p2b.guarantee.promise import slot_terms_of
from hushstream.systems.p2b.lift import lift_debit
from hushstream.systems.pdap.promise import epoch_guarantee
from hushstream.systems.pdol.algorithm.counters import plan_of

RECORDED = Path(__file__).with_name("recorded_words.json")


def _p2b(**release):
    return {
        "deployment": "words",
        "items": {"capacity": 3},
        "features": {"dimension": 3},
        "expected_slots": 20000,
        "encoder": {"codes": 4},
        "holdout": {"share": 0.1},
        "release": release,
    }


def _colin(**release):
    features = {"dimension": 2, "norm": 1.0}
    return {
        "system": "colin",
        "deployment": "words",
        "items": {"capacity": 3},
        "features": features,
        "release": release,
    }


def _promises():
    for name, release in (
        ("fresh", {"sums": "fresh"}),
        ("counter", {"sums": "counter"}),
        ("sampled", {"sampling": 0.5, "sums": "fresh"}),
        ("tuples", {"mechanism": "tuples", "sampling": 0.5}),
    ):
        config = parse_config(_p2b(**release))
        yield f"p2b {name}", p2b_guarantee(config)
        yield f"p2b {name}, life", slot_terms_of(config).life
    yield "p2b lift", lift_debit(config.lift, 1)
    for noise_at in ("server", "learner"):
        for noise in ("laplace", "k-norm", "gaussian"):
            config = parse_config(_colin(noise_at=noise_at, noise=noise))
            yield f"colin {noise_at}, {noise}", release_guarantee(config.release, config.features, 10, None)
    config = parse_config(_colin(noise_at="learner", mechanism="noisy-reward"))
    yield "colin noisy-reward", release_guarantee(config.release, config.features, 10, None)
    config = parse_config(
        {
            "system": "pdap",
            "deployment": "words",
            "vendors": [{"name": "north", "items": {"capacity": 5}}],
            "features": {"dimension": 2},
        }
    )
    yield "pdap", epoch_guarantee(config)
    config = parse_config({"system": "pdol", "deployment": "words", "nodes": 2, "features": {"dimension": 4}})
    yield "pdol", plan_of(config.sharing, 4).guarantee()
    yield "bgt", bgt_guarantee(parse_config({"system": "bgt", "deployment": "words", "items": {"capacity": 5}}))


def _words(promise):
    return [promise.relation, promise.unit]


def test_what_debits_say_is_what_earlier_records_say():
    assert {name: _words(promise) for name, promise in _promises()} == json.loads(RECORDED.read_text(encoding="utf-8"))
