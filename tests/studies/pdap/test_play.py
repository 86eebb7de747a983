"""Runs of vendors: a function of their task, whatever the number of processes, and sharing teaches what it should.

Seeds are fixed and shared by what is compared, so the outcomes are fixed: false alarms cannot come by chance.
"""

import csv
import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from hushstream.agents.worker.deployment import load
from hushstream.engine.declare.artefacts import PUBLIC_DATASET
from hushstream.features.schema import declare
from hushstream.replay.catalogue import options_of, run_with
from hushstream.replay.logged.log import LogError
from hushstream.replay.report.replayed import write
from hushstream.replay.studies.pdap.own import DRAWN, ClickPosterior, LoggedVisits, OwnVendors, own_vendors
from hushstream.replay.studies.pdap.play import Task, make_world, play
from hushstream.replay.studies.pdap.worlds import Arrivals, vendors
from hushstream.replay.worlds.world import WorldError
from hushstream.schemas.errors import HushstreamError

SMALL = Task("blocks", 1.0, 6_000, 0, options=(("arms", 30),))


def greedy(**changes):
    return float(np.mean([play(replace(SMALL, seed=seed, **changes)).greedy for seed in range(3)]))


def test_a_run_is_a_function_of_its_task():
    assert play(SMALL) == play(SMALL)
    assert play(SMALL) != play(replace(SMALL, seed=1))


def test_sharing_without_noise_beats_keeping_apart_and_noise_costs():
    exact, blocks, tiny = greedy(form="exact"), greedy(), greedy(epsilon=0.01)
    apart = greedy(form="alone")
    assert exact > apart + 0.05
    assert exact > blocks > tiny


def test_counters_at_home_play():
    home = play(replace(SMALL, release=(("placement", "home"),), contexts=2_000))
    assert 0.05 < home.greedy < 1
    assert sorted(home.online) == [2_000]


class TestWorlds:
    def test_specialised_vendors_own_their_quadrants_and_alike_ones_do_not(self):
        apart, alike = vendors(arms=500), vendors(arms=500, overlap=1.0)
        for world, least, most in ((apart, 0.9, 1.0), (alike, 0.2, 0.3)):
            left_low = ((world.centres < 0.5).all(axis=1) & (world.owners == 0)).sum() / 500
            assert least <= left_low <= most
        assert "specialised" in apart.name
        assert "overlapping" in alike.name

    def test_drift_changes_the_end_and_not_the_beginning(self):
        still, moving = vendors(arms=50), vendors(arms=50, drift=1.0)
        some = still.arrivals(200, np.random.default_rng(0))
        arms = np.arange(200)
        assert np.array_equal(still.means(some, arms, 0.0), moving.means(some, arms, 0.0))
        assert not np.allclose(still.means(some, arms, 1.0), moving.means(some, arms, 1.0))
        assert np.array_equal(still.means(some, arms, 0.0), still.means(some, arms, 1.0))

    def test_contexts_lie_in_the_square_and_homes_are_even(self):
        some = vendors().arrivals(8_000, np.random.default_rng(0))
        assert some.contexts.min() >= 0
        assert some.contexts.max() <= 1
        assert some.contexts.dtype == np.float32
        assert (np.abs(np.bincount(some.homes) - 2_000) < 300).all()

    @pytest.mark.parametrize("option", [{"vendors": 0}, {"arms": 0}, {"overlap": 1.5}, {"drift": -0.1}])
    def test_options_out_of_range_are_refused(self, option):
        with pytest.raises(WorldError, match=f"vendors: {next(iter(option))} must be"):
            vendors(**option)

    def test_films_of_movielens_are_shared_out(self, data_dir):
        world = make_world("ml-vendors", (("data_dir", data_dir),), 0)
        some = world.arrivals(500, np.random.default_rng(0))
        chances = world.means(some, np.arange(500), 0.5)
        assert np.bincount(world.owners).max() - np.bincount(world.owners).min() <= 1
        assert 0.02 <= chances.min() < chances.max() <= 0.98
        assert some.contexts.min() >= 0
        assert some.contexts.max() <= 1


