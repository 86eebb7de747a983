"""Write the results that the device's TypeScript must give: ``deploy/clients/typescript/edge/golden.py [--check]``.

The Python agent (`hushstream.systems.p2b.edge.agent.EdgeAgent`) makes all of them from seeds: rows, blocks, units,
contents of slots, coins and report ids, scores, and whole lives of users. ``--check`` writes nothing and exits 1 when
the file differs. Scores depend on the processor, so they are compared with the same margin as decisions.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hushstream.engine.devices.sealing import Recipients
from hushstream.engine.devices.signing import SigningKeys
from hushstream.features.checks import BadValue
from hushstream.features.kinds import Outcome
from hushstream.features.schema import FeatureSchema
from hushstream.learners.exploration import EpsilonMixture, Softmax
from hushstream.learners.sparse import SparseModel
from hushstream.privacy.keys import Key
from hushstream.replay.report.committed import main as committed
from hushstream.systems.p2b.configuration import ContextConfig, P2BConfig, ReleaseConfig
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.edge.agent import EdgeAgent, EdgeTerms, TwoCandidates
from hushstream.systems.p2b.edge.policies import FeaturePolicy
from hushstream.systems.p2b.guarantee import layout_of_slots
from hushstream.systems.p2b.prepared import agreement_of
from hushstream.systems.p2b.server.estimate import cold_start
from hushstream.systems.p2b.slots import FeatureLayout, pack_null, pack_reports

TARGET = Path(__file__).parent / "tests" / "golden.json"
MARGIN = 1e-5
"""Scores that differ by at most this may be a tie but for rounding: either of the two arms is right."""

_TRACK = "private"
_ARMS, _LEVELS = 6, 3
_DECLARED: Mapping[str, Mapping[str, Any]] = {
    "age": {"kind": "number", "range": [16, 96]},
    "bot": {"kind": "boolean"},
    "country": {"kind": "category", "vocabulary": ["de", "fr", "se", "no", "日本", 'a"b\\', "ch"]},
    "device": {"kind": "category", "vocabulary": ["phone", "desk"]},
    "day": {"kind": "day_of_week"},
    "taste": {"kind": "embedding", "dimension": 9},
    "hour": {"kind": "time_of_day"},
    "past": {"kind": "histogram", "bins": 5},
    "spend": {"kind": "number", "range": [0.5, 1e16], "scale": "log", "nodes": 4},
    "tags": {"kind": "tags", "vocabulary": [f"t{number}" for number in range(11)], "most": 3},
    "age-by-country": {"kind": "cross", "of": ["country", "age"]},
    "day-by-hour": {"kind": "cross", "of": ["day", "hour"]},
    "bot-by-device": {"kind": "cross", "of": ["device", "bot"]},
}
_CORNERS: tuple[Mapping[str, Any], ...] = (
    {},
    {"age": None, "tags": []},
    {"age": 16, "spend": 0.5, "hour": 0, "day": 1},
    {"age": 96, "spend": 1e16, "hour": 23.9999, "day": 7},
    {"age": -1e300, "spend": 5e-324, "hour": -0.0001, "day": "Sun"},
    {"age": 1e300, "spend": 1.7e308, "hour": 1e6, "day": "MONDAY"},
    {"hour": "24:00", "country": "atlantis", "tags": ["t10", "none", "t10", "t0"]},
    {"hour": "7:5", "country": "日本", "tags": ["t9", "t8", "t7", "t6"], "bot": True},
    {"hour": "7:59", "country": 'a"b\\', "device": "desk", "bot": False, "tags": ["t3"]},
    {"taste": [0] * 9, "past": [0, 0, 0, 0, 0], "country": 7},
    {"taste": [1e300, -1e300, 0, 0, 0, 0, 0, 0, 1e299], "past": [1e300, 1, 0, 0, 1e300]},
    {"taste": [-0.33, 0.25, 1e-9, 0.5, -0.125, 0.3, 0.2, 0.1, 0.05], "past": [1, 1, 1, 0, 0]},
    {"age": 56.000000000001, "spend": 70710678.1, "hour": "03:59"},
)
_REFUSED: tuple[Mapping[str, Any], ...] = (
    {"unknown": 1},
    {"day-by-hour": 1},
    {"age": "31"},
    {"age": True},
    {"bot": 1},
    {"bot": "true"},
    {"country": 1.5},
    {"country": True},
    {"country": "x" * 129},
    {"country": "é" * 65},
    {"day": 0},
    {"day": 8},
    {"day": 1.5},
    {"day": "someday"},
    {"hour": "25"},
    {"hour": "1:60"},
    {"hour": "123:1"},
    {"hour": "-1:10"},
    {"hour": "25:00"},
    {"taste": [0.1] * 8},
    {"taste": ["0"] * 9},
    {"taste": "012345678"},
    {"past": [1, 1, -1, 1, 1]},
    {"past": [None] * 5},
    {"past": {}},
    {"tags": "t1"},
    {"tags": [True]},
    {"tags": [1.5]},
    {"tags": [None]},
)


def made() -> dict[str, Any]:
    """The whole content of the file."""
    config = config_of(_DECLARED, _ARMS, _LEVELS)
    layout = layout_of_slots(config)
    schema = layout.schema
    rng = random.Random(7)
    contexts = [dict(one) for one in _CORNERS] + [_drawn(rng) for _ in range(24)]
    models = [_model(layout, number) for number in range(2)]
    return {
        "margin": MARGIN,
        "agreement": agreement(config),
        "digests": {"features": schema.digest.hex(), "layout": layout.digest.hex()},
        "contexts": [_context(schema, layout, number, values) for number, values in enumerate(contexts)],
        "refused": [dict(values) for values in _REFUSED if _is_refused(schema, values)],
        "null": pack_null(layout).hex(),
        "keys": [_key(bytes((7 * seed + place) % 256 for place in range(32))) for seed in range(3)],
        "hashes": [_hash(size) for size in (0, 1, 3, 127, 128, 129, 255, 256, 257, 300)],
        "models": [_packed(model) for model in models],
        "scores": [_scores(layout, model, schema, contexts) for model in models],
        "lives": [_life(layout, models, schema, contexts, **terms) for terms in _LIVES],
    }


_LIVES: tuple[dict[str, Any], ...] = (
    {"name": "greedy, clicks preferred", "chance": 0.8, "lifetime_slots": 3},
    {"name": "mixture, drawn uniformly", "chance": None, "lifetime_slots": 2, "share": 0.2},
    {"name": "softmax, either", "chance": 0.5, "lifetime_slots": 3, "temperature": 0.05},
    {"name": "renewed, with a quota", "chance": 0.8, "lifetime_slots": 2, "renew_ms": 40_000, "quota": 9, "length": 4},
)


def config_of(declared: Mapping[str, Any], arms: int, levels: int = 1, slots: int = 4000) -> P2BConfig:
    """The settings of a deployment of devices."""
    return P2BConfig(
        deployment="golden",
        kind="edge",
        arms=arms,
        context=ContextConfig(declared=declared),
        expected_slots=slots,
        click_rate=0.05,
        release=ReleaseConfig(epsilon=1.0, levels=levels),
    )


def agreement(config: P2BConfig) -> dict[str, Any]:
    """The agreement of such a deployment, with keys that follow from a seed."""
    sealing, signing = Recipients.first(Key(bytes(range(32)))), SigningKeys.first(Key(bytes(range(1, 33))))
    made: dict[str, Any] = json.loads(agreement_of(P2BSystem.declared(config, sealing=sealing, signing=signing)))
    return made


def stamped(made: Mapping[str, Any]) -> dict[str, str]:
    """The digest that identifies an agreement's settings and keys."""
    canonical = made["canonical"].encode()
    keys = (made["sealing"]["public_key"], made["sealing"]["vouch_key"], made["signing_key"])
    said = len(canonical).to_bytes(8, "little") + canonical + bytes.fromhex("".join(keys))
    return {"configuration": hashlib.blake2b(said, digest_size=16, person=b"hush-config").hexdigest()}


