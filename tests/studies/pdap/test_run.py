"""A run tells what each vendor earned beside what it would have earned alone; the same on both runners."""

from __future__ import annotations

import json

import pytest

from hushstream.replay.report.replayed import write
from hushstream.replay.run import options_of, run_with
from hushstream.replay.studies.pdap.report import present
from hushstream.schemas.errors import HushstreamError

OPTIONS = {"contexts": 1200, "first_window": 300, "seed": 5, "world": {"vendors": 3, "arms": 10}}


@pytest.fixture(scope="module")
def direct():
    return run_with(options_of("pdap", OPTIONS))


def test_every_vendor_is_told_beside_what_it_would_earn_alone(direct):
    assert [row.vendor for row in direct.vendors] == ["vendor-0", "vendor-1", "vendor-2"]
    assert sum(row.visits for row in direct.vendors) == 1200
    assert sum(row.sent for row in direct.vendors) == sum(row.received for row in direct.vendors) > 0
    # The mean over vendors, each by its visits, is that of the curve's end.
    for name in ("shared", "alone"):
        whole = sum(row.visits * getattr(row, name) for row in direct.vendors) / 1200
        assert whole == pytest.approx(getattr(direct.curve[-1], name))
    assert [row.contexts for row in direct.curve] == [300, 450, 675, 1013, 1200]


@pytest.mark.slow_statistics
def test_vendors_whose_items_suit_different_contexts_gain_by_sharing():
    # Seeded, so they are the same runs each time. One gains 7.2 points on average, with a deviation of 2.6 from seed to
    # seed: a change that draws other noise brings the mean of eight below 4 with chance 2e-4,
    # and no gain at all would come above it with chance 6e-6.
    gains = [run_with(options_of("pdap", {**OPTIONS, "seed": seed})).gain for seed in range(1, 9)]
    assert sum(gains) / len(gains) > 4


def test_what_was_published_follows_from_the_logs(direct):
    assert direct.verify is not None
    assert not any(check.changed for check in direct.verify.values())


def test_it_is_marked_and_written(direct, tmp_path):
    files = write(present(direct), tmp_path / "report")
    assert [path.name for path in files] == ["results.json", "vendors.csv", "vendors.png", "index.html"]
    told = json.loads(files[0].read_text(encoding="utf-8"))
    assert told["marks"] == ["REPRODUCIBLE, NOT PRIVATE"]
    assert [row["vendor"] for row in told["vendors"]] == ["vendor-0", "vendor-1", "vendor-2"]
    page = files[-1].read_text(encoding="utf-8")
    assert "REPRODUCIBLE, NOT PRIVATE" in page
    assert all(row.vendor in page for row in direct.vendors)


@pytest.mark.process
@pytest.mark.slow
def test_a_stream_on_the_embedded_broker_tells_the_same(direct):
    stream = run_with(options_of("pdap", {"runner": "stream", **OPTIONS}))
    assert stream.vendors == direct.vendors
    assert stream.curve == direct.curve
    assert stream.verify is not None
    assert not any(check.changed for check in stream.verify.values())


def test_a_world_numbers_its_items():
    vendors = [{"name": name, "items": {"capacity": 10, "named": True}} for name in ("here", "there")]
    with pytest.raises(HushstreamError, match=r"vendors\.items\.named: expected false in a replay"):
        run_with(options_of("pdap", {**OPTIONS, "config": {"vendors": vendors}}))


def test_a_world_without_vendors_is_refused_with_who_plays_it():
    with pytest.raises(HushstreamError, match="expected a world of vendors, got 'colin'; 'colin' is played by"):
        run_with(options_of("pdap", {"dataset": "colin"}))
