"""Configurations: what cannot be is refused, all that decides is in the digest, the number of codes follows."""

import math
from dataclasses import asdict, fields, is_dataclass, replace
from fractions import Fraction

import numpy as np
import pytest

from hushstream.engine.configuration import ExplorationConfig, PrivacyConfig
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.values import ConfigurationError
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import (
    ContextConfig,
    EncoderConfig,
    FeedbackConfig,
    LearnerConfig,
    MeasurementConfig,
    P2BConfig,
    PartitionConfig,
    ReleaseConfig,
    SlotConfig,
    UsersConfig,
    configuration_digest,
)
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.guarantee import auto_codes, release_guarantee
from hushstream.systems.p2b.slots import ContributionError
from hushstream.systems.p2b.system import KIND

NAN, INF = float("nan"), float("inf")
SECTIONS = {
    "context": ContextConfig,
    "learner": LearnerConfig,
    "encoder": EncoderConfig,
    "slot": SlotConfig,
    "feedback": FeedbackConfig,
    "release": ReleaseConfig,
    "partitions": PartitionConfig,
    "users": UsersConfig,
    "measurement": MeasurementConfig,
    "exploration": ExplorationConfig,
    "privacy": PrivacyConfig,
    "budget": BudgetConfig,
}
NEEDED = {"context": {"dimension": 4}, "budget": {"epsilon": 3.0, "delta": 1e-6}}
BAD = {
    "privacy.person": ["", "yes", None],
    "privacy.tainted": [[1], (None,)],
    "context.dimension": [1, 4097, 2.0, "10", True, None],
    "context.digits": [0, 4, 1.5],
    "learner.alpha": [-0.1, NAN, INF, "1", None, True],
    "learner.ridge": [0, -1.0, NAN, INF, "1"],
    "encoder.codes": [1, 65_537, 2.5, "many", None],
    "encoder.seed": [-1, 2**31, 0.5],
    "slot.after_interactions": [0, 1_000_001, 1.0],
    "slot.lifetime_slots": [0, 1_000_001, "1"],
    "slot.settle_seconds": [-1, NAN, INF, 1e300, "10"],
    "slot.period_seconds": [0, 0.0001, -1, NAN, INF, 1e300, None],
    "slot.renew_every_seconds": [0, 0.0001, -1, NAN, INF, 1e300, "1"],
    "feedback.attribution_window_seconds": [0, 0.0001, NAN, INF, 1e300, "5"],
    "feedback.early_feedback": [0, 10_000_001, 1.5],
    "feedback.remembered_events": [0, 100_000_001, "5"],
    "release.mode": ["laplace", "", None],
    "release.epsilon": [0, -1, 1e-9, 9.9e-7, 20.1, NAN, INF, "1"],
    "release.sampling": [0, -0.5, 1.1, NAN, "half"],
    "release.levels": [0, 257, 1.5],
    "release.threshold": [0, -1, 10_000_001, "automatic"],
    "release.target_delta": [0, 1, -1e-6, NAN, "small"],
    "release.window_slots": [0, 100_000_001, 10.0],
    "release.window_seconds": [0, -5, NAN, INF, 1e300, "60"],
    "release.sums": ["often", None, 1],
    "release.windows": [0, 2**30 + 1, 1.5, None],
    "release.form": ["rows", "", None],
    "measurement.of": ["none", True, None],
    "measurement.baseline": [-0.1, 0.51, NAN, INF, "some", True],
    "measurement.own": [-0.1, 0.51, NAN, INF, "some", True],
    "measurement.epsilon": [0, -1, 1e-9, 20.5, NAN, INF, None],
    "measurement.decisions_per_user": [0, 1_000_001, 1.5, "9"],
    "measurement.every_seconds": [0, -1.0, NAN, INF, "1"],
    "measurement.releases": [0, 2**30 + 1, 1.5, None],
    "measurement.guardrail": ["", "two words", "x" * 41, 7, True],
    "measurement.guardrail_share": [0, 1, -0.1, NAN, INF, "1", True],
    "measurement.guardrail_wait_seconds": [0, -1.0, NAN, INF, "1"],
    "exploration.choice": ["random", "", None],
    "exploration.share": [0, 9e-5, 1.1, -0.1, NAN, "some", None],
    "exploration.temperature": [0, 9e-5, 1001, -1, NAN, INF, "hot", None],
    "partitions.learner": [0, 4097, 1.0],
    "partitions.shuffler": [0, 4097, "2"],
    "users.contexts_per_period": [0, 1.5, "9", True],
    "users.period_seconds": [0, -1.0, NAN, INF, "1"],
    "users.early_feedback": [0, 10_000_001, 1.0, None],
    "users.expire_after_seconds": [0, -1.0, NAN, INF, "1"],
    "users.events": [1, "yes", None],
    "budget.epsilon": [0, -1, 1e-9, NAN, INF, 1e7, "1", None],
    "budget.delta": [0, 1, -1e-6, NAN, INF, "small", None],
    "budget.filter": ["advanced", "", None],
    "budget.lift": [-0.1, 1, 1.0, NAN, "half", None],
}
TOP = {
    "deployment": ["", "a b", "ä", "x" * 65, "a.b", None, 3],
    "arms": [1, 65_537, 2.0, "5"],
    "expected_slots": [0, 10**12 + 1, 1.5],
    "kind": ["cloud", None],
    "mode": ["dark", None],
    "expected_items": [0, 6, 1.5, "2"],
    "click_rate": [-0.1, 1.5, NAN, "rare"],
    "named_items": [True, 1, "yes", None],
    "items_from_requests": [True, 1, "yes", None],
    "item_features": [{"colour": {"kind": "boolean"}}],
    "half_life": [0, -1.0, NAN, 2.0, "1"],
    "model_valid_seconds": [0, -1.0, NAN, 3600.0, "1"],
    "system": ["p3b", None],
}


