"""A page of each kind from small fixed figures; the words of a guarantee are fixed, too, so that only pages change."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import numpy as np

from hushstream.ops.statement import Section, Statement
from hushstream.privacy.amounts import Cost
from hushstream.privacy.promises.promise import NOT_PRIVATE, Claim, Guarantee, Lifetime
from hushstream.replay.demo.page import page_html
from hushstream.replay.demo.page import policy as page_policy
from hushstream.replay.experiments.catalogue import page as experiment_page
from hushstream.replay.experiments.findings import Curve, Experiment, Findings
from hushstream.replay.experiments.rows import at_least, at_most
from hushstream.replay.logged.evaluate import Interval, PolicyValue
from hushstream.replay.logged.gains import LOGGING, OWN, SINGLE, Gains, Halves
from hushstream.replay.logged.log import INTERNAL_MARK
from hushstream.replay.report.parts import Comparison, RoleCheck, statement_page
from hushstream.replay.report.replayed import Column, RunCurve, RunResult, RunRows, page
from hushstream.replay.result import Headline
from hushstream.replay.studies.p2b.evaluation import (
    KEPT,
    PolicyEstimate,
    conclusion,
    policies_drawing,
    policy_rows,
    remarks,
)
from hushstream.replay.studies.p2b.play import CONDITION_NAMES, CONDITIONS
from hushstream.replay.studies.p2b.run import reached_text, reward_figures

NAMES = ("results.json", "figures.csv", "picture.png")
DIGEST = "018dbbf12c2a1711938c4169a0651d66"
VERIFY = {"learner": RoleCheck(2_741, ties=1), "shuffler": RoleCheck(36), "aggregator": RoleCheck(36)}
THROUGHPUT = {
    "seconds": 41.25,
    "decisions": 60_000.0,
    "decisions_per_second": 1454.5,
    "events_per_second": 2909.1,
    "decision_seconds_p50": 0.212,
    "decision_seconds_p99": 0.441,
    "peak_memory_bytes_learner": 181_400_000.0,
}
COUNTS = {"decided": 60_000, "reward_taken": 58_211, "release": 36, "records_releases": 37}
CLAIM = Claim(693_148, "up to constants", "a paper")
ENVIRONMENT = {"python": "3.11.2", "numpy": "2.2.0", "cores": 2}


def guarantee(**changes: Any) -> Guarantee:
    """As one slot of a person has it, and twelve in their life."""
    values = {
        "mechanism": "discrete Laplace noise on the sums of each cell",
        "relation": "zero-out: one slot is there, or a null in its place",
        "unit": "one report of one user",
        "cost": Cost(1_000_000),
        "replace_one": Cost(2_000_000),
        "lifetime": Lifetime(12, 1, Cost(12_000_000), Cost(24_000_000)),
        "sensitivity": 1,
        "norm": "L1",
        "zone": "shuffler",
        "deployment": "hosted",
        "truncation_units": 0,
        "not_protected": ("that a user contributes, and when their slots arrive",),
        "conditions": ("the shuffler's key stays in its zone", "no user contributes more than 12 slots"),
        "reproducible": True,
    }
    return Guarantee(**(values | changes))


COMMON: Mapping[str, Any] = {
    "runner": "direct",
    "seed": 3,
    "deployment": "replay",
    "config_digest": DIGEST,
    "privacy": guarantee(),
    "counts": COUNTS,
    "throughput": THROUGHPUT,
    "verify": VERIFY,
    "environment": ENVIRONMENT,
}


def p2b() -> str:
    """A replay of the main system with every picture."""
    rng = np.random.default_rng(7)
    rewards = {
        name: (rng.random((300, 12)) < chance + np.linspace(0.0, 0.3 if name == "cold" else 0.1, 12)).astype(np.float64)
        for name, chance in zip(CONDITIONS, (0.12, 0.5, 0.44), strict=True)
    }
    rows, curve = reward_figures(rewards)
    own = {"counts": {"slot": 1400, "rewarded": 32_000}, "dataset": "synthetic"}
    result = RunResult(
        **{**COMMON, **own},
        system="p2b",
        title="p2b on synthetic",
        facts={"release mode": "slot-sums", "sampling": 1.0},
        reached=reached_text(rewards, None),
        rows=rows,
        curve=curve,
        unprotected={CONDITION_NAMES["warm_nonprivate"]: NOT_PRIVATE},
    )
    return page(result, NAMES)


def live() -> str:
    """A live run, which shows no figure of content."""
    own = {"counts": {"slot": 1400}, "seed": None, "privacy": guarantee(reproducible=False)}
    rows, curve = reward_figures({})
    result = RunResult(
        **{**COMMON, **own},
        system="p2b",
        title="p2b on shop",
        dataset="shop",
        facts={"release mode": "slot-sums", "sampling": 0.5},
        rows=rows,
        curve=curve,
        remarks=("This is a live run: rewards are exact figures on content and are not shown.",),
        public=False,
    )
    return page(result, NAMES)


def vendors() -> str:
    """A replay of vendors: many columns, and a short curve."""
    at = (500, 750, 1125, 1688, 2532, 3798, 5000)
    named = [("vendor", ""), ("visits", ",d"), ("click_rate", ".1%"), ("alone", ".1%"), ("gain_points", "+.1f")]
    result = RunResult(
        **COMMON,
        system="pdap",
        title="P-DAP on vendors (synthetic): one counter",
        dataset="vendors (synthetic)",
        facts={"placement": "serving", "gain in points": 5.91},
        headline=Headline("click rate, shared over vendors alone with exact clicks", 1.127, 1.098, 1.156),
        rows=RunRows(
            "Click rate of the users of each vendor, and the same if it used only its own items and exact clicks.",
            tuple(Column(*one) for one in [*named, ("sent", ",d"), ("received", ",d")]),
            tuple(
                (f"vendor-{place}", visits, shared, alone, 100 * (shared - alone), 120 * place, 90 + 40 * place)
                for place, (visits, shared, alone) in enumerate(
                    ((1700, 0.61, 0.48), (1650, 0.57, 0.5), (1650, 0.52, 0.53))
                )
            ),
        ),
        curve=RunCurve(
            name="clicks",
            title="Click rate over the run",
            caption="Click rate of all answers so far, shared and apart.",
            what="Click rate of all answers so far",
            across="visits, all vendors",
            at=at,
            lines={
                "shared": tuple(0.34 + 0.22 * (1 - math.exp(-n / 1500)) for n in at),
                "vendors alone": tuple(0.35 + 0.15 * (1 - math.exp(-n / 900)) for n in at),
            },
        ),
        warnings=("INTERNAL, NOT PRIVATE",),
    )
    return page(result, NAMES)


def evaluation() -> str:
    """A replayed log with estimators that disagree."""
    estimates = []
    for policy, value in (("cold", 0.04), ("non-private", 0.061), ("warm_private", 0.056), ("popular", 0.05)):
        for place, estimator in enumerate(("replay", "ips", "snips", "dr")):
            mean, effective = value + 0.002 * place, 12.0 if (policy, estimator) == ("popular", "replay") else 812.0
            within = Interval(mean - 0.006, mean + 0.006)
            found = PolicyValue(estimator, mean, within, effective, ())
            estimates.append(PolicyEstimate(policy, found, 0.124))
    differences = {
        name: (gain, Interval(gain - 0.005, gain + 0.005)) for name, gain in ((LOGGING, 0.008), (OWN, 0.016))
    }
    gains = Gains(
        "warm_private",
        23_000,
        {LOGGING: 0.05, "cold": 0.042, "non-private": 0.063, "warm_private": 0.058},
        {**differences, SINGLE: None},
        {LOGGING: Halves((0.007, Interval(0.001, 0.013)), (-0.002, Interval(-0.012, 0.008)))},
        Comparison(0.762, 0.601, 0.94),
        (0.001, Interval(-0.002, 0.004)),
        {"popular": (12.0, 3)},
    )
    found = RunResult(
        system="p2b",
        title="What other policies would have earned: shop.csv",
        dataset="shop.csv",
        runner="direct",
        seed=3,
        deployment="evaluate",
        config_digest=DIGEST,
        privacy=guarantee(),
        counts={"decided": 60_000},
        throughput=THROUGHPUT,
        verify=VERIFY,
        environment=ENVIRONMENT,
        facts={"rows": 33_000, "users": 10_000, "users who contributed": 7_000},
        headline=Headline(KEPT, 0.762, 0.601, 0.94),
        verdict=conclusion(gains, guarantee()),
        rows=policy_rows(estimates),
        picture=policies_drawing(estimates),
        remarks=remarks(estimates),
        warnings=(INTERNAL_MARK,),
    )
    return page(found, NAMES)


def experiment() -> str:
    """An experiment of many panels, with targets."""
    rows = []
    for world, level in (("synthetic, gap 2", 0.3), ("synthetic, gap 8", 0.55)):
        for users in (1_000, 10_000, 100_000):
            spread = {"seeds": 5, "world": world, "users": users, "part": "grid"}
            rows += [
                {**spread, **_reward(level * share), "condition": condition}
                for condition, share in (("cold", 0.4), ("warm_nonprivate", 1.0))
            ]
            for mode, best in (("slot-sums", 0.9), ("tuples", 0.7), ("paper", 0.75)):
                for codes in (16, 64, 256, 1024):
                    reward = _reward(level * (best - 0.06 * abs(math.log2(codes / 64)) * 4 / math.log10(users)))
                    stated = {"mode": mode, "marks": NOT_PRIVATE * (mode == "paper"), "epsilon": 0.69, "delta": 0.5}
                    rows.append({**spread, **reward, **stated, "condition": "warm_private", "codes": codes})
    targets = [
        at_least("slot-sums over cold at 100,000 users", [2.25], "times", 2.0),
        at_most("slot-sums below non-private", [12.5], "%", 10.0),
    ]
    curve = Curve(
        title="Three releases: reward against the number of codes",
        values=("reward",),
        across="codes",
        by=("condition", "mode"),
        panels=("world", "users"),
        log="x",
    )
    found = Findings(
        rows,
        targets,
        worlds=("synthetic (gap 2)", "synthetic (gap 8)"),
        seeds=range(5),
        settings=("Users have 10 interactions each.", "Each contributes one slot."),
    )
    source = "Malekzadeh et al. 2020, Section 4"
    played = Experiment("p2b-codes", "Three releases side by side", source, lambda scale, progress: found, (curve,))
    return experiment_page(played, found, NAMES)


def _reward(mean: float) -> dict[str, float]:
    return {"reward": mean, "reward_low": mean - 0.02, "reward_high": mean + 0.02}


def statement() -> str:
    """A statement with a warning and a long fact."""
    trust = "central: the operator's learner workers see rewards in clear; everybody after them sees noised"
    found = Statement(
        deployment="shop",
        config_digest=DIGEST,
        sentence=guarantee().sentence(),
        odds=guarantee().odds(),
        verdict="Private as stated: one report of one user pays epsilon 1, one person in a whole life epsilon 12",
        marks=("REPRODUCIBLE, NOT PRIVATE",),
        warning="for one person as a whole nothing is guaranteed; only single rewards are protected",
        sections=(
            Section("Who, and what for", (("operator", "Shop Ltd"), ("purpose", "to recommend"))),
            Section("What that means, by an example", (("example", "Ann's report becomes at most 73.2 % likely."),)),
            Section("Who can read raw data", (("model of trust", trust),)),
            Section("Retention and erasure", (("topic contexts", "deleted after 7 days"),)),
        ),
        registry={"verdict": "Private as stated", "configuration digest": DIGEST},
        guarantee={},
        accepted_losses=None,
    )
    return statement_page(found)


def demo() -> str:
    """The page of the live demo, as it draws a state in which the learner was killed once."""
    rates = [0.2 + 0.15 * (1 - math.exp(-n / 3)) for n in range(8)]
    state = {
        "seconds": 120.0,
        "devices": False,
        "gateway": "http://127.0.0.1:8766",
        "visitors": 1830,
        "answered": 15_120,
        "alone": 96,
        "figures": {
            "windows": 31,
            "version": 31,
            "segments": [
                {"cell": "country: it", "item": "sunglasses", "reward": 0.31, "sure": 0.98},
                {"cell": "interests: reading", "item": "novel", "reward": 0.42, "sure": 1.0},
                {"cell": "hour: about 16:00", "item": "running shoes", "reward": 0.22, "sure": 0.55},
            ],
            "lift": {
                "groups": {
                    "model": {"shown": "the shared private model", "rate": 0.34, "ci95": 0.02},
                    "baseline": {"shown": "the application's own choice", "rate": 0.21, "ci95": 0.04},
                    "own": {"shown": "own learning without the shared model", "rate": 0.26, "ci95": 0.05},
                },
                "shared_private_model_over": {
                    "baseline": {"difference": 0.13, "ci95": 0.05, "decisions_more": 0},
                    "own": {"difference": 0.08, "ci95": 0.06, "decisions_more": 0},
                },
            },
            "spent": {
                "releases": 43,
                "charged": [{"epsilon": 1, "mechanism": "linear-sums"}, {"epsilon": 0.5, "mechanism": "lift"}],
                "limits": [{"epsilon": 1, "unit": "all reports of one user"}, {"epsilon": 0.5, "unit": "one user"}],
            },
        },
        "curve": [
            {
                "t": 15.0 * n,
                "groups": {
                    "model": {"rate": rate, "ci95": 0.2 / n},
                    "baseline": {"rate": 0.2, "ci95": 0.3 / n},
                    "own": {"rate": 0.25, "ci95": 0.3 / n},
                },
            }
            for n, rate in enumerate(rates)
            if n
        ],
        "learner": {"state": "running", "away_seconds": 4.1, "verified": {"equal": 2_814}, "equal": True},
        "killed_at": [60.0],
        "promised": guarantee().sentence(),
        "trouble": "",
        "tools": "--deployment demo/deployment --bootstrap 127.0.0.1:41873",
        "configuration": "demo/demo.yaml",
    }
    gateway = state["gateway"]
    asks = '<script src="/figures.js" defer></script>\n<script src="/visit.js" type="module"></script>\n'
    drawn = files("hushstream.replay.demo").joinpath("figures.js").read_text(encoding="utf-8")
    assert asks in page_html(gateway)
    assert 'addEventListener("load", look);' in drawn
    drawn = drawn.replace('addEventListener("load", look);', f"show({json.dumps(state)});")
    inline = page_policy(gateway).replace("'self'", "'unsafe-inline'", 1)
    return page_html(gateway).replace(asks, f"<script>{drawn}</script>\n").replace(page_policy(gateway), inline)


SPECIMENS: Mapping[str, Callable[[], str]] = {
    one.__name__: one for one in (p2b, live, vendors, evaluation, experiment, statement, demo)
}