def _drawn(rng: random.Random) -> dict[str, Any]:
    every = {
        "age": rng.choice([rng.uniform(0, 110), rng.randrange(16, 97)]),
        "bot": rng.random() < 0.3,
        "country": rng.choice(["de", "fr", "se", "no", "日本", "ch", "unheard"]),
        "device": rng.choice(["phone", "desk", "fridge"]),
        "day": rng.choice([*range(1, 8), "tue", "Saturday"]),
        "taste": [round(rng.gauss(0, 0.4), 6) for _ in range(9)],
        "hour": rng.choice([rng.uniform(-3, 30), f"{rng.randrange(24)}:{rng.randrange(60):02}"]),
        "past": [rng.choice([0, rng.random(), 7]) for _ in range(5)],
        "spend": math.exp(rng.uniform(-2, 38)),
        "tags": [f"t{rng.randrange(13)}" for _ in range(rng.randrange(6))],
    }
    return {name: value for name, value in every.items() if rng.random() < 0.85}


def _context(schema: FeatureSchema, layout: FeatureLayout, number: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """The forms of one context on its way into a slot."""
    row, outcomes = schema.encode(values)
    blocks = schema.blocks(schema.read(row))
    units = layout.units_of(blocks)
    arm, level, catalogue = number % _ARMS, number % (_LEVELS + 1), number * 1_000_003
    (content,) = pack_reports(layout, np.array([arm]), np.array([level]), catalogue, units)
    return {
        "values": values,
        "row": row.hex(),
        "outcomes": {name: Outcome(found).name.lower() for name, found in outcomes.items()},
        "cells": blocks.cells[0].tolist(),
        "parts": blocks.parts[0].tolist(),
        "wholes": blocks.wholes[0].tolist(),
        "learner": blocks.values[0].tolist(),
        "arm": arm,
        "level": level,
        "catalogue": catalogue,
        "units": units.units[0].tolist(),
        "content": content.hex(),
    }


def _is_refused(schema: FeatureSchema, values: Mapping[str, Any]) -> bool:
    try:
        schema.encode(values)
    except BadValue:
        return True
    raise SystemExit(f"expected values that Python refuses, got {sorted(values)}")


def _key(material: bytes) -> dict[str, Any]:
    key = Key(material)
    numbers = (0, 1, 255, 70_000, 2**40 + 3)
    return {
        "material": material.hex(),
        "prf": key.prf("seal-slot", b"\x00\xff", b"", "text").hex(),
        "digests": [key.digest("report-id", number.to_bytes(8, "little")).hex() for number in numbers],
        "numbers": list(numbers),
        "events": [
            [event, int.from_bytes(key.digest("exploration", event.encode()), "little") % 10**9]
            for event in ("", "page-1", "日" * 60)
        ],
        "words": [
            str(int.from_bytes(key.digest("slot-choice", number.to_bytes(8, "little"))[:8], "little"))
            for number in numbers
        ],
    }


def _hash(size: int) -> dict[str, Any]:
    message = bytes(place * place % 251 for place in range(size))
    key = bytes(range(32))
    return {
        "size": size,
        "keyed": hashlib.blake2b(message, digest_size=16, key=key).hexdigest(),
        "named": hashlib.blake2b(message, digest_size=16, person=b"hush-layout").hexdigest(),
    }


def _model(layout: FeatureLayout, number: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], float]:
    rng, shape = np.random.default_rng(number), (layout.arms, layout.cells)
    # Few digits keep the file small.
    means = np.round(rng.normal(0.05, 0.05, shape), 4)
    variances = np.round(rng.uniform(0.0005, 0.01, shape), 5)
    if number == 1:
        means[2], variances[2] = means[4], variances[4]  # two items alike: their ties are drawn
    return means, variances, 0.0819