def key_of(name):
    """The key of an attribute, as messages say it."""
    return ".".join(KIND.language.key_of(tuple(name.split("."))))


def make(**changes):
    return P2BConfig(**{"deployment": "small", "arms": 5, "context": ContextConfig(4), "expected_slots": 40, **changes})


@pytest.mark.parametrize("name", BAD)
def test_an_impossible_value_names_its_field_what_it_takes_and_what_came(name):
    section, key = name.split(".")
    for value in BAD[name]:
        with pytest.raises(ConfigurationError) as caught:
            SECTIONS[section](**{**NEEDED.get(section, {}), key: value})
        message = str(caught.value)
        assert message.startswith(f"{key_of(name)}: expected ")
        assert message.endswith(f"got {value!r}")


@pytest.mark.parametrize("name", TOP)
def test_an_impossible_value_at_the_top_names_its_field(name):
    for value in TOP[name]:
        with pytest.raises(ConfigurationError, match=f"^{key_of(name)}: expected .*, got "):
            make(**{name: value})


def test_every_field_has_its_impossible_values_tested():
    named = {f"{section}.{field.name}" for section, kind in SECTIONS.items() for field in fields(kind)}
    # Declarations have messages of their own (tests/features); whether slots are sealed follows from the kind.
    assert named == {*BAD, "context.declared", "slot.sealed"}
    assert {field.name for field in fields(P2BConfig)} == {*TOP, *SECTIONS}


def test_sampling_of_one_is_for_slot_sums_only():
    for mode in ("tuples", "paper"):
        with pytest.raises(ConfigurationError, match=r"release\.sampling: expected below 1"):
            ReleaseConfig(mode=mode, sampling=1.0)


