"""No series is one user's, and what the public endpoint says does not follow from content."""

import numpy as np

from hushstream.agents.observe.metrics import METRICS, Labels, Metrics
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import role_work
from hushstream.engine.declare.outcomes import OUTCOMES
from hushstream.engine.noise.epoch_budget import NoiseEpoch
from hushstream.engine.noise.spending import ChargeKey
from hushstream.schemas import codec
from hushstream.systems.colin.system import declare as declare_colin
from hushstream.systems.p2b.lift import lift_figures
from hushstream.systems.p2b.system import declare as declare_p2b

ZONE_PRIVATE = {spec.name for spec in METRICS if spec.metric_class == "zone-private"}


def test_ten_times_the_users_make_no_further_series(played):
    few, many = played(6), played(60)
    for zone in (False, True):
        assert few.series(zone).keys() == many.series(zone).keys()
    decisions = ("learner", "hushstream_decisions_total", (("role", "learner"),))
    assert (few.series(False)[decisions], many.series(False)[decisions]) == (18, 180)


def test_lag_of_clicks_is_told_in_the_zone_alone(rigs, related):
    for system in (declare_p2b(rigs.make_system()), declare_colin(related.make_system())):
        lag_of_clicks_stays(role_work("learner", system, KeySource(seed=1)).reporting)


def lag_of_clicks_stays(learner):
    labels = Labels("learner", topics=("contexts", "clicks"), partitions=2, private_lag=learner.private_lag)
    metrics = Metrics(labels)
    metrics.lag("contexts", 0, 3)
    metrics.lag("clicks", 1, 5)
    public = {sample.labels["topic"] for family in metrics.public.collect() for sample in lagging(family)}
    zone = {sample.labels["topic"]: sample.value for family in metrics.zone.collect() for sample in lagging(family)}
    assert (public, zone) == ({"contexts"}, {"clicks": 5})


def lagging(family):
    return [sample for sample in family.samples if sample.name.endswith("consumer_lag_records")]


def test_a_partition_that_went_elsewhere_leaves_no_value_behind():
    metrics = Metrics(Labels("shuffler", topics=("reports",), partitions=2))
    for partition in (0, 1):
        metrics.lag("reports", partition, 7)
        metrics.role_gauges(partition, {"window_slots": 100})
    metrics.keep_partitions({1})
    left = {sample.labels["partition"] for f in metrics.public.collect() for s in [f.samples] for sample in s
            if "partition" in sample.labels}  # fmt: skip
    assert left == {"1"}


def test_no_metric_is_in_both_registries(played):
    deployment = played(2)
    for metrics in deployment.metrics.values():
        public = {family.name for family in metrics.public.collect()}
        zone = {family.name for family in metrics.zone.collect()}
        assert not public & zone
        assert {name.removesuffix("_total") for name in ZONE_PRIVATE} == zone


def test_outcomes_that_contents_or_single_users_move_are_the_zones():
    moved = {"decided", "explored", "value_missing", "value_at_end", "over_quota", "repeated_context", "parked"}
    moved |= {"forged_slot", "forgotten", "expired", "rejected"}
    assert {name for name, whose in OUTCOMES.items() if whose == "zone-private"} == moved


def test_endpoints_are_closed_and_on_loopback_unless_told_otherwise(tmp_path):
    settings = WorkerSettings(bootstrap="127.0.0.1:9092", role="learner", group="g", datadir=tmp_path)
    assert (settings.metrics_host, settings.metrics_port, settings.zone_metrics_port) == ("127.0.0.1", None, None)


def test_a_slot_pays_once_however_many_windows_there_are(played):
    found = played(12).series(zone=False)
    labels = (("partition", "0"), ("role", "shuffler"), ("scope_class", "slot"))
    spent, limit, price, refusing = (
        found["shuffler", f"hushstream_budget_{name}", labels]
        for name in ("spent_micro_epsilon", "limit_micro_epsilon", "next_charge_micro_epsilon", "refusing")
    )
    assert found["shuffler", "hushstream_windows_sealed_total", (("role", "shuffler"),)] >= 1
    assert (spent, limit, refusing) == (price, price, 0)


def test_windows_that_a_counter_pays_for_are_counted_until_it_refuses(played):
    labels = (("partition", "0"), ("role", "shuffler"), ("scope_class", "slot"))
    names = ("releases", "releases_limit", "refusing")
    for windows, expected in ((2, (1, 2, 0)), (1, (1, 1, 1))):
        found = played(12, release={"sums": "counter", "windows": windows, "window_slots": 100}).series(zone=False)
        assert tuple(found["shuffler", f"hushstream_budget_{name}", labels] for name in names) == expected


def test_the_newest_release_of_the_lift_is_on_the_public_page(played):
    lift = {"own": 0.1, "epsilon": 20.0, "decisions_per_user": 3, "every_seconds": 0.001, "releases": 64}
    found = played(60, measurement=lift, feedback={"attribution_window_seconds": 0.001})
    newest = codec.decode(dict(found.log.partitions())["lift", 0][-1].value)[1]
    sums = np.frombuffer(newest["sums"], "<i8")
    expected = lift_figures((sums, newest["variance"], newest["levels"]), 3)
    assert len(expected) == 9
    for name, value in expected.items():
        metric, _, group = name.rpartition("_")
        labels = (("group", group), ("partition", "0"), ("role", "learner"))
        assert found.series(zone=False)["learner", f"hushstream_{metric}", labels] == value


def test_without_a_counter_no_number_of_windows_is_stated(played):
    found = played(12, release={"sums": "fresh"}).series(zone=False)
    assert not [name for _, name, _ in found if name.startswith("hushstream_budget_releases")]


def test_a_reward_pays_once_for_every_epoch_up_to_the_limit_and_then_the_counter_refuses(related):
    system = declare_colin(related.make_system(release={"epochs": 3}))
    work = role_work("counter", system, KeySource(seed=1))
    machine = work.make_machine(0)
    price = system.guarantee().price.epsilon_micro
    seen = []
    for redraw in range(5):
        shown = work.reporting.gauges(machine)
        assert shown["reward_next_charge_micro_epsilon"] == price
        assert shown["reward_limit_micro_epsilon"] == 3 * price
        seen.append((shown["reward_spent_micro_epsilon"] // price, bool(shown["reward_refusing"])))
        machine.releases.epoch = NoiseEpoch(redraw, redraw)
        machine.spending.try_charge(ChargeKey(redraw, redraw=redraw))
    assert seen == [(0, False), (1, False), (2, False), (3, False), (3, True)]
