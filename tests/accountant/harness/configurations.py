"""Random configurations of every built-in system, as plain values: the same ones for the same number, always.

Every option that a price depends on is drawn. Choices that have names (mechanisms, release modes, filters, ...) are
kept beside each configuration, so that a test can say that every one of them occurred. What settings refuse together is
not drawn; a budget may still turn out too small, which is a refusal that is checked as a figure is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

FILTERS = ("basic", "zcdp", "renyi")
BUDGETS = ("none", *FILTERS)
MEASURED = ({"own": 0.1}, {"baseline": 0.2, "own": 0.1}, {"of": "answers"})

CHOICES: Mapping[str, Mapping[str, frozenset[str]]] = {
    "p2b": {
        "mode": frozenset({"slot-sums", "tuples", "paper"}),
        "sums": frozenset({"auto", "fresh", "counter"}),
        "sampling": frozenset({"all", "some"}),
        "threshold": frozenset({"auto", "given"}),
        "levels": frozenset({"clicks", "several"}),
        "windows close": frozenset({"on counts", "on time too"}),
        "lift": frozenset({"none", "some", "guarded"}),
        "slots": frozenset({"one", "some", "many"}),
        "renewal": frozenset({"none", "some"}),
        "devices": frozenset({"one", "several"}),
        "budget": frozenset(BUDGETS),
    },
    "colin": {
        "mechanism": frozenset({"negative-digit", "binary", "blt", "noisy-reward", "exact"}),
        "noise": frozenset({"laplace", "k-norm", "gaussian"}),
        "noise_at": frozenset({"server", "learner"}),
        "horizon": frozenset({"auto", "given"}),
        "norm_l1": frozenset({"none", "given"}),
        "noisy reward": frozenset({"none", "coin", "laplace"}),
        "epochs": frozenset({"one", "several"}),
        "levels": frozenset({"clicks", "several"}),
        "budget": frozenset(BUDGETS),
    },
    "pdap": {
        "placement": frozenset({"serving", "home"}),
        "growth": frozenset({"none", "some"}),
        "levels": frozenset({"clicks", "several"}),
        "vendors": frozenset({"one", "several"}),
        "events": frozenset({"one", "several"}),
        "budget": frozenset(BUDGETS),
    },
    "pdol": {
        "counter": frozenset({"blt", "negative-digit", "exact"}),
        "domains": frozenset({"each node", "fewer"}),
        "sizes": frozenset({"one", "each"}),
        "place": frozenset({"released", "node"}),
        "records": frozenset({"one", "several"}),
        "epochs": frozenset({"one", "several"}),
        "budget": frozenset(BUDGETS),
    },
    "bgt": {
        "noise": frozenset({"gaussian", "exact"}),
        "shares": frozenset({"usual", "other"}),
        "epochs": frozenset({"one", "several"}),
        "top": frozenset({"fewer than items", "all items"}),
        "pairs": frozenset({"fewer than top", "no fewer"}),
        "budget": frozenset(BUDGETS),
    },
}
"""Of each system, every named choice."""


@dataclass(frozen=True)
class Drawn:
    """One configuration: its values as YAML has them, what was chosen, and (in p2b) how many devices a person has."""

    system: str
    number: int
    values: Mapping[str, Any]
    chosen: Mapping[str, str]
    devices: int = 1


def drawn(system: str, number: int) -> Drawn:
    """The configuration of this number."""
    draw = _Draw(f"{system} {number}")
    draw.number = number
    values, chosen = _OF[system](draw)
    devices = 1
    if system == "p2b":
        devices = draw.choice((1, 1, 2, 3))
        chosen["devices"] = "one" if devices == 1 else "several"
    return Drawn(system, number, {"deployment": "drawn", "system": system, **values}, chosen, devices)


class _Draw(random.Random):
    number = 0

    def between(self, low: float, high: float) -> float:
        """A number of three digits, its logarithm uniform."""
        return float(f"{math.exp(self.uniform(math.log(low), math.log(high))):.3g}")

    def whole(self, low: int, high: int) -> int:
        """A whole number, its logarithm uniform."""
        return min(high, max(low, round(math.exp(self.uniform(math.log(low), math.log(high + 1))))))

    def budget(self, price: float, share: float = 0.0, pure: bool = True) -> tuple[str, dict[str, Any] | None]:
        """None as often as each filter; some have room for nothing. A pure price that is converted needs more."""
        kind = self.choice(BUDGETS)
        if kind == "none":
            return kind, None
        room = self.between(*((2.5, 40.0) if pure and kind != "basic" else (0.8, 8.0))) * price
        delta = self.choice((1e-4, 1e-5, 1e-6, 3e-7))
        held_out = {"measurement": share} if share else {}
        return kind, {"epsilon": float(f"{room:.4g}"), "delta": delta, "filter": kind, **held_out}

    def few(self) -> int:
        return self.choice((1, 1, 2, 3, 7))


def _several(count: float, one: str = "one") -> str:
    return one if count == 1 else "several"


def _p2b(draw: _Draw) -> tuple[dict[str, Any], dict[str, str]]:
    mode = ("slot-sums", "tuples", "slot-sums", "slot-sums", "paper")[draw.number % 5]
    sums_mode = mode == "slot-sums"
    sampling = 1.0 if sums_mode and draw.random() < 0.5 else round(draw.uniform(0.05, 0.9), 3)
    levels = draw.choice((1, 1, 2, 5, draw.randint(3, 256)))
    timed = draw.random() < 0.3
    measured = draw.choice((True, True, False))
    release: dict[str, Any] = {
        "mechanism": mode,
        "sampling": sampling,
        "window_units": draw.whole(100, 20_000),
        "window_seconds": 3600.0 if timed else None,
        "sums": draw.choice(("auto", "fresh", "counter") if sums_mode else ("auto", "fresh")),
        "horizon": draw.whole(1, 1 << 20),
    }
    price = -math.log1p(-sampling) if sampling < 1 else 1.0
    privacy: dict[str, Any] = {}
    given = not sums_mode and draw.random() < 0.6
    if sums_mode:
        price = privacy["epsilon"] = draw.between(0.02, 15.0)
    elif given:
        release["threshold"] = draw.whole(2, 60)
    else:
        privacy["delta"] = draw.between(1e-8, 1e-2)
    lifted = measured and draw.random() < 0.45
    lift = {**draw.choice(MEASURED), "epsilon": draw.between(0.02, 3.0), "decisions_per_user": draw.whole(1, 60),
            "releases": draw.whole(1, 20_000)}  # fmt: skip
    guarded = lifted and lift.get("of") != "answers" and draw.number % 2 == 0
    if guarded:
        lift |= {"guardrail": "complained", "guardrail_share": draw.between(0.05, 0.9)}
    share = draw.choice((0.2, 0.35)) if lifted else 0.0
    # Both the lift's share and what is left for slots are to have room for something, and not for all.
    named, budget = draw.budget(max(price / (1 - share), lift["epsilon"] / share) if lifted else price, share)
    if not sums_mode:
        slots = draw.choice((1, 2, 4, 7) if budget is not None else (1, 2, 4, 7, 7, 70, 2_000))
    else:
        slots = draw.choice((1, 1, 2, 4, 7, 70, 2_000) if budget is None else (70, 2_000) if lifted else (4, 7, 70))
    if budget is not None and mode == "paper":
        named, budget = "none", None
    if budget is not None and mode == "tuples":
        # A crowd's delta has to fit, a few times where it is known.
        budget["delta"] = 0.02 if given else min(0.02, float(f"{privacy['delta'] * draw.between(1, 30):.3g}"))
    renewed = slots > 1 and draw.number % 2 == 0
    if renewed:
        privacy["renew_every_seconds"] = 86_400.0
    values = {
        "items": {"capacity": draw.randint(2, 20)},
        "features": {"dimension": 4},
        "expected_slots": draw.whole(1_000, 1_000_000),
        "encoder": {"codes": draw.choice((2, 8, 30))},
        "privacy": {**privacy, "units_per_person": slots, "lifetime": budget},
        "feedback": {"reward_levels": levels},
        "release": release,
        "measurement": lift if lifted else {},
        "partitions": {"shuffler": draw.choice((1, 2, 4))},
    }
    chosen = {
        "mode": mode,
        "sums": release["sums"],
        "sampling": "all" if sampling == 1 else "some",
        "threshold": "given" if given else "auto",
        "levels": _several(levels, "clicks"),
        "windows close": "on time too" if timed else "on counts",
        "lift": ("guarded" if guarded else "some") if lifted else "none",
        "renewal": "some" if renewed else "none",
        "slots": "one" if slots == 1 else ("some" if slots <= 64 else "many"),
        "budget": named,
    }
    return values, chosen


def _colin(draw: _Draw) -> tuple[dict[str, Any], dict[str, str]]:
    mechanism = draw.choice(
        ("negative-digit", "negative-digit", "binary", "blt", "noisy-reward", "noisy-reward", "exact")
    )
    noise = {"blt": "gaussian", "noisy-reward": "laplace"}.get(mechanism) or draw.choice(
        ("laplace", "k-norm", "gaussian")
    )
    noise_at = "server" if mechanism == "exact" else draw.choice(("server", "learner"))
    dimension = draw.whole(1, 12 if noise == "k-norm" else 60)
    norm = draw.between(0.2, 4.0)
    tight = draw.random() < 0.5
    rewards = draw.choice((1, draw.whole(2, 40), draw.whole(40, 4_000)))
    sized = draw.random() < 0.4
    epsilon, way = draw.between(0.02, 12.0), "none"
    epochs, levels = draw.few(), draw.choice((1, 1, 2, 10))
    if mechanism == "noisy-reward":
        # Of several levels Laplace noise has the smaller variance from epsilon 2.2 or so on.
        way = draw.choice(("coin", "laplace"))
        levels, epsilon = (1, epsilon) if way == "coin" else (draw.choice((2, 10)), draw.between(3.0, 12.0))
        # A life of many more is beyond e^100, where nothing is guaranteed whatever the tables leave out.
        rewards = rewards if way == "coin" else draw.randint(2, 8)
    named, budget = ("none", None) if mechanism == "exact" else draw.budget(epsilon, pure=noise != "gaussian")
    delta = draw.choice((1e-5, 1e-6, 1e-8))
    release = {
        "mechanism": mechanism,
        "noise": noise,
        "noise_at": noise_at,
        **({"horizon": rewards * draw.randint(1, 30)} if sized else {}),
    }
    if budget is not None and noise == "gaussian":
        budget["delta"] = 20 * delta
    privacy = {"epsilon": epsilon, "delta": delta, "units_per_person": rewards, "epochs": epochs, "lifetime": budget}
    features = {"dimension": dimension, "norm": norm}
    if tight:
        features["norm_l1"] = float(f"{norm * draw.uniform(0.5, 0.999) * math.sqrt(dimension):.4g}")
    values = {
        "items": {"capacity": draw.randint(1, 30)},
        "features": features,
        "privacy": privacy,
        "release": release,
        "feedback": {"reward_levels": levels},
    }
    chosen = {
        "mechanism": mechanism,
        "noise": noise,
        "noise_at": noise_at,
        "horizon": "given" if sized else "auto",
        "norm_l1": "given" if tight else "none",
        "noisy reward": way,
        "epochs": _several(epochs),
        "levels": _several(levels, "clicks"),
        "budget": named,
    }
    return values, chosen


def _pdap(draw: _Draw) -> tuple[dict[str, Any], dict[str, str]]:
    vendors, depth = draw.choice((1, 2, 3)), draw.randint(0, 3)
    growth = draw.choice((0.0, 0.0, 0.25, 0.5))
    levels = draw.choice((1, 1, 2, 5, 100))
    epsilon = draw.between(0.01, 8.0)
    events = draw.choice((1, 2, 10, 100))
    branching = draw.choice((2, 3))
    placement = draw.choice(("serving", "home"))
    named, budget = draw.budget(epsilon * branching ** (growth * depth))
    values = {
        "vendors": [{"name": f"v{number}", "items": {"capacity": draw.randint(1, 50)}} for number in range(vendors)],
        "features": {"dimension": draw.randint(1, 3)},
        "cells": {"branching": branching, "levels": depth},
        "privacy": {"epsilon": epsilon, "units_per_person": events, "lifetime": budget},
        "release": {"level_growth": growth, "placement": placement, "kappa": draw.between(0.5, 5.0)},
        "feedback": {"reward_levels": levels},
    }
    chosen = {
        "placement": placement,
        "growth": "some" if growth else "none",
        "levels": _several(levels, "clicks"),
        "vendors": _several(vendors),
        "events": _several(events),
        "budget": named,
    }
    return values, chosen


def _pdol(draw: _Draw) -> tuple[dict[str, Any], dict[str, str]]:
    counter = draw.choice(("blt", "blt", "blt", "negative-digit", "negative-digit", "exact"))
    place = draw.choice(("released", "node"))
    nodes, epochs = draw.randint(2, 12), draw.few()
    domains = draw.choice((None, None, draw.randint(1, nodes)))
    several = draw.random() < 0.4
    sizes = tuple(draw.whole(16, 256) for _ in range(nodes if domains is None else domains))
    epsilon, records = draw.between(0.05, 15.0), draw.choice((1, 1, 2, 5, 20))
    named, budget = ("none", None) if counter == "exact" else draw.budget(epsilon, pure=False)
    delta = draw.choice((1e-5, 1e-6, 1e-8))
    if budget is not None:
        budget["delta"] = 20 * delta
    dimension = draw.whole(1, 300)
    release = {
        "window_units": sizes if several else sizes[0],
        "horizon": draw.whole(1, 600),
        "domains": domains,
        "mechanism": counter,
    }
    values = {
        "nodes": nodes,
        "features": {"dimension": dimension},
        "privacy": {
            "epsilon": epsilon,
            "delta": delta,
            "units_per_person": records,
            "epochs": epochs,
            "lifetime": budget,
        },
        "release": release,
        "prediction": {"place": place},
    }
    chosen = {
        "counter": counter,
        "domains": "each node" if domains is None else "fewer",
        "sizes": "each" if several else "one",
        "place": place,
        "records": _several(records),
        "epochs": _several(epochs),
        "budget": named,
    }
    return values, chosen


def _bgt(draw: _Draw) -> tuple[dict[str, Any], dict[str, str]]:
    noise = draw.choice(("gaussian",) * 9 + ("exact",))
    usual = draw.random() < 0.4
    first, second = round(draw.uniform(0.05, 0.5), 3), round(draw.uniform(0.05, 0.4), 3)
    shares = (0.3, 0.3, 0.4) if usual else (first, second, round(1 - first - second, 3))
    items, top, pairs = draw.whole(2, 3_000), draw.whole(2, 300), draw.whole(1, 1_000)
    epsilon, epochs = draw.between(0.1, 20.0), draw.choice((1, 2, 3, 7))
    delta = draw.choice((1e-4, 1e-5, 1e-7))
    named, budget = ("none", None) if noise == "exact" else draw.budget(epsilon, pure=False)
    if budget is not None:
        budget["delta"] = draw.choice((1, 3, 20)) * delta
    values = {
        "items": {"capacity": items},
        "privacy": {"epsilon": epsilon, "delta": delta, "epochs": epochs, "lifetime": budget},
        "release": {
            "mechanism": noise,
            "shares": shares,
            "clip": round(draw.uniform(0.05, 1.0), 3),
            "factor_clip": round(draw.uniform(0.05, 1.0), 3),
            "count_weight": round(draw.uniform(0.01, 1.0), 3),
            "pairs": pairs,
            "top": top,
            "factors": draw.randint(1, 16),
        },
    }
    chosen = {
        "noise": noise,
        "shares": "usual" if usual else "other",
        "epochs": _several(epochs),
        "top": "fewer than items" if top < items else "all items",
        "pairs": "fewer than top" if pairs < min(top, items) else "no fewer",
        "budget": named,
    }
    return values, chosen


_OF: Mapping[str, Callable[[_Draw], tuple[dict[str, Any], dict[str, str]]]] = {
    "p2b": _p2b,
    "colin": _colin,
    "pdap": _pdap,
    "pdol": _pdol,
    "bgt": _bgt,
}
