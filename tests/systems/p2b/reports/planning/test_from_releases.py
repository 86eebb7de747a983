"""A plan of a deployment that runs: spreads from released windows, and what more of something would bring."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hushstream.agents.observe.metric_table import role_gauges_of
from hushstream.engine.declare.plan import Audience, Plan, ReleasedAt
from hushstream.engine.records import InputRecord, InputSlice
from hushstream.features.schema import declare
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress, discrete_laplace, laplace_scale
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import ContextConfig, EncoderConfig, P2BConfig, ReleaseConfig
from hushstream.systems.p2b.contribution.feature_slots import pack_reports, unpack_reports
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.guarantee.promise import noise_variance
from hushstream.systems.p2b.machines.aggregator import AggregatorMachine
from hushstream.systems.p2b.machines.release import terms_of
from hushstream.systems.p2b.reports.planning.from_releases import read_windows
from hushstream.systems.p2b.reports.planning.plan import Forecaster, assumed_spreads
from hushstream.systems.p2b.shuffler.linear_sums import linear_sums, noised_sums
from hushstream.systems.p2b.system import AGGREGATOR
from hushstream.systems.p2b.system import declare as declare_system

ITEMS, EACH, DAY_MS = 8, 6_000, 86_400_000
SCHEMA = declare(
    {
        "country": {"kind": "category", "vocabulary": ["de", "fr", "it", "se"]},
        "device": {"kind": "category", "vocabulary": ["phone", "desk"]},
    }
)


def system_of(epsilon: float = 4.0) -> P2BSystem:
    release = ReleaseConfig(form="features", sums="fresh", window_slots=EACH, epsilon=epsilon)
    context = ContextConfig(declared=SCHEMA)
    return P2BSystem.declared(P2BConfig("shop", ITEMS, context, 4 * EACH, release=release, click_rate=0.3))


def released(system: P2BSystem, windows: int, country: float, seed: int = 1, changes: int = 1_000) -> list[ReleasedAt]:
    """Windows of visits that see every item alike, which differ by .3 on log-odds, and by country with another spread.

    One window a day; what is liked is drawn anew after every so many windows.
    """
    layout, draw = system.linear.layout, np.random.default_rng(seed)
    own, liked = draw.normal(0, 0.3, ITEMS), draw.normal(0, country, (ITEMS, 4))
    found = []
    for window in range(windows):
        if window and window % changes == 0:
            liked = draw.normal(0, country, (ITEMS, 4))
        countries, items = draw.integers(4, size=EACH), draw.integers(ITEMS, size=EACH)
        odds = -1.0 + own[items] + liked[items, countries]
        clicks = (draw.random(EACH) < 1 / (1 + np.exp(-odds))).astype(np.int64)
        names = ["de", "fr", "it", "se"]
        rows = b"".join(
            SCHEMA.encode({"country": names[one], "device": "phone" if draw.random() < 0.5 else "desk"}).row
            for one in countries
        )
        contents = pack_reports(layout, items, clicks, 0, layout.units_of(SCHEMA.blocks(SCHEMA.read(rows))))
        reports = unpack_reports(layout, contents)
        exact = linear_sums(layout, reports, np.ones(len(reports.held), dtype=np.bool_))
        numbers = laplace_scale(str(system.config.release.epsilon), layout.sensitivity)
        address = NoiseAddress("release-noise", "test", bytes(32), "p2b", "linear", {"seed": seed}, b"test", 0, window)
        noise = discrete_laplace(KeyedStream(seeded_key(seed, "shuffler"), address), *numbers, 2 * exact.ones.size)
        sums = noised_sums(exact, noise.reshape(2, *exact.ones.shape))
        own_fields = {
            "window_id": bytes([window]) * 16,
            "slots": EACH,
            "variance": noise_variance(system.config, 1),
            "private_as_stated": True,
            "ones": sums.ones.astype("<i8").tobytes(),
            "zeros": sums.zeros.astype("<i8").tobytes(),
            **system.price_fields,
        }
        value = codec.encode(system.form.crowd_record, {**terms_of(system).crowd, **own_fields})
        found.append((1_700_000_000_000 + window * DAY_MS, value))
    return found


def planned(system: P2BSystem, records: list[ReleasedAt], asked: Audience | None = None) -> Plan:
    view = declare_system(system).ahead
    assert view is not None
    assert view.topics == ("crowds",)
    return view.plan(records, asked, None)


@pytest.mark.parametrize("country", [0.4, 0.8])
def test_spreads_are_those_with_which_effects_were_drawn(country: float) -> None:
    """32 effects tell a spread within 40 % but for 1e-3 where noise and sampling are small, and a feature that says
    nothing is found to say next to nothing."""
    system = system_of()
    spreads = planned(system, released(system, 4, country)).facts["spreads"]
    assert spreads["country"] == pytest.approx(country, rel=0.4)
    assert spreads["items"] == pytest.approx(0.3, rel=0.7)
    assert spreads["device"] < 0.1


def test_it_says_what_more_of_each_would_bring_and_more_is_never_less() -> None:
    system = system_of(epsilon=0.5)
    records = released(system, 3, 0.4)
    plan = planned(system, records)
    facts = plan.facts
    assert facts["released"] == {"windows": 3, "slots": 3 * EACH, "slots_a_day": EACH}
    more = facts["more"]
    assert list(more) == [
        "now",
        "epsilon 1 in place of 0.5",
        "4 items in place of 8",
        "4 weeks more",
        "12 weeks more",
    ]
    now = more["now"]
    assert 0 < now["share"] < more["epsilon 1 in place of 0.5"]["share"]
    assert now["share"] < more["4 weeks more"]["share"] < more["12 weeks more"]["share"] <= 1
    assert now["share"] < more["4 items in place of 8"]["share"], "twice as many slots each"
    said = plan.as_text()
    assert "\nWhat more would bring\n" in said
    assert "12 weeks more still pay: continue" in said
    assert "from 3 windows of 18,000 slots" in said


def test_where_much_is_known_it_says_that_more_adds_nothing() -> None:
    system = system_of(epsilon=8.0)
    assert "12 weeks more add next to nothing" in planned(system, released(system, 6, 0.4)).as_text()


def test_a_window_counts_once_and_what_is_of_another_layout_not_at_all() -> None:
    system = system_of()
    records = released(system, 2, 0.4)
    (_, first), (_, second) = records
    name, fields = codec.decode(second)
    other = codec.encode(name, {**fields, "layout_digest": bytes(16), "window_id": b"o" * 16})
    windows = read_windows(system, [*records, (1, first), (2, other)])
    assert (windows.count, windows.slots, windows.slots_a_day) == (2, 2 * EACH, EACH)


def test_nothing_released_and_no_pace_are_said() -> None:
    system = system_of()
    with pytest.raises(HushstreamError, match="expected a window that was released, got none"):
        planned(system, [])
    one = released(system, 1, 0.4)
    with pytest.raises(HushstreamError, match="--users and --visits-per-user"):
        planned(system, one)
    in_a_minute = [(time_ms // 100_000, value) for time_ms, value in released(system, 2, 0.4)]
    with pytest.raises(HushstreamError, match=r"expected windows of at least an hour, .* got 2 windows of less"):
        planned(system, in_a_minute)
    facts = planned(system, one, Audience(20_000, 12)).facts
    assert facts["released"]["slots_a_day"] is None
    assert facts["more"]["now"]["share"] < facts["more"]["4 weeks more"]["share"]


def coded_system(codes: int = 8, **release: Any) -> P2BSystem:
    release = {"form": "codes", "sums": "fresh", "window_slots": EACH, "epsilon": 4.0, **release}
    return P2BSystem.fitted(
        P2BConfig(
            "coded",
            ITEMS,
            ContextConfig(4, 1),
            4 * EACH,
            release=ReleaseConfig(**release),
            encoder=EncoderConfig(codes),
        )
    )


def coded(system: P2BSystem, windows: int, spread: float, seed: int = 1) -> list[ReleasedAt]:
    """As `released`, of visits with one code each: items differ by .3 on log-odds, and by code with another spread."""
    draw, shape = np.random.default_rng(seed), system.form.shape
    own, liked = draw.normal(0, 0.3, ITEMS), draw.normal(0, spread, shape)
    found = []
    for window in range(windows):
        visits = draw.multinomial(EACH, np.full(shape[0] * ITEMS, 1 / shape[0] / ITEMS)).reshape(shape)
        ones = draw.binomial(visits, 1 / (1 + np.exp(1.0 - own - liked)))
        numbers = laplace_scale(str(system.config.release.epsilon), 1)
        address = NoiseAddress("release-noise", "test", bytes(32), "p2b", "codes", {"seed": seed}, b"test", 0, window)
        noise = discrete_laplace(KeyedStream(seeded_key(seed, "shuffler"), address), *numbers, 2 * visits.size)
        noised = np.stack([ones, visits - ones]) + noise.reshape(2, *shape)
        fields = {
            "window_id": bytes([window]) * 16,
            "slots": EACH,
            "variance": noise_variance(system.config, 1),
            "private_as_stated": True,
            "ones": noised[0].astype("<i8").tobytes(),
            "zeros": noised[1].astype("<i8").tobytes(),
            **system.price_fields,
        }
        value = codec.encode("Crowd", {**terms_of(system).crowd, **fields})
        found.append((1_700_000_000_000 + window * DAY_MS, value))
    return found


@pytest.mark.parametrize("spread", [0.4, 0.8])
def test_spreads_of_codes_are_those_of_contexts(spread: float) -> None:
    """64 cells tell a spread within 30 % but for 1e-3. Eight codes in three directions keep 3/4 of the variance, so
    contexts differ by more: by spread / sqrt(3/4)."""
    system = coded_system()
    plan = planned(system, coded(system, 4, spread))
    assert plan.facts["spreads"]["context"] == pytest.approx(spread / np.sqrt(0.75), rel=0.3)
    assert plan.facts["spreads"]["items"] == pytest.approx(0.3, rel=0.7)
    assert plan.facts["half_life_measured"] is None
    more = plan.facts["more"]
    assert 0 < more["now"]["share"] < more["12 weeks more"]["share"] <= 1
    assert "from 4 windows of 24,000 slots" in plan.as_text()


def test_codes_that_say_nothing_are_found_to_say_next_to_nothing() -> None:
    system = coded_system()
    assert planned(system, coded(system, 4, 0.0)).facts["spreads"]["context"] < 0.12


def test_tuples_have_no_such_plan() -> None:
    assert declare_system(coded_system(mode="tuples", epsilon=None, sampling=0.5, sums="auto")).ahead is None


def outlook_after(system: P2BSystem, windows: int, spread: float) -> dict[str, float]:
    """What the aggregator shows once it has published a version for each window."""
    made = coded if system.config.release.form == "codes" else released
    machine = AggregatorMachine(system, 0)
    assert AGGREGATOR.outlook(machine) is None
    records = [
        InputRecord(offset, time_ms, value) for offset, (time_ms, value) in enumerate(made(system, windows, spread))
    ]
    machine.fold([InputSlice("crowds", 0, 0, windows, tuple(records))])
    found = AGGREGATOR.outlook(machine)
    assert found is not None
    assert found[0] == machine.version == windows
    return dict(found[1]())


def test_the_aggregator_shows_what_was_promised_beside_what_is_released() -> None:
    system = system_of()
    few, many = (outlook_after(system, windows, 0.4) for windows in (1, 3))
    known = role_gauges_of(())
    for shown in (few, many):
        assert len(shown) == 9
        assert all(
            0 <= value <= 1 and known[name].metric.startswith("hushstream_outlook") for name, value in shown.items()
        )
        assert shown["gain_promised_low"] < shown["gain_promised_expected"] < shown["gain_promised_high"]
    assert few["gain_promised_expected"] < many["gain_promised_expected"]
    # As `plan` has it of the same configuration at as many slots.
    audience = Audience(4 * EACH, system.config.slot.after_interactions)
    ahead = Forecaster(system.config, audience, assumed_spreads(system.config))
    assert many["gain_promised_expected"] == ahead.of(ahead.after(3 * EACH, 3)).share
    # As `plan --deployment` has it of the same releases, but for the rate, which it takes from the first window.
    now = planned(system, released(system, 3, 0.4)).facts["more"]["now"]["share"]
    assert many["gain_found_expected"] == pytest.approx(now, abs=0.1)


def test_the_aggregator_shows_the_same_of_codes() -> None:
    """64 cells of 94 slots each: the spread of .05 is found below .2, the one of .8 above .5."""
    system = coded_system()
    small, large = (outlook_after(system, 2, spread) for spread in (0.05, 0.8))
    assert len(small) == 9
    assert small["gain_promised_expected"] == large["gain_promised_expected"]
    assert small["gain_found_expected"] < large["gain_found_expected"]
    assert small["reward_found"] == pytest.approx(0.27, abs=0.05)


def test_a_world_of_smaller_effects_than_promised_shows_a_smaller_gain() -> None:
    system = system_of(epsilon=0.5)
    small, large = (outlook_after(system, 2, country) for country in (0.05, 0.8))
    assert small["gain_promised_expected"] == large["gain_promised_expected"]
    assert small["gain_found_expected"] < large["gain_found_expected"]
    # 12,000 visits: the share of rewards is within .02 but for 1e-5, the noise is some ten slots.
    assert small["reward_found"] == pytest.approx(0.28, abs=0.03)


@pytest.mark.sweep(keep=["1"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_world_that_changes_is_told_from_one_that_stays(seed: int) -> None:
    """Effects of .4 that change after every third of twelve windows: some thirty deviations of what a window tells. In
    a still world a half-life foretells worse in each window. Three seeds of either kind, each with one outcome."""
    system = system_of()
    still, turning = (released(system, 12, 0.4, seed, changes) for changes in (1_000, 3))
    assert planned(system, still).facts["half_life_measured"] is None
    assert planned(system, turning).facts["half_life_measured"] in (1.0, 2.0, 4.0)
    assert "no drift is seen" in planned(system, still).as_text()
    assert "set model.half_life: " in planned(system, turning).as_text()