# People's own logs of several vendors: what is read, what is refused and how it is said, and what is played.

MAPPING = {
    "features": {
        "age": {"kind": "number", "range": [20, 60]},
        "device": {"kind": "category", "vocabulary": ["phone", "desk"]},
    },
    "vendor": "shop",
    "owner": "seller",
    "items": {"north": 3, "south": ["lamp", "sofa"]},
    "arm": "item",
    "reward": "clicked",
    "user": "who",
    "data": "public",
}
COLUMNS = ("age", "device", "shop", "seller", "item", "clicked", "who")
ROWS = [
    (20, "phone", "north", "north", "2", 1, "ann"),
    (60, "desk", "south", "south", "sofa", 0, "bob"),
    (99, "desk", "south", "north", "0", 0.5, "ann"),
]


def written(folder, rows=ROWS, columns=COLUMNS):
    path = folder / "visits.csv"
    path.write_text("\n".join(",".join(map(str, row)) for row in [columns, *rows]), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_rows_become_visits_of_their_vendors(tmp_path, kind):
    path = written(tmp_path)
    if kind == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet files need pyarrow")
        arrow = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
        path = str(tmp_path / "visits.parquet")
        parquet.write_table(arrow.table(dict(zip(COLUMNS, map(list, zip(*ROWS, strict=True)), strict=True))), path)
    world = own_vendors(file=path, mapping=MAPPING)
    assert (world.name, world.vendors, world.internal) == (f"visits.{kind}", ("north", "south"), False)
    assert world.owners.tolist() == [0, 0, 0, 1, 1]
    assert world.log.homes.tolist() == [0, 1, 1]
    assert world.log.arms.tolist() == [2, 4, 0], "whose item it was says which it is, wherever it was shown"
    assert world.log.users.tolist() == [0, 1, 0]
    again = world.arrivals(7, np.random.default_rng(0))
    assert again.homes.tolist() == [0, 1, 1, 0, 1, 1, 0], "row after row, and again from the beginning"
    other = replace(world, number=1).arrivals(3000, np.random.default_rng(0))
    # Ann has two of three rows, Bob one, and each is as likely to come: two thirds of the visits are Ann's.
    assert np.mean(other.users == 0) == pytest.approx(2 / 3, abs=0.05)
    assert set(zip(other.users.tolist(), other.homes.tolist(), strict=True)) == {(0, 0), (0, 1), (1, 1)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": None}, r"missing key data \(`data: public`, if exact figures"),
        ({"data": "secret"}, "data: expected `data: public`"),
        ({"public": True}, "unknown key public"),
        ({"items": {}}, "items: expected names with values"),
        ({"items": {"north": 0, "south": 2}}, "items.north: expected 1 to"),
        ({"items": {"north": 3, "south": ["a", "a"]}}, "items.south: expected a list of different names"),
        ({"items": {"north": 1 << 20, "south": 1}}, "items: expected at most 1048576 in all"),
        ({"features": None}, "missing key features"),
        ({"bounds": {"age": [20, 60]}}, "unknown key bounds"),
        ({"vendor": 3}, "vendor: expected a text, got int"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused_by_its_key(tmp_path, change, message):
    mapping = {key: value for key, value in {**MAPPING, **change}.items() if value is not None}
    with pytest.raises(LogError, match=message):
        own_vendors(file=written(tmp_path), mapping=mapping)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("shop", "east", "line 4, column shop: expected one of the 2 categories"),
        ("item", "3", "line 4, column item: expected an item of its vendor, 0 to 2, got another number"),
        ("item", "lamp", "line 4, column item: expected an integer, got a text"),
        ("clicked", "1.5", r"line 4, column clicked: expected a number in \[0, 1\]"),
        ("who", "", "line 4, column who: expected a text, got nothing"),
    ],
)
def test_a_value_that_cannot_be_is_named_by_its_place_and_not_shown(tmp_path, column, value, message):
    row = dict(zip(COLUMNS, ROWS[2], strict=True)) | {column: value}
    with pytest.raises(LogError, match=message):
        own_vendors(file=written(tmp_path, [*ROWS[:2], tuple(row.values())]), mapping=MAPPING)


def chance(home, owner, item, x):
    """Homes differ threefold in their odds, items by place; an item is liked more at its own vendor's."""
    return 1 / (1 + np.exp(1.5 - 1.1 * home + 0.3 * (owner == home) - 0.4 * item * (x - 0.5)))


def crossed(rows, seed, share=0.2):
    """Two vendors of four items each; ``share`` of the visits are shown any vendor's item."""
    draw = np.random.default_rng(seed)
    homes, contexts = draw.integers(0, 2, rows), draw.random((rows, 1)).astype(np.float32)
    arms = 4 * np.where(draw.random(rows) < share, draw.integers(0, 2, rows), homes) + draw.integers(0, 4, rows)
    clicked = draw.random(rows) < chance(homes, arms // 4, arms % 4, contexts[:, 0])
    return LoggedVisits(contexts, homes, np.arange(rows), arms, clicked.astype(np.float64))


def test_worlds_drawn_from_a_log_hold_what_others_items_would_earn():
    """Of 12 logs of 1,000 rows at least 9 intervals at 95 % hold what home 0 would gain by the items of vendor 1.

    Three in a thousand runs have more than three misses. A fit that is blind to homes takes vendor 1's users for better
    items: it is off by .11, and its interval, half as wide, holds in none.
    """
    at = (np.arange(200) + 0.5) / 200
    users = Arrivals(at[:, None].astype(np.float32), np.zeros(200, dtype=np.int64), np.arange(200) + 10_000)

    def gain(value):
        return np.mean([value(1, item) - value(0, item) for item in range(4)])

    truth, held = gain(lambda owner, item: chance(0, owner, item, at).mean()), 0
    for seed in range(12):
        posterior = ClickPosterior(crossed(1_000, seed), np.repeat([0, 1], 4))
        drawn = [
            gain(
                lambda owner, item, one=number, of=posterior: of.means(one, users, np.array([4 * owner + item])).mean()
            )
            for number in range(DRAWN)
        ]
        held += abs(np.mean(drawn) - truth) < 2.1 * np.std(drawn, ddof=1)
    assert held >= 9


def test_a_log_tells_of_others_items_only_if_every_vendors_users_saw_some():
    owners = np.repeat([0, 1], 4)
    assert ClickPosterior(crossed(400, 1), owners).crossed
    assert not ClickPosterior(crossed(400, 1, share=0.0), owners).crossed
    one_way = crossed(400, 1)
    own = one_way.homes == 0
    arms = np.where(own, one_way.arms % 4, one_way.arms)
    assert not ClickPosterior(replace(one_way, arms=arms), owners).crossed


def test_a_world_of_few_busy_users_takes_memory_of_its_visits_not_of_all_their_rows():
    """2 users of 20,000 rows in a run of 1,000 visits: joining all visits of 1,000 drawn users took 160 MB."""
    rows, zeros = 40_000, np.zeros(40_000, dtype=np.int64)
    contexts = np.arange(rows, dtype=np.float32)[:, None]
    log = LoggedVisits(contexts, zeros, np.arange(rows) % 2, zeros, np.zeros(rows))
    owners = zeros[:1]
    world = OwnVendors("log", ("north",), owners, log, ClickPosterior(log, owners), internal=True, number=1)
    tracemalloc.start()
    arrivals = world.arrivals(1_000, np.random.default_rng(0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(arrivals) == 1_000
    assert np.array_equal(arrivals.contexts[:, 0] % 2, arrivals.users), "each visit keeps its user"
    assert peak < 5e6


def table(folder, count=400):
    draw = np.random.default_rng(3)
    rows = []
    for number in range(count):
        home = int(draw.integers(2))
        item, age = int(draw.integers(3 if home == 0 else 2)), int(draw.integers(20, 61))
        clicked = int(draw.random() < (0.8 if (age > 40) == (home == 1) else 0.1))
        name = str(item) if home == 0 else ("lamp", "sofa")[item]
        device = ("phone", "desk")[number % 2]
        rows.append((age, device, *(["north", "south"][home],) * 2, name, clicked, f"u{number % 50}"))
    return written(folder, rows)


@pytest.mark.parametrize("data", ["public", "internal"])
def test_a_log_is_played_under_its_own_names_and_an_internal_one_under_its_mark(tmp_path, data):
    world = {"file": table(tmp_path), "mapping": {**MAPPING, "data": data}}
    asked = {"dataset": "own-vendors", "contexts": 600, "first_window": 150, "world": world}
    result = run_with(options_of("pdap", {**asked, "folder": tmp_path / "deployment"}))
    assert [row["vendor"] for row in result.rows.plain] == ["north", "south"]
    assert sum(row["visits"] for row in result.rows.plain) == 600
    assert not any(check.changed for check in result.verify.values())
    assert result.payoff.sentence.startswith("This log cannot tell whether it pays: ")
    assert "no interval: users of some vendor saw no item of another" in result.payoff.sentence
    assert result.headline is None
    assert result.facts["gain in points"] == result.payoff.gap.value
    files = write(result, tmp_path / "report")
    told = json.loads(files[0].read_text(encoding="utf-8"))
    marked = data == "internal"
    told_there = json.loads((tmp_path / "deployment" / PUBLIC_DATASET).read_text(encoding="utf-8"))["dataset"]
    assert told_there.endswith(", INTERNAL, NOT PRIVATE") is marked
    assert ("INTERNAL, NOT PRIVATE" in told["marks"]) is marked
    assert ("INTERNAL, NOT PRIVATE" in files[-1].read_text(encoding="utf-8")) is marked
    with files[1].open() as rows:
        assert [("INTERNAL, NOT PRIVATE" in row["figures"].split("; ")) for row in csv.DictReader(rows)] == [marked] * 2
    if marked:
        with pytest.raises(HushstreamError, match="bootstrap: expected none for an internal log"):
            run_with(options_of("pdap", {**asked, "runner": "stream", "bootstrap": "127.0.0.1:1"}))


def test_columns_of_declared_features_lie_where_a_deployment_of_them_has_them(tmp_path):
    rows = [*ROWS, ("", "tv", "north", "north", "1", 0, "cem")]
    world = own_vendors(file=written(tmp_path, rows), mapping=MAPPING)
    schema = declare(MAPPING["features"])
    told = [
        {"age": 20, "device": "phone"},
        {"age": 60, "device": "desk"},
        {"age": 99, "device": "desk"},
        {"device": "tv"},
    ]
    expected = schema.positions(schema.read(b"".join(schema.encode(one).row for one in told)))
    assert np.allclose(world.log.contexts, expected)
    assert world.log.contexts[-1, 0] == 0.5, "a missing number lies in the middle"


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"age": {"kind": "number"}}, "features.age: expected the key range"),
        ({"likes": {"kind": "tags", "vocabulary": ["a"], "most": 1}}, "each context is in one cell"),
        ({f"f{one}": {"kind": "boolean"} for one in range(11)}, "at most 10"),
        ({"colour": {"kind": "boolean"}}, "colour"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(tmp_path, features, message):
    with pytest.raises(LogError, match=message):
        own_vendors(file=written(tmp_path), mapping={**MAPPING, "features": features})


# A run tells what each vendor earned beside what it would have earned alone; the same on both runners.

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
