"""Every claim stands beside Google's dp-accounting: never below its PLD, never above it by more than a stated slack.

Which settings, and how they are found: `harness/settings.py`. What they claim and which mechanism they run:
`harness/cases.py`. What dp-accounting makes of that mechanism: `harness/oracle.py`.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any, get_args

import pytest

from hushstream.engine.noise.budget import FILTER_NAMES
from hushstream.privacy.amounts import DELTA_ONE, MICRO, Cost
from hushstream.systems.colin import configuration as colin
from hushstream.systems.p2b import configuration as p2b

pytestmark = pytest.mark.slow_statistics(
    keep=[
        "test_a_group_of_nodes_is_as_many_as_the_factorisation_says",
    ]
)

NUMERICAL = 1e-12
"""dp-accounting computes in floating point and truncates tails of 1e-15."""


@pytest.fixture(scope="module")
def cases(accountant: Any) -> Any:
    return accountant.cases.distinct(accountant.cases.cases_of(accountant.settings.all_settings()))


def least_delta(accountant: Any, case: Any, shorter: float = 0.0) -> float:
    """At the claimed epsilon, or at one that is shorter by a part of itself."""
    epsilon = case.cost.epsilon_micro / MICRO
    return accountant.oracle.least_delta(case.law, epsilon / (1 + shorter), epsilon / accountant.oracle.GRID)


def delta_of(case: Any) -> float:
    return case.cost.delta_units / DELTA_ONE


def is_below(accountant: Any, case: Any) -> bool:
    return least_delta(accountant, case) > delta_of(case) + NUMERICAL


def is_slack(accountant: Any, case: Any) -> bool:
    """Whether the claim could have been smaller by its slack."""
    if isinstance(case.law, accountant.oracle.Crowd | accountant.oracle.Shown):
        return delta_of(case) > (1 + case.slack) * least_delta(accountant, case) + NUMERICAL
    return least_delta(accountant, case, case.slack) <= max(delta_of(case), NUMERICAL)


def above_renyi(accountant: Any, case: Any) -> float:
    theirs = accountant.oracle.renyi_epsilon(case.law, delta_of(case), case.orders)
    return case.cost.epsilon_micro / MICRO / theirs - 1


def test_settings_of_every_kind_are_found(accountant):
    found = accountant.settings.all_settings()
    by = found.by_kind
    assert {"shop", "circle", "club"} <= {config.deployment for config in found.whole}
    assert {one.mode for one in by["ReleaseConfig"]} == set(get_args(p2b.ReleaseMode))
    assert {one.sums for one in by["ReleaseConfig"]} == set(get_args(p2b.SumsRelease))
    assert {one.sampling < 1 for one in by["ReleaseConfig"] if one.mode == "slot-sums"} == {True, False}
    assert {one.mechanism for one in by["ContinualConfig"]} == {"auto", *colin.MECHANISMS}
    assert {one.noise for one in by["ContinualConfig"]} == set(get_args(colin.NoiseLaw))
    assert {one.noise_at for one in by["ContinualConfig"]} == {"server", "learner"}
    assert {one.epochs > 1 for one in by["ContinualConfig"]} == {True, False}
    assert len(by["BudgetConfig"]) > 5
    assert {one.lifetime_slots > 1 for one in by["SlotConfig"]} == {True, False}
    assert len(by["MeasurementConfig"]) > 10
    assert sum(len(settings) for settings in by.values()) > 200


def test_every_law_and_every_filter_is_composed(accountant, cases):
    oracle = accountant.oracle
    laws = (oracle.Laplace, oracle.Gaussian, oracle.KNorm, oracle.Coin, oracle.Crowd, oracle.Shown, oracle.Both)
    assert {type(case.law) for case in cases} == set(laws)
    for name in FILTER_NAMES:
        assert [case for case in cases if case.name.startswith(f"{name},")]
    assert len(cases) > 150


def test_no_claim_is_below_what_a_privacy_loss_distribution_gives(accountant, cases):
    assert not [case for case in cases if is_below(accountant, case)]


def test_no_claim_is_above_it_by_more_than_its_slack(accountant, cases):
    held = [case for case in cases if case.slack is not None]
    assert len(held) > 80
    assert not [case for case in held if is_slack(accountant, case)]


def test_what_is_priced_by_rho_or_at_an_order_costs_what_renyi_divergences_give(accountant, cases):
    held = [case for case in cases if case.above_renyi is not None]
    assert len(held) > 30
    far = {case.name: round(above_renyi(accountant, case), 4) for case in held
           if not -1e-6 <= above_renyi(accountant, case) <= case.above_renyi}  # fmt: skip
    assert not far


def test_a_group_of_nodes_is_as_many_as_the_factorisation_says(accountant):
    """What is taken of large counters by their number of levels is so of small ones."""
    for release in accountant.settings.all_settings().by_kind["ContinualConfig"]:
        if release.mechanism in ("negative-digit", "binary") and release.leaves <= 256:
            plan = accountant.cases.plan_of(release, colin.FeatureConfig(dimension=3))
            assert accountant.cases.nodes_of(plan) <= plan.levels


# The comparison can fail.


def halved(oracle: Any, law: Any) -> Any:
    """The same mechanism with half the noise, or with half of what kept a report from being seen."""
    if isinstance(law, oracle.Laplace):
        return replace(law, scale=law.scale / 2)
    if isinstance(law, oracle.Both):
        return replace(law, other=halved(oracle, law.other))
    if isinstance(law, oracle.Gaussian | oracle.KNorm):
        return replace(law, distance=2 * law.distance)
    if isinstance(law, oracle.Crowd):
        return replace(law, kept=(1 + law.kept) / 2)
    if isinstance(law, oracle.Coin):
        return replace(law, chance=(1 + law.chance) / 2)
    return replace(law, kept=(1 + law.kept) / 2)


def test_half_the_noise_is_seen_in_every_case_that_has_a_slack(accountant, cases):
    held = [case for case in cases if case.slack is not None]
    missed = [case for case in held if not is_below(accountant, replace(case, law=halved(accountant.oracle, case.law)))]
    assert not missed


def test_a_claim_that_is_a_third_too_high_is_seen(accountant, cases):
    for case in cases:
        if case.slack is not None and case.slack < 1 / 3:
            cost = Cost(ceil(case.cost.epsilon_micro * 4 / 3), case.cost.delta_units)
            if isinstance(case.law, accountant.oracle.Crowd | accountant.oracle.Shown):
                cost = Cost(case.cost.epsilon_micro, case.cost.delta_units * 4 // 3)
            assert is_slack(accountant, replace(case, cost=cost)), case
