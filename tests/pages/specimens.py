"""A page of each kind from small fixed figures; the words of a guarantee are fixed, too, so that only pages change."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hushstream.ops.statement.statement import Section, Statement
from hushstream.replay.bench.rows import at_least, at_most
from hushstream.replay.experiments.catalogue import findings_page
from hushstream.replay.experiments.figures import Picture
from hushstream.replay.experiments.findings import Description, Findings
from hushstream.replay.logged.gains import Gain, Gains
from hushstream.replay.logged.intervals import Interval
from hushstream.replay.quickstart.page import page_html
from hushstream.replay.report.models import model_page
from hushstream.replay.report.replayed import page
from hushstream.replay.report.results import RoleCheck, StatedGuarantee
from hushstream.replay.report.statement import statement_page
from hushstream.replay.report.summaries import Comparison
from hushstream.replay.studies.bgt.report import BgtResult, RoundRow
from hushstream.replay.studies.bgt.report import present as bgt_shown
from hushstream.replay.studies.colin.report import CollaborativeResult, RegretRow
from hushstream.replay.studies.colin.report import present as colin_shown
from hushstream.replay.studies.p2b.evaluation.evaluation import Evaluation, PolicyRow
from hushstream.replay.studies.p2b.evaluation.page import evaluation_page
from hushstream.replay.studies.p2b.experiments.drawings import draw_modes
from hushstream.replay.studies.p2b.report.page import run_page
from hushstream.replay.studies.p2b.report.plots import plots
from hushstream.replay.studies.p2b.report.results import CONDITIONS, CellRow, ComparisonArm, RunResult
from hushstream.replay.studies.p2b.report.summaries import summarise
from hushstream.replay.studies.pdap.report import CurveRow, PdapResult, VendorRow
from hushstream.replay.studies.pdap.report import present as pdap_shown
from hushstream.replay.studies.pdol.play import Accuracy
from hushstream.replay.studies.pdol.report import AccuracyRow, PdolResult
from hushstream.replay.studies.pdol.report import present as pdol_shown

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
ENVIRONMENT = {"python": "3.11.2", "numpy": "2.2.0", "cores": 2}


def guarantee(**changes: Any) -> StatedGuarantee:
    """As one slot of a person has it."""
    values = {
        "epsilon_micro": 1_000_000,
        "delta_units": 0,
        "relation": "null-slot: one slot is there, or a null in its place",
        "unit": "one slot of one user",
        "replace_one": {"epsilon_micro": 2_000_000, "delta_units": 0},
        "public_participation": False,
        "lifetime": {
            "epsilon_micro": 12_000_000,
            "delta_units": 0,
            "exchange": {"epsilon_micro": 24_000_000, "delta_units": 0},
        },
        "deployment": "hosted",
        "reproducible": True,
        "private_as_stated": True,
        "phrase": (
            "nothing promised, as the noise comes from a seed; under a secret key at most e^24 about which of two "
            "things one person did, e^12 about whether they took part at all"
        ),
        "odds": [["of one slot of theirs", 0.731], ["of their whole life", 0.99999]],
        **changes,
    }
    return StatedGuarantee(
        values,
        (
            "Nobody learns more than a factor e^1 from all that this deployment releases about one slot of a person.",
            "What is released does not depend on who contributes beyond what is stated.",
            "Mechanism: discrete Laplace noise on the sums of each cell",
            "Unit: one slot of one user, which holds at most one interaction of theirs",
            "Delta: 0, as the noise has no bound that it could break",
            "Condition: the shuffler's key stays in its zone",
            "Condition: no user contributes more than 12 slots",
            "Not protected: that a user contributes, and when their slots arrive",
        ),
    )


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
    conditions, rows = {}, []
    for name, chance in zip(CONDITIONS, (0.12, 0.5, 0.44), strict=True):
        rising = chance + np.linspace(0.0, 0.3 if name == "cold" else 0.1, 12)
        conditions[name], of_condition = summarise(name, (rng.random((300, 12)) < rising).astype(np.float64))
        rows += of_condition
    exact = rng.poisson(30, (2, 80))
    noised = exact + rng.integers(-6, 7, (2, 80))
    cells = tuple(CellRow(i // 4, i % 4, *(int(v) for v in (*exact[:, i], *noised[:, i]))) for i in range(80))
    own = {"counts": {"slot": 1400, "rewarded": 32_000}, "system": "p2b", "dataset": "synthetic"}
    result = RunResult(
        **{**COMMON, **own},
        public_dataset=True,
        release_mode="slot-sums",
        sampling=1.0,
        conditions=conditions,
        rows=tuple(rows),
        cells=cells,
        comparison_arm=ComparisonArm("not-private", guarantee(private_as_stated=False)),
    )
    return run_page(result, plots(result), NAMES)


def live() -> str:
    """A live run, which shows no figure of content."""
    own = {"counts": {"slot": 1400}, "seed": None, "privacy": guarantee(reproducible=False)}
    result = RunResult(
        **{**COMMON, **own},
        system="p2b",
        dataset="shop",
        public_dataset=False,
        release_mode="slot-sums",
        sampling=0.5,
        marks=("SHORT RUN",),
    )
    return run_page(result, plots(result), NAMES)


def colin() -> str:
    """A collaborative replay."""
    events = range(200, 6001, 200)
    rows = tuple(RegretRow(n, 40 * math.log1p(n / 400), 0.031 * n) for n in events)
    result = CollaborativeResult(
        **COMMON,
        dataset="colin (uniform)",
        algorithm="colin",
        mechanism="negative-digit",
        noise_at="server",
        users=100,
        rows=rows,
        mean_reward=0.4375,
        comparison=Comparison(0.599, 0.531, 0.667),
    )
    return page(colin_shown(result), NAMES)


def pdap() -> str:
    """A replay of vendors."""
    vendors = tuple(
        VendorRow(f"vendor-{place}", visits, shared, alone, 120 * place, 90 + 40 * place)
        for place, (visits, shared, alone) in enumerate(((1700, 0.61, 0.48), (1650, 0.57, 0.5), (1650, 0.52, 0.53)))
    )
    curve = tuple(
        CurveRow(n, 0.34 + 0.22 * (1 - math.exp(-n / 1500)), 0.35 + 0.15 * (1 - math.exp(-n / 900)))
        for n in (500, 750, 1125, 1688, 2532, 3798, 5000)
    )
    result = PdapResult(
        **COMMON,
        dataset="vendors (synthetic)",
        placement="serving",
        vendors=vendors,
        curve=curve,
        comparison=Comparison(1.127, 1.098, 1.156),
    )
    return page(pdap_shown(result), NAMES)


def pdol() -> str:
    """A replay of labelled records."""
    rows = tuple(
        AccuracyRow(n, 0.5 + 0.31 * (1 - math.exp(-n / 2500)), 0.5 + 0.24 * (1 - math.exp(-n / 4000)))
        for n in range(1, 20_001, 400)
    )
    result = PdolResult(
        **COMMON,
        dataset="tmc2007",
        form="digit-tree sums, predicted by the published model",
        nodes=16,
        domains=4,
        records=20_000,
        rows=rows,
        accuracy=Accuracy(0.79, 0.81),
        isolated=Accuracy(0.7, 0.73),
        constant=0.66,
        comparison=Comparison(1.129, 1.117, 1.141),
    )
    return page(pdol_shown(result), NAMES)


def bgt() -> str:
    """A replay of ratings in three rounds."""
    result = BgtResult(
        **COMMON,
        dataset="ml-100k",
        users=943,
        items=1682,
        ratings=80_000,
        judged=20_000,
        slot_bytes=2068,
        baselines={
            "constant": (0.2812, 0.71, 0.5),
            "local": (0.2604, 0.74, 0.61),
            "local with features": (0.2561, 0.75, 0.63),
            "user and item bias": (0.2358, 0.77, 0.68),
        },
        rounds=(
            RoundRow(0, "items", 0.2443, 0.76, 0.66),
            RoundRow(1, "pairs", 0.2431, 0.76, 0.66),
            RoundRow(2, "factors", 0.2424, 0.77, 0.67),
        ),
        factors=2,
        ratio=1.31,
        comparison=Comparison(0.947, 0.941, 0.952),
    )
    return page(bgt_shown(result), NAMES)


def evaluation() -> str:
    """A replayed log with estimators that disagree."""
    rows = []
    for policy, value in (("cold", 0.04), ("warm_nonprivate", 0.061), ("warm_private", 0.056), ("popular", 0.05)):
        for place, estimator in enumerate(("replay", "ips", "snips", "dr")):
            given = None if (policy, estimator) == ("popular", "replay") else value + 0.002 * place
            within = None if given is None else Interval(given - 0.006, given + 0.006)
            few = () if given else ("12 effective rows are below 20: no value is given",)
            rows.append(PolicyRow(policy, estimator, given, within, 812.0, 33_000, 4_100, 9.5, few))
    judged = tuple(
        Gain(policy, 0.05 + gain, gain, Interval(gain - 0.005, gain + 0.005))
        for policy, gain in (("warm_nonprivate", 0.013), ("warm_private", 0.008), ("cold", -0.008))
    )
    found = Evaluation(
        log="shop.csv",
        runner="direct",
        seed=3,
        deployment="evaluate",
        config_digest=DIGEST,
        rows=33_000,
        contributors=7_000,
        users=10_000,
        policies=tuple(rows),
        gains=Gains(0.05, 23_000, judged, {"popular": (12.0, 3)}, (0.921, Interval(0.862, 0.98))),
        privacy=guarantee(),
        counts={"decided": 60_000},
        seconds=14.25,
        verify=VERIFY,
        internal=True,
        environment=ENVIRONMENT,
    )
    return evaluation_page(found, NAMES)


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
                    stated = {"mode": mode, "private_as_stated": mode != "paper"}
                    rows.append({**spread, **reward, **stated, "condition": "warm_private", "codes": codes})
    described = Description(
        "p2b-modes",
        "Three releases side by side",
        "Malekzadeh et al. 2020, Section 4",
        ("synthetic (gap 2)", "synthetic (gap 8)"),
        (0, 1, 2, 3, 4),
        ("Users have 10 interactions each.", "Each contributes one slot."),
    )
    targets = [
        at_least("slot-sums over cold at 100,000 users", [2.25], "times", 2.0),
        at_most("slot-sums below non-private", [12.5], "%", 10.0),
    ]
    picture = Picture("Three releases: reward against the number of codes", draw_modes)
    return findings_page(Findings(described, rows, targets), (picture,), NAMES)


def _reward(mean: float) -> dict[str, float]:
    return {"reward": mean, "reward_low": mean - 0.02, "reward_high": mean + 0.02}


def statement() -> str:
    """A statement with a warning and a long fact."""
    trust = "central: the operator's learner workers see rewards in clear; everybody after them sees noised"
    found = Statement(
        deployment="shop",
        config_digest=DIGEST,
        sentence=guarantee().sentence,
        odds=tuple(guarantee().odds),
        verdict="Private as stated: one slot of one user pays epsilon 1, one person in a whole life epsilon 12",
        marks=("REPRODUCIBLE, NOT PRIVATE",),
        warning="for one person as a whole nothing is promised; only single rewards are protected",
        sections=(
            Section("Who, and what for", (("operator", "Shop Ltd"), ("purpose", "to recommend"))),
            Section("What that means, by an example", (("example", "Ann's slot becomes at most 73.2 % likely."),)),
            Section("Who can read raw data", (("model of trust", trust),)),
            Section("Retention and erasure", (("topic contexts", "deleted after 7 days"),)),
        ),
        registry={"verdict": "Private as stated", "configuration digest": DIGEST},
        guarantee={},
        accepted_losses=None,
    )
    return statement_page(found)


def model() -> str:
    """A released model of items by name, of which some effects are sure and some are noise."""
    items = (("boots", "Winter boots"), ("tent", ""), ("novel", "A long title of a novel that nobody ever finished"))
    cells = ("country: de", "country: fr", "age: about 39", "interests: reading")
    effects = np.random.default_rng(4).normal(0.0, 0.03, (len(items), len(cells)))
    rewards, deviation = (0.21, 0.18, 0.12), 0.02
    rows = rewards + effects.T
    segments = [
        {
            "cell": cell,
            "item": items[order[0]][0],
            "reward": float(rows[place][order[0]]),
            "second": items[order[1]][0],
            "margin": float(rows[place][order[0]] - rows[place][order[1]]),
            "sure": 0.5 + 0.5 * math.tanh(20 * float(rows[place][order[0]] - rows[place][order[1]])),
        }
        for place, cell in enumerate(cells)
        for order in [np.argsort(-rows[place])]
    ]
    found = {
        "version": 12,
        "observations": 24_810.0,
        "private_as_stated": False,
        "noise_share": {"an item's own reward": 0.31, "country": 0.42, "age": 0.55, "interests": 0.28},
        "items": [
            {
                "item": item,
                **({"title": title} if title else {}),
                "reward": reward,
                "deviation": deviation,
                "effects": [
                    {"cell": cell, "effect": float(effect), "deviation": deviation}
                    for cell, effect in zip(cells, effects[row], strict=True)
                ],
            }
            for row, ((item, title), reward) in enumerate(zip(items, rewards, strict=True))
        ],
        "segments": segments,
    }
    return model_page(found, "shop")


def quickstart() -> str:
    """The live page of a quickstart, as it draws a state in which the learner was killed once."""
    bins = range(60)
    state = {
        "seconds": 120.0,
        "bin_seconds": 2.0,
        "series": [
            {"t": 2.0 * n, "model": None if 30 <= n < 34 else 0.1 + 0.6 * (1 - math.exp(-n / 12)), "holdout": [0.3, 4]}
            for n in bins
        ],
        "visitors": 1830,
        "answers": {"model": 15_120, "baseline": 1_640, "no_learner": 96},
        "version": 31,
        "published": {"crowds": 31},
        "learned": [
            {"feature": "country", "value": "it", "item": "sunglasses", "chance": 0.31, "sure": True},
            {"feature": "interests", "value": "reading", "item": "novel", "chance": 0.42, "sure": True},
            {"feature": "hour", "value": "14:00", "item": "running shoes", "chance": 0.22, "sure": False},
        ],
        "budget": {
            "paid": [{"epsilon": "1", "mechanism": "linear-sums"}, {"epsilon": "0.5", "mechanism": "lift"}],
            "releases": {"linear-sums": 31, "lift": 12},
            "limits": [{"limit": "1", "unit": "all slots of one user"}, {"limit": "0.5", "unit": "one user"}],
        },
        "learner": {"state": "running", "away_seconds": 4.1, "verified": {"equal": 2_814}, "equal": True},
        "killed_at": [60.0],
        "promised": guarantee().sentence,
        "trouble": "",
        "tools": "--deployment quickstart/deployment --bootstrap 127.0.0.1:41873",
        "folder": "quickstart",
    }
    asks = "\nlook();\n"
    assert asks in page_html()
    return page_html().replace(asks, f"\nshow({json.dumps(state)});\n")


SPECIMENS: Mapping[str, Callable[[], str]] = {
    one.__name__: one
    for one in (p2b, live, colin, pdap, pdol, bgt, evaluation, experiment, statement, model, quickstart)
}