def _packed(model: tuple[Any, Any, float]) -> dict[str, Any]:
    means, variances, reward_variance = model
    return {
        "means": means.ravel().tolist(),
        "variances": variances.ravel().tolist(),
        "reward_variance": reward_variance,
    }


def _policy(layout: FeatureLayout) -> FeaturePolicy:
    return FeaturePolicy(
        layout, SparseModel.of(*cold_start(layout.arms, layout.cells, len(layout.schema.table))), (_TRACK,)
    )


def _scores(layout: FeatureLayout, model: Any, schema: FeatureSchema, contexts: list[Any]) -> list[list[float]]:
    policy = _policy(layout)
    _adopt(policy, 1, model)
    rows = [np.frombuffer(schema.encode(values).row, np.uint8) for values in contexts]
    return [_floats(policy.scores(policy.shared(_TRACK).state, row)) for row in rows]


def _adopt(policy: FeaturePolicy, version: int, model: Any) -> None:
    means, variances, reward_variance = model
    policy.adopt(_TRACK, version, means, variances, np.array([reward_variance]))


def _floats(values: Any) -> list[float]:
    """Round to seven digits, which float32 can hold."""
    return [float(f"{float(value):.7g}") for value in values]


def _life(
    layout: FeatureLayout,
    models: list[Any],
    schema: FeatureSchema,
    contexts: list[Any],
    *,
    name: str,
    chance: float | None,
    lifetime_slots: int,
    share: float | None = None,
    temperature: float | None = None,
    renew_ms: int | None = None,
    quota: int | None = None,
    length: int = 5,
) -> dict[str, Any]:
    """A user's life: every call with its result."""
    policy = _policy(layout)
    exploration = EpsilonMixture(round(share * 10**9)) if share else Softmax(temperature) if temperature else None
    terms = EdgeTerms(
        policy=policy,
        after_interactions=length,
        lifetime_slots=lifetime_slots,
        levels=layout.levels,
        attribution_window_ms=9_000,
        contexts_per_period=quota,
        quota_period_ms=60_000,
        choice=TwoCandidates(chance),
        exploration=exploration,
        renew_ms=renew_ms,
    )
    material = hashlib.sha256(name.encode()).digest()
    agent = EdgeAgent(terms, Key(material), _TRACK)
    rows = [np.frombuffer(schema.encode(values).row, np.uint8) for values in contexts]
    calls = list(_calls(agent, policy, models, rows, random.Random(name)))
    dumped, ended = agent.dump(), max(call.get("now", 0) for call in calls)
    decided = {call["event"] for call in calls if call["call"] == "decide"}
    return {
        "name": name,
        "key": material.hex(),
        "terms": {
            "after_interactions": length,
            "lifetime_slots": lifetime_slots,
            "levels": layout.levels,
            "attribution_window_ms": 9_000,
            "contexts_per_period": quota,
            "quota_period_ms": 60_000,
            "renew_ms": renew_ms,
            "click_chance": chance,
            "exploration": {
                "choice": "epsilon" if share else "softmax" if temperature else "greedy",
                "share": share or 0.05,
                "temperature": temperature or 0.05,
            },
        },
        "calls": calls,
        "scores": [_floats(policy.scores(agent.current_state(), row)) for row in rows[:6]],
        "allowance": list(agent.allowance()),
        "resolved": [[item["slot"], item["index"]] for item in dumped["resolved"]],
        "candidates": sorted([item["slot"], item["count"]] for item in dumped["candidates"]),
        "open": sorted(agent.open),
        "answered": sorted(event for event in decided - agent.open.keys() if agent.known(event, ended)),
        "steps": base64.b64encode(dumped["state"][: 4 + 4 * int.from_bytes(dumped["state"][:4], "little")]).decode(),
    }


