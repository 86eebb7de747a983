"""A run tells what each vendor earned beside what it would have earned alone; the same on both runners."""

import pytest

from hushstream.agents.worker.deployment import load
from hushstream.replay.run import options_of, run_with
from hushstream.schemas.errors import HushstreamError

OPTIONS = {"contexts": 1200, "first_window": 300, "seed": 5, "world": {"vendors": 3, "arms": 10}}


@pytest.fixture(scope="module")
def direct():
    return run_with(options_of("pdap", OPTIONS))


def test_every_vendor_is_told_beside_what_it_would_earn_alone(direct):
    assert [row["vendor"] for row in direct.rows.plain] == ["vendor-0", "vendor-1", "vendor-2"]
    vendors = direct.rows.plain
    assert sum(row["visits"] for row in vendors) == 1200
    assert sum(row["sent"] for row in vendors) == sum(row["received"] for row in vendors) > 0
    # The mean over vendors, each by its visits, is that of the curve's end.
    for name, line in (("click_rate", "shared"), ("alone", "vendors alone")):
        assert sum(row["visits"] * row[name] for row in vendors) / 1200 == pytest.approx(direct.curve.lines[line][-1])
    assert direct.curve.at == (300, 450, 675, 1013, 1200)


@pytest.mark.slow_statistics
def test_vendors_whose_items_suit_different_contexts_gain_by_sharing():
    # Seeded, so they are the same runs each time. One gains 12.9 points on average, with a deviation of 3.2 between
    # seeds (after 1,200 contexts only .6): a change that draws other noise brings the mean of four below 6 with chance
    # 1e-5, and no gain at all would come above it with chance 1e-4.
    found = [run_with(options_of("pdap", {**OPTIONS, "contexts": 4000, "seed": seed})) for seed in range(1, 5)]
    assert sum(one.facts["gain in points"] for one in found) / len(found) > 6


def test_what_was_published_follows_from_the_logs(direct):
    assert direct.verify is not None
    assert not any(check.changed for check in direct.verify.values())


@pytest.mark.process
@pytest.mark.slow
def test_a_stream_on_the_embedded_broker_tells_the_same(direct):
    stream = run_with(options_of("pdap", {"runner": "stream", **OPTIONS}))
    assert stream.rows == direct.rows
    assert stream.curve == direct.curve
    assert stream.verify is not None
    assert not any(check.changed for check in stream.verify.values())


def test_below_epsilon_1_vendors_declare_what_they_reach_alone_and_join_on_trial(tmp_path):
    config = {"privacy": {"epsilon": 0.1}, "vendors": [{"name": name, "items": {"capacity": 10}} for name in "abc"]}
    config["vendors"][2]["declared_rate"] = 0.9
    found = run_with(options_of("pdap", {**OPTIONS, "folder": tmp_path, "config": config}))
    deployed = load(tmp_path).core.config
    assert deployed.trial_share == 0.05
    rates = [vendor.declared_rate for vendor in deployed.vendors]
    # What a vendor reaches alone over 400 visits, twice: four standard deviations are .2.
    assert rates[:2] == pytest.approx([row["alone"] for row in found.rows.plain[:2]], abs=0.2)
    assert rates[2] == 0.9
    # At most the clean visits, a twentieth, leave: of 1,200, five standard deviations above 60.
    assert 0 < sum(row["sent"] for row in found.rows.plain) < 100


def test_a_world_numbers_its_items():
    vendors = [{"name": name, "items": {"capacity": 10, "named": True}} for name in ("here", "there")]
    with pytest.raises(HushstreamError, match=r"vendors\.items\.named: expected false in a replay"):
        run_with(options_of("pdap", {**OPTIONS, "config": {"vendors": vendors}}))


def test_a_world_without_vendors_is_refused_with_who_plays_it():
    with pytest.raises(HushstreamError, match="expected a world of vendors, got 'colin'; 'colin' is played by"):
        run_with(options_of("pdap", {"dataset": "colin"}))
