"""``hushstream audit --config``: what a configuration really releases is attacked, at its epsilon and horizon.

False alarms: at most 1e-6 each, by the confidence bounds. Power: that of the size of the noise is in each report.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from every_audit import halve_all_noise
from hushstream.agents.worker.deployment import artefacts_of, read_config
from hushstream.features.schema import declare
from hushstream.replay.audits.catalogue import audit_config
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.configuration import ReleaseConfig as BgtRelease
from hushstream.systems.catalogue import kind_of
from hushstream.systems.colin.configuration import CollaborativeConfig, ContinualConfig, FeatureConfig
from hushstream.systems.p2b.configuration import ContextConfig, EncoderConfig, P2BConfig, ReleaseConfig
from hushstream.systems.pdap.configuration import BlockConfig, CellConfig, PdapConfig, VendorConfig
from hushstream.systems.pdol.configuration import PdolConfig, RecordConfig, SharingConfig

pytestmark = [
    pytest.mark.slow,
    pytest.mark.slow_statistics(
        keep=[
            "test_many_windows_are_attacked_through_the_counter_that_auto_chooses",
            "test_rewards_that_are_noised_at_once_are_attacked_at_any_length_of_features",
            "test_users_counters_are_attacked_at_the_configured_horizon_and_epsilon[server-negative-digit-laplace]",
            "test_what_cannot_be_attacked_is_refused_by_name",
            "test_running_noise_that_is_halved_is_found_in_every_system[fresh windows]",
            "test_running_noise_that_is_halved_is_found_in_every_system[counters of users]",
            "test_running_noise_that_is_halved_is_found_in_every_system[sums of gradients]",
            "test_running_noise_that_is_halved_is_found_in_every_system[rounds]",
        ]
    ),
]

RUNS = 4_000
EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"


def shuffled(expected_slots=20_000, **release):
    return P2BConfig(
        deployment="audited",
        arms=4,
        context=ContextConfig(5),
        expected_slots=expected_slots,
        encoder=EncoderConfig(codes=10),
        release=ReleaseConfig(window_slots=100, **release),
    )


def collaborative(features=None, **release):
    return CollaborativeConfig(
        deployment="audited",
        arms=3,
        features=FeatureConfig(4) if features is None else features,
        release=ContinualConfig(**{"mechanism": "negative-digit", "rewards_per_user": 100, "horizon": 100, **release}),
    )


def test_many_windows_are_attacked_through_the_counter_that_auto_chooses():
    report = audit_config(shuffled(levels=2, windows=200), RUNS)
    assert report.rows[0].result.passed
    assert report.settings["sums"] == "counter"
    assert (report.settings["horizon"], report.settings["epsilon"]) == (200, 1.0)
    assert 1 < report.settings["steps"] <= 200
    assert "of at most 200 windows of the counter" in report.facts
    assert report.guarantee.cost == report.rows[0].result.claimed
    assert report.rows[0].result.strongest > 0.3, "the attack is worth its name"


def test_few_windows_are_attacked_one_by_one():
    report = audit_config(shuffled(expected_slots=100), RUNS)
    assert (report.settings["sums"], report.settings["horizon"], report.settings["steps"]) == ("fresh", None, 1)
    assert "Seen:" not in report.facts


@pytest.mark.parametrize("levels", [1, 2, 3, 255, 256])
def test_rewards_of_any_number_of_levels_are_attacked(levels):
    report = audit_config(shuffled(expected_slots=100, levels=levels), RUNS)
    assert report.rows[0].result.passed
    assert report.rows[0].result.strongest > 0.5


def test_sampled_slots_are_attacked_as_they_are_released():
    report = audit_config(shuffled(sampling=0.5, levels=2, windows=200), RUNS)
    assert report.rows[0].result.passed
    assert report.settings["sampling"] == 0.5
    assert report.guarantee.cost.epsilon_micro == 1_000_000


@pytest.mark.parametrize(
    ("noise_at", "mechanism", "noise"),
    [
        ("server", "negative-digit", "laplace"),
        ("learner", "binary", "laplace"),
        ("server", "negative-digit", "k-norm"),
        ("server", "binary", "gaussian"),
        ("server", "blt", "gaussian"),
    ],
)
def test_users_counters_are_attacked_at_the_configured_horizon_and_epsilon(noise_at, mechanism, noise):
    config = collaborative(noise_at=noise_at, mechanism=mechanism, noise=noise, epsilon=6.0)
    report = audit_config(config, 1_000)
    assert report.rows[0].result.passed
    assert (report.mechanism, report.settings["noise"], report.settings["noise_at"]) == (mechanism, noise, noise_at)
    assert (report.settings["horizon"], report.settings["epsilon"]) == (100, 6.0)
    assert "of at most 100 steps of the counter" in report.facts
    assert report.rows[0].result.strongest > 1


def test_rewards_that_are_noised_at_once_are_attacked_at_any_length_of_features():
    config = collaborative(FeatureConfig(3, norm=2.5), noise_at="learner", mechanism="noisy-reward", epsilon=2.5)
    report = audit_config(config, RUNS)
    assert report.rows[0].result.passed
    assert 1.5 < report.rows[0].result.strongest <= 2.5


@pytest.mark.parametrize(
    "features",
    [FeatureConfig(1), FeatureConfig(3, norm=0.7), FeatureConfig(6, norm_l1=1.3), FeatureConfig(5, 1.0, 0.4)],
)
@pytest.mark.parametrize("noise", ["laplace", "k-norm", "gaussian"])
def test_features_of_any_bounds_are_attacked(features, noise):
    config = collaborative(features, noise=noise, epsilon=8.0, mechanism="binary", horizon=3, rewards_per_user=3)
    assert audit_config(config, 200).rows[0].result.passed


@pytest.mark.timeout(900)
def test_long_features_with_hardly_any_epsilon_take_no_more_room_than_there_is():
    """The curve of so wide a vector would be some 10^9 numbers; its bound is 0, and the claim's own bound stands."""
    config = collaborative(FeatureConfig(200), noise="k-norm", epsilon=0.1, horizon=1 << 20)
    result = audit_config(config, 100).rows[0].result
    assert result.passed
    assert result.calibrated_lower_bound == 0