OTHERS = {
    "context.dimension": 5,
    "context.digits": 2,
    "learner.alpha": 0.5,
    "learner.ridge": 2.0,
    "encoder.codes": 6,
    "encoder.seed": 1,
    "slot.after_interactions": 4,
    "slot.lifetime_slots": 2,
    "slot.settle_seconds": 1.0,
    "slot.period_seconds": 10.0,
    "feedback.attribution_window_seconds": 1.0,
    "feedback.early_feedback": 5,
    "feedback.remembered_events": 5,
    "release.mode": "tuples",
    "release.epsilon": 0.5,
    "release.sampling": 0.25,
    "release.levels": 2,
    "release.threshold": 7,
    "release.target_delta": 1e-7,
    "release.window_slots": 5,
    "release.window_seconds": 9.0,
    "release.sums": "fresh",
    "release.windows": 5,
    "measurement.of": "answers",
    "measurement.baseline": 0.125,
    "measurement.own": 0.25,
    "measurement.epsilon": 0.75,
    "measurement.decisions_per_user": 3,
    "measurement.every_seconds": 60.0,
    "measurement.releases": 9,
    "measurement.guardrail_share": 0.5,
    "measurement.guardrail_wait_seconds": 90.0,
    "exploration.choice": "softmax",
    "exploration.share": 0.1,
    "exploration.temperature": 0.1,
    "partitions.learner": 2,
    "partitions.shuffler": 2,
    "users.contexts_per_period": 7,
    "users.period_seconds": 9.0,
    "users.early_feedback": 8,
    "users.expire_after_seconds": 9001.0,
    "deployment": "other",
    "arms": 6,
    "expected_slots": 41,
    "budget": BudgetConfig(30.0, 1e-6),
}


def test_every_value_and_every_centroid_moves_the_digest():
    base = make(release=ReleaseConfig(sampling=0.5))
    sealed = configuration_digest(base, b"centroids", b"key")
    seen = {configuration_digest(base, b"centroids"), configuration_digest(base, b"centroidt"), sealed}
    leaves = {
        f"{name}.{key}" if isinstance(value, dict) else name
        for name, value in asdict(base).items()
        for key in (value if isinstance(value, dict) else [None])
    }
    # Those that go with others alone: tests/systems/p2b (test_declared, test_forgetting, test_guardrail,
    # edge/test_renewal), and tests/gateway/test_personalizer.py.
    declared = {"context.declared", "release.form", "expected_items", "click_rate", "named_items", "item_features"}
    asked = {"items_from_requests", "users.events", "half_life", "model_valid_seconds", "slot.renew_every_seconds"}
    asked |= {"kind", "measurement.guardrail", "slot.sealed"}
    assert leaves - {"system", "mode", "privacy.person", "privacy.tainted"} - declared - asked == set(OTHERS)
    for name, value in OTHERS.items():
        section, _, key = name.partition(".")
        part = getattr(base, section)
        if name == "release.mode":
            part = ReleaseConfig(mode=value, sampling=0.5)
        changed = replace(base, **{section: replace(part, **{key: value}) if is_dataclass(part) else value})
        seen.add(configuration_digest(changed, b"centroids"))
    assert len(seen) == 3 + len(OTHERS)
    said = replace(base, privacy=PrivacyConfig("unprotected"), mode="shadow")
    assert configuration_digest(said, b"centroids") in seen, "the mode and words about the promise are in no digest"
    assert said == base


@pytest.mark.parametrize("mode", ["tuples", "paper"])
def test_an_epsilon_is_refused_where_the_sampling_makes_it(mode):
    """0.1 was once taken there, and what was released cost -ln(1 - 0.999) = 6.9."""
    with pytest.raises(
        ConfigurationError, match=rf"^privacy\.epsilon: expected none for mechanism {mode} .*, got 0\.1$"
    ):
        ReleaseConfig(mode=mode, sampling=0.999, epsilon=0.1)
    release = ReleaseConfig(mode=mode, sampling=0.999)
    assert release.slot_epsilon == pytest.approx(6.9078, abs=1e-4)
    promise = release_guarantee(make(release=release, encoder=EncoderConfig(codes=8)))
    assert promise.epsilon_micro == pytest.approx(1e6 * release.slot_epsilon, abs=1.5)


def test_an_epsilon_below_the_unit_in_which_it_is_counted_is_refused():
    """1e-9 was once charged as 1e-6, a thousand times as much, while its noise was that of 1e-9."""
    for made in (
        lambda: ReleaseConfig(epsilon=1e-9),
        lambda: MeasurementConfig(epsilon=1e-9),
        lambda: BudgetConfig(1e-9, 1e-6),
    ):
        with pytest.raises(ConfigurationError, match="at least 1e-06, the unit in which epsilon is counted"):
            made()
    assert ReleaseConfig(epsilon=1e-6).slot_epsilon == 1e-6