def _calls(
    agent: EdgeAgent, policy: FeaturePolicy, models: list[Any], rows: list[Any], rng: random.Random
) -> Iterator[dict[str, Any]]:
    now, taken = 1_000_000, 0
    for number in range(60):
        now += rng.choice([500, 2_000, 9_000, 11_000])
        if number in (8, 30):
            version = 1 if number == 8 else 2
            _adopt(policy, version, models[version - 1])
            yield {"call": "adopt", "version": version}
        over = [event for event, decision in agent.open.items() if decision.deadline_ms <= now]
        if over:
            yield {"call": "advance", "now": now, "outcomes": {event: str(agent.expire(event)) for event in over}}
        row, event = rng.randrange(len(rows)), f"e{number if rng.random() < 0.9 else max(0, number - 1)}"
        eligible = None if rng.random() < 0.7 else np.array([rng.random() < 0.6 for _ in range(_ARMS - 1)] + [True])
        yield _decided(agent, event, rows, row, now, eligible)
        if event in agent.open and rng.random() < 0.8:
            decision = agent.open[event]
            arm = decision.arm if rng.random() < 0.9 else rng.randrange(_ARMS)
            yield {"call": "shown", "event": event, "arm": arm, "outcome": str(agent.shown(event, arm))}
        if event in agent.open and rng.random() < 0.4:
            arm, reward = agent.open[event].arm, rng.choice([1.0, 0.5, 0.999, 0.0])
            outcome = str(agent.rewarded(event, arm, reward))
            yield {"call": "rewarded", "event": event, "arm": arm, "reward": reward, "outcome": outcome}
        while agent.sent < agent.due and rng.random() < 0.3:
            slot = agent.take_slot(now)
            taken += 1
            yield {"call": "slot", "now": now, "id": slot.report_id.hex(), "content": slot.content.hex()}
    if taken < 2:
        raise SystemExit(f"expected a life with slots, got {taken}")


def _decided(agent: EdgeAgent, event: str, rows: list[Any], row: int, now: int, eligible: Any) -> dict[str, Any]:
    said = {"call": "decide", "event": event, "row": row, "now": now, "eligible": None}
    if eligible is not None:
        said["eligible"] = [bool(one) for one in eligible]
    known = agent.known(event, now)
    if known is None and not agent.within_quota(now):
        choice = agent.decide_publicly(rows[row], eligible)
        return {**said, "call": "publicly", "arm": choice.arm, "billionths": choice.billionths}
    choice = known or agent.decide_new(event, rows[row], now, eligible)
    answer = {"arm": choice.arm, "billionths": choice.billionths, "version": choice.model_version}
    return {**said, **answer, "due": choice.slot_due, "repeated": choice.repeated}


def text() -> str:
    """The text that the file must have."""
    return json.dumps(made(), ensure_ascii=False, separators=(",", ":")) + "\n"


def main(made: Callable[[], str], target: Path, about: str | None) -> int:
    """Write the text of a file, or compare it within the margin; returns the exit code."""
    return committed(lambda: {target: made()}, about, same=lambda held, text: alike(json.loads(held), json.loads(text)))


def alike(one: Any, other: Any) -> bool:
    """Whether values are equal, or are floats within the margin."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= MARGIN * max(1.0, abs(one))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other) and type(one) is type(other)


if __name__ == "__main__":
    sys.exit(main(text, TARGET, __doc__))