def test_a_long_counter_is_attacked_by_its_first_steps():
    config = collaborative(horizon=1 << 20, rewards_per_user=1_000)
    report = audit_config(config, 1_000)
    assert report.settings["horizon"] == 1 << 20
    assert report.settings["steps"] < 10_000
    assert "with the noise for all of them" in report.facts


def test_what_cannot_be_attacked_is_refused_by_name():
    with pytest.raises(HushstreamError, match=r"release.mechanism slot-sums.*--only tuples"):
        audit_config(shuffled(mode="tuples", sampling=0.5))
    exact = replace(collaborative(), release=ContinualConfig(mechanism="exact"))
    with pytest.raises(HushstreamError, match=r"release.mechanism that adds noise, got exact"):
        audit_config(exact)
    counter = ContinualConfig(mechanism="negative-digit", noise_at="learner")
    wide = CollaborativeConfig("wide", 1, FeatureConfig(500), release=counter)
    with pytest.raises(HushstreamError, match=r"at most \d+ runs of this configuration.*--runs"):
        audit_config(wide, 100_000)
    with pytest.raises(HushstreamError, match="100 to 1000000 runs"):
        audit_config(collaborative(), 5)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_is_attacked_at_the_price_that_its_guarantee_states(path):
    config, artefacts = read_config(path), artefacts_of(path.parent)
    report = audit_config(config, 100)
    stated = kind_of(config.system).guarantee(config, artefacts)
    assert report.rows[0].result.claimed == report.guarantee.cost == stated.cost
    assert report.passed


def test_an_attack_that_saw_nothing_says_so_and_what_it_would_have_seen():
    club = read_config(EXAMPLES / "club.yaml")
    release = replace(club.release, mechanism="negative-digit", epsilon=0.1)
    report = audit_config(replace(club, release=release), 100)
    neighbours, size = report.rows
    assert neighbours.result.strongest == 0
    assert neighbours.power == "-" or _least(neighbours) > 1, "two neighbours at epsilon .1 in a hundred runs"
    assert 0.1 < _least(size) < 0.11, "the size of the noise shows what neighbours do not"
    assert 0.09 < size.result.strongest <= 0.1
    assert report.as_json()["audits"][1]["power"] == size.power