def test_a_whole_number_and_its_float_are_one_configuration():
    one = make(release=ReleaseConfig(epsilon=1, window_seconds=60), slot=SlotConfig(settle_seconds=10))
    two = make(release=ReleaseConfig(epsilon=1.0, window_seconds=60.0), slot=SlotConfig(settle_seconds=10.0))
    assert configuration_digest(one, b"") == configuration_digest(two, b"")


def test_an_encoder_of_another_shape_is_refused(rigs):
    config = rigs.make_system().config
    for shape in ((3, 4), (4, 5)):
        with pytest.raises(ConfigurationError, match=r"encoder: expected centroids of shape \(4, 4\)"):
            P2BSystem.of(config, np.ones(shape, np.int64))


def test_records_too_large_to_publish_are_refused_before_anything_runs():
    wide = np.full((64, 64), 1024, np.int64)
    with pytest.raises(ConfigurationError, match="expected a model"):
        P2BSystem.of(make(arms=64, context=ContextConfig(64), encoder=EncoderConfig(codes=64)), wide)
    many = np.full((4096, 4), 16_384, np.int64)
    with pytest.raises(ConfigurationError, match="expected the sums of a window"):
        P2BSystem.of(make(arms=32, encoder=EncoderConfig(codes=4096)), many)


def release(**values):
    return release_guarantee(make(release=ReleaseConfig(**values), slot=SlotConfig(lifetime_slots=3)))


def test_the_papers_mode_is_named_as_not_private():
    promised = release(mode="paper", sampling=0.5)
    assert not promised.private_as_stated
    assert promised.delta_units == 2**79


def test_configuration_errors_are_user_errors():
    assert issubclass(ConfigurationError, HushstreamError)


def test_state_does_not_expire_while_anything_of_it_waits():
    owed = 2 * 3600.0 + 1800.0
    with pytest.raises(ConfigurationError, match=r"users\.expire_after_seconds: expected more than .*9000.*, got 9000"):
        make(users=UsersConfig(expire_after_seconds=owed))
    assert make(users=UsersConfig(expire_after_seconds=owed + 1)).users.expire_after_seconds == owed + 1


def test_the_settings_that_were_simulated_get_the_codes_that_were_checked():
    assert auto_codes(10, 1400, 1.0) == 8
    assert auto_codes(10, 14_000, math.log(2)) == 16
    assert auto_codes(10, 20_000, math.log(2)) == 32
    assert auto_codes(10, 70_000, math.log(2)) == 32
    assert auto_codes(10, 500, 1.0) == 8
    assert auto_codes(20, 3000, 1.0) == 8


def test_more_slots_or_budget_never_give_fewer_codes_and_more_arms_or_windows_never_more():
    slots = [auto_codes(10, n, 1.0) for n in (1, 100, 1000, 10_000, 100_000, 10**9)]
    budgets = [auto_codes(10, 1400, epsilon) for epsilon in (1e-6, 0.1, 0.5, 1, 5, 1e3, 1e9)]
    arms = [auto_codes(arms, 1400, 1.0) for arms in (1, 5, 10, 50, 1000)]
    windows = [auto_codes(10, 1400, 1.0, windows=windows) for windows in (1, 7, 100)]
    assert slots == sorted(slots)
    assert budgets == sorted(budgets)
    assert arms == sorted(arms, reverse=True)
    assert windows == sorted(windows, reverse=True)
    assert slots[0] == budgets[0] == 2
    assert slots[-1] == budgets[-1] == 32


def test_finer_levels_cost_little():
    assert auto_codes(10, 1400, Fraction(1), levels=256) in (4, 8)


def test_codes_stay_within_a_few_a_dimension():
    for dimension in (2, 3, 6, 20):
        assert auto_codes(10, 10**9, 1.0, dimension=dimension) <= 4 * dimension


@pytest.mark.parametrize(
    "changed",
    [
        {"arms": 0},
        {"expected_slots": 0},
        {"epsilon": 0},
        {"epsilon": math.inf},
        {"levels": 0},
        {"dimension": 1},
    ],
)
def test_impossible_settings_are_refused(changed):
    settings = {"arms": 10, "expected_slots": 100, "epsilon": 1.0, "levels": 1, "dimension": 10} | changed
    with pytest.raises(ContributionError):
        auto_codes(**settings)
