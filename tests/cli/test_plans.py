"""`hushstream plan`: what a deployment will bring, for every system, in words, as JSON and as a picture."""

from __future__ import annotations

import pytest

from hushstream.engine.declare.plan import DAYS
from hushstream.systems.catalogue import kinds

SHOP = """\
deployment: shop
items: {capacity: 10}
expected_slots: 20000
features:
  country: {kind: category, vocabulary: [de, fr, it]}
  age: {kind: number, range: [16, 96]}
feedback: {click_rate: 0.08}
release: {form: features, window_units: 5000}
"""
CODES = "deployment: shop\nitems: {capacity: 10}\nfeatures: {dimension: 10}\nexpected_slots: 20000\n"
CLUB = "system: colin\ndeployment: club\nitems: {capacity: 10}\nfeatures: {dimension: 10}\n"
MALL = """\
system: pdap
deployment: mall
vendors: [{name: north, items: {capacity: 5}}, {name: south, items: {capacity: 5}}]
features: {dimension: 2}
"""
CLINICS = "system: pdol\ndeployment: clinics\nnodes: 64\nfeatures: {dimension: 501}\n"
FILMS = "system: bgt\ndeployment: films\nitems: {capacity: 1682}\nprivacy: {epsilon: 10.0}\n"
BY_SYSTEM = {"p2b": SHOP, "colin": CLUB, "pdap": MALL, "pdol": CLINICS, "bgt": FILMS}


@pytest.fixture
def written(tmp_path):
    def write(text, name="shop.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_every_system_of_the_catalogue_has_a_plan():
    assert set(BY_SYSTEM) == set(kinds())
    assert all(kind.plan is not None for kind in kinds().values())


@pytest.mark.parametrize("text", [*BY_SYSTEM.values(), CODES], ids=[*BY_SYSTEM, "codes"])
def test_one_command_says_what_it_brings_and_what_that_assumes(cli, written, text):
    path = written(text)
    asked = ("plan", path, "--users", "20000", "--visits-per-user", "12", "--no-play")
    found = cli(*asked, "--json").json
    said = cli(*asked).out
    assert found["verdict"] == said.splitlines()[0]
    assert [life["days"] for life in found["lives"]] == [1, 30, 365]
    assert found["lives"][-1]["prices"].startswith("which of two things one person did: epsilon ")
    assert found["assumed"]
    assert "partitions" in found["sizes"]
    for title in ("Noise", "What one person has paid", "Size", "Assumed"):
        assert f"\n{title}\n" in said
    for point in found["points"]:
        share = point["share"]
        assert share is None or 0 <= share["low"] <= share["middle"] <= share["high"] <= 1


def test_a_shop_with_enough_visitors_gets_ahead_once_its_first_window_has_closed(cli, written):
    path = written(SHOP)
    found = cli("plan", path, "--users", "20000", "--visits-per-user", "12", "--json").json
    assert found["beats_no_learning"] is True
    # The tenth of twelve visits in thirty days is made after 25, and 5,000 of 667 a day come 7.5 days later.
    assert found["first_day_better"]["expected"] == 33
    shares = {point["day"]: point["share"]["middle"] for point in found["points"]}
    assert list(shares) == list(DAYS)
    assert shares[30] == 0
    assert 0.5 < shares[45] < shares[90] < shares[365] < 1
    assert found["values"]["each user alone (cold)"]["middle"] < found["values"]["this deployment"]["middle"]
    assert found["lives"][0]["prices"] is None
    assert "epsilon 2" in found["lives"][1]["prices"]


@pytest.mark.parametrize(
    ("text", "users", "visits", "said"),
    [
        (SHOP, 20_000, 9, "a slot is due after 10 visits, and a user makes 9"),
        (SHOP, 100, 12, "a window closes at 5,000 slots of a partition, and within a year there are 1,133"),
        (SHOP + "privacy: {epsilon: 0.0001}\n", 20_000, 12, "the noise is too much"),
        (CODES + "release: {mechanism: tuples, sampling: 0.5}\n", 2_000, 12, "stay below the threshold of 50"),
        (MALL + "privacy: {epsilon: 0.00001}\n", 20, 12, "no block is ever released"),
        (CLINICS + "privacy: {epsilon: 0.1}\n", 500, 2, "keep apart, or take an epsilon of at least"),
        (FILMS, 1, 2, "will not beat no learning (each device alone)"),
        (CLUB + "learner: {algorithm: linucb}\n", 50, 20, "most of what is learned is noise"),
    ],
)
def test_where_it_will_not_pay_it_says_so_plainly(cli, written, text, users, visits, said):
    found = cli("plan", written(text), "--users", users, "--visits-per-user", visits, "--json").json
    assert found["beats_no_learning"] is False
    assert "will not beat" in found["verdict"]
    assert said in found["verdict"]


def test_checking_a_configuration_warns_where_its_plan_says_no(cli, written):
    few = written(SHOP.replace("20000", "400"))
    notes = cli("config", "check", few, "--json").json["notes"]
    assert any("with the 400 slots expected: It will not beat no learning" in note for note in notes)
    notes = cli("config", "check", written(SHOP), "--json").json["notes"]
    assert not any("will not beat" in note for note in notes)


def test_the_picture_is_a_png_and_equal_plans_have_equal_ones(cli, written, refused, tmp_path):
    first, again = tmp_path / "a.png", tmp_path / "b.png"
    for picture in (first, again):
        asked = ("--users", "20000", "--visits-per-user", "12", "--picture", picture)
        assert cli("plan", written(SHOP), *asked).code == 0
    assert first.read_bytes() == again.read_bytes()
    assert first.read_bytes().startswith(b"\x89PNG")
    none = ("--users", "9", "--visits-per-user", "2", "--no-play", "--picture", first)
    assert "figures against time" in refused("plan", written(MALL), *none)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--users", "0", "users: expected"),
        ("--visits-per-user", "0", "visits-per-user: expected"),
        ("--days", "0", "days: expected"),
        ("--click-rate", "1", "click-rate: expected"),
    ],
)
def test_impossible_numbers_are_refused_by_name(refused, written, option, value, said):
    given = {"--users": "9", "--visits-per-user": "9", option: value}
    assert said in refused("plan", written(SHOP), *(word for pair in given.items() for word in pair))


def test_a_plan_with_new_slots_for_those_who_come_back(cli, written):
    """Ten visits a slot, one each three days: due on day 30, and 30 visits after each."""
    path = written(SHOP + "privacy: {epsilon: 0.5, units_per_person: 4}\n")
    asked = ("plan", path, "--users", "20000", "--visits-per-user", "120", "--days", "360", "--json")
    at_once, renewed = cli(*asked).json, cli(*asked, "--renew-every", "90").json
    assert [life["units"] for life in at_once["lives"]] == [0, 1, 4]
    assert [life["units"] for life in renewed["lives"]] == [0, 1, 3]
    assert any("a new slot 90 days after one fell due, and 4 in their life" in one for one in renewed["assumed"])
    assert renewed["lives"][-1]["prices"].startswith("which of two things one person did: epsilon 3,")


def test_new_slots_need_a_cap_and_a_system_that_has_slots(refused, written):
    for text, expected in ((SHOP, "privacy.units_per_person: expected at least 2"), (CLUB, "renew_every_seconds")):
        asked = ("plan", written(text), "--users", "20000", "--visits-per-user", "12", "--renew-every", "90")
        assert expected in refused(*asked)