def _least(row):
    """The epsilon that a row finds."""
    return float(row.power.removeprefix("epsilon "))


def declared():
    features = {"country": {"kind": "category", "vocabulary": ["de", "fr", "gb"]}}
    return P2BConfig(
        deployment="audited",
        arms=4,
        context=ContextConfig(declared=declare(features)),
        expected_slots=1_000,
        release=ReleaseConfig(window_slots=100, epsilon=0.5),
    )


def pdol(**changes):
    sharing = SharingConfig(epsilon=0.5, delta=1e-7, slots_per_release=40, horizon=6)
    return PdolConfig("audited", 4, **{"records": RecordConfig(60), "sharing": sharing, **changes})


def vendors(**release):
    cells = CellConfig(branching=2, levels=2)
    return PdapConfig("audited", (VendorConfig("one", 9),) * 1, 2, cells=cells, release=BlockConfig(**release))


SYSTEMS = {
    "fresh windows": shuffled(expected_slots=100, epsilon=0.5),
    "windows of declared features": declared(),
    "counted windows": shuffled(levels=2, windows=200, epsilon=0.5),
    "sampled windows": shuffled(expected_slots=100, sampling=0.5, epsilon=0.5),
    "counters of users": collaborative(epsilon=0.5),
    "counters at the edge": collaborative(noise_at="learner", mechanism="binary", noise="gaussian", epsilon=0.5),
    "lengths": collaborative(noise="k-norm", epsilon=0.5),
    "noisy rewards": collaborative(noise_at="learner", mechanism="noisy-reward", epsilon=2.5, reward_levels=20),
    "sums of gradients": pdol(),
    "a tree of gradients": pdol(sharing=SharingConfig("negative-digit", 0.5, 1e-7, 40, 6)),
    "blocks": vendors(epsilon=0.5, reward_levels=3),
    "blocks of growing levels": vendors(epsilon=0.5, level_growth=0.5),
    "rounds": BgtConfig("audited", 90, release=BgtRelease(epsilon=0.5, pairs=40, top=60, shares=(0.2, 0.5, 0.3))),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_running_noise_that_is_halved_is_found_in_every_system(name, monkeypatch):
    """At epsilon .5, where two neighbours hardly differ: 20,000 draws of half the size are some 100 deviations away.

    An audit of the product fails once in a million runs.
    """
    config = SYSTEMS[name]
    sound = audit_config(config, 100)
    assert sound.passed, sound.rows
    size = sound.rows[1]
    assert _least(size) < 1.1 * size.result.claimed.epsilon_micro / 1e6
    assert size.result.strongest > 0.9 * size.result.claimed.epsilon_micro / 1e6, "and not by more noise"
    halve_all_noise(monkeypatch)
    broken = audit_config(config, 100)
    assert not broken.passed
    assert "EXCEEDS the claim" in [row.verdict for row in broken.rows]


def test_what_is_attacked_is_what_was_configured():
    settings = {name: audit_config(config, 100).settings for name, config in SYSTEMS.items()}
    rounds = settings["rounds"]
    assert (rounds["epsilon"], rounds["items"], rounds["pairs"], rounds["top"]) == (0.5, 90, 40, 60)
    gradients = settings["sums of gradients"]
    assert (gradients["dimension"], gradients["slots"], gradients["delta"]) == (60, 40, 1e-7)
    assert (gradients["horizon"], gradients["releases"]) == (6, 6)
    assert (settings["blocks"]["items"], settings["blocks"]["reward_levels"], settings["blocks"]["least"]) == (9, 3, 6)
    deepest = settings["blocks of growing levels"]
    assert (deepest["level"], deepest["epsilon"]) == (2, 1.0)


def test_what_is_left_out_is_said_with_why():
    config = BgtConfig("audited", 50_000, features=3, release=BgtRelease(top=60))
    report = audit_config(config, 100)
    assert report.settings["items"] == 4_096
    assert "Left out: 45904 items, as each sum has noise of its own" in report.facts
    wide = audit_config(pdol(records=RecordConfig(9_000)), 100)
    assert wide.settings["dimension"] == 512
    assert "8488 features, as each sum has noise of its own" in wide.facts
    assert wide.passed
