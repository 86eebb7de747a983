"""What a deployment promises, held to an accountant of others; and what it foretells."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from pydantic import TypeAdapter, ValidationError

from hushstream.engine.values import ConfigurationError
from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.systems.bgt.configuration import BgtConfig, ModelConfig, ReleaseConfig, ScaleConfig, bgt_digest
from hushstream.systems.bgt.price.advice import advise
from hushstream.systems.bgt.price.guarantee import epoch_guarantee
from hushstream.systems.bgt.price.sensitivity import deviation_of, rho_micro

NAN, INF = float("nan"), float("inf")


def config_of(epsilon: float, **release) -> BgtConfig:
    return BgtConfig("x", 1682, release=ReleaseConfig(epsilon=epsilon, **release))


@pytest.mark.parametrize(("epsilon", "rho"), [(10.0, 1.6702), (3.0, 0.2108), (1.0, 0.0283)])
def test_the_three_rounds_share_out_the_rho_of_epsilon_at_half_of_delta(epsilon: float, rho: float) -> None:
    config = config_of(epsilon)
    parts = [rho_micro(number, config.release) / 1e6 for number in range(3)]
    assert sum(parts) == pytest.approx(rho, abs=1e-4)
    assert [part / sum(parts) for part in parts] == pytest.approx([0.3, 0.3, 0.4], abs=1e-3)
    promise = epoch_guarantee(config)
    assert promise.cost.epsilon_micro <= epsilon * 1e6
    assert promise.cost.epsilon_micro > 0.999 * epsilon * 1e6
    assert promise.marks == ()


@pytest.mark.parametrize("epsilon", [10.0, 3.0, 1.0])
def test_accountants_of_others_find_no_more(epsilon: float) -> None:
    """dp-accounting composes Gaussian mechanisms of the noise that is drawn: RDP at all orders, and exact PLD."""
    config = config_of(epsilon)
    promise = epoch_guarantee(config)
    multipliers = [1 / math.sqrt(2 * rho_micro(number, config.release) / 1e6) for number in range(3)]
    assert multipliers[0] == pytest.approx(deviation_of(0, "items", config), rel=1e-12)
    orders = [1 + step / 50 for step in range(1, 1000)] + list(range(22, 2000, 5))
    for accountant, least in ((RdpAccountant(orders), 0.97), (PLDAccountant(), 0.85)):
        for multiplier in multipliers:
            accountant.compose(GaussianDpEvent(multiplier))
        theirs = accountant.get_epsilon(5e-6)
        assert least * epsilon < theirs <= promise.cost.epsilon_micro / 1e6 + 1e-6


def test_slots_of_a_user_against_other_slots_cost_four_times_the_rho() -> None:
    against = epoch_guarantee(config_of(10.0)).replace_one.epsilon_micro / 1e6
    orders = [1 + step / 50 for step in range(1, 1000)]
    accountant = RdpAccountant(orders)
    for number in range(3):
        accountant.compose(GaussianDpEvent(1 / math.sqrt(8 * rho_micro(number, config_of(10.0).release) / 1e6)))
    assert accountant.get_epsilon(5e-6) <= against + 1e-6
    assert against == pytest.approx(24.18, abs=0.01)


def test_sums_without_noise_promise_nothing() -> None:
    promise = epoch_guarantee(config_of(1.0, noise="exact"))
    assert promise.marks == (NOT_PRIVATE,)
    assert promise.unnoised == ("releases", "models", "rounds")
    assert promise.cost.delta_units == 1 << 80


def test_where_ratings_are_open_follows_from_the_deployment() -> None:
    assert any("operator" in fact for fact in epoch_guarantee(config_of(1.0)).not_protected)
    assert not any("operator" in fact for fact in epoch_guarantee(replace(config_of(1.0), kind="edge")).not_protected)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ReleaseConfig(epsilon=0), "privacy.epsilon"),
        (lambda: ReleaseConfig(epsilon=NAN), "privacy.epsilon"),
        (lambda: ReleaseConfig(epsilon=21), "from 0.1 to 20"),
        (lambda: ReleaseConfig(delta=0), "privacy.delta"),
        (lambda: ReleaseConfig(shares=(0.5, 0.5, 0.5)), "release.shares"),
        (lambda: ReleaseConfig(shares=(1.0, 0.0, 0.0)), "release.shares"),
        (lambda: ReleaseConfig(clip=1.5), "release.clip"),
        (lambda: ReleaseConfig(pairs=0), "release.pairs"),
        (lambda: ReleaseConfig(top=1), "release.top"),
        (lambda: ReleaseConfig(noise="none"), "release.mechanism"),
        (lambda: ModelConfig(edge_margin=0.9), "model.edge_margin"),
        (lambda: ModelConfig(rating_variance=INF), "model.rating_variance"),
        (lambda: ScaleConfig(5, 1), "scale.highest"),
        (lambda: ScaleConfig(middle=2), "scale.middle"),
        (lambda: BgtConfig("x", 1), "items.capacity"),
        (lambda: BgtConfig("x y", 10), "deployment"),
    ],
)
def test_impossible_configurations_are_refused_by_name(make, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        make()


def test_unknown_keys_are_refused_and_every_value_is_in_the_digest() -> None:
    adapter = TypeAdapter(BgtConfig)
    plain = {"deployment": "x", "items": 10}
    with pytest.raises(ValidationError, match="epsillon"):
        adapter.validate_python({**plain, "release": {"epsillon": 1}})
    known = {
        bgt_digest(adapter.validate_python({**plain, **more}))
        for more in (
            {},
            {"features": 1},
            {"model": {"factor_ridge": 0.5}},
            {"release": {"epsilon": 2}},
            {"scale": {"lowest": -1}},
        )
    }
    assert len(known) == 5


def test_advice_foretells_when_nothing_is_gained_and_when_factors_pay() -> None:
    """Ratios as in MovieLens-100K (.37 at epsilon 10: no factors) and in a set of 6,040 users (2.4: factors)."""
    small, large = advise(config_of(10.0), 943, 85), advise(config_of(10.0), 6040, 130)
    assert small.ratio == pytest.approx(0.366, abs=0.01)
    assert large.ratio == pytest.approx(2.35, abs=0.05)
    assert "will not be found" in small.as_text()
    assert "likely to be found" in large.as_text()
    assert large.shared < small.shared < small.local
    few = advise(config_of(0.2), 30, 10)
    assert not few.pays
    assert "nothing is gained over the device alone" in few.as_text()
    assert set(few.as_json()) == {"local_rmse", "shared_rmse", "gain", "pays", "factor_ratio"}
    with pytest.raises(ConfigurationError, match="users"):
        advise(config_of(1.0), 0, 10)
