"""Rating worlds hold what their files hold, and people's own ratings are read through a mapping."""

import numpy as np
import pytest

from hushstream.replay.logged.log import LogError
from hushstream.replay.studies.bgt.play import Task, play_world
from hushstream.replay.studies.bgt.worlds import (
    UNIT_SCALE,
    RatingMapping,
    load_ratings,
    make_world,
    rating_mapping,
    tastes,
)
from hushstream.replay.worlds.world import WorldError
from hushstream.systems.bgt.configuration import BgtConfig

PLAIN = {"user": "u", "item": "i", "rating": "r", "lowest": 0, "highest": 5, "items": 4}


def test_the_published_datasets_are_those_of_the_paper(data_dir):
    film, lens = make_world("filmtrust", data_dir), make_world("ml-100k", data_dir)
    assert (len(film.users), film.user_count, film.item_count) == (18_662, 740, 1_957)
    assert (len(lens.users), lens.user_count, lens.item_count, lens.features.shape[1]) == (100_000, 943, 1_682, 20)
    assert set(np.unique(lens.values * 5).round(9)) == {1, 2, 3, 4, 5}
    assert (film.values.min(), film.values.max()) == (0, 1)
    # Toy Story: three genres, 1995.
    assert np.count_nonzero(lens.features[0]) == 3
    assert lens.features[0, :-1].max() == pytest.approx(3**-0.5)
    assert lens.features[:, -1].min() == pytest.approx(-0.15)
    with pytest.raises(WorldError, match="expected one of filmtrust"):
        make_world("netflix")


def test_a_split_keeps_a_fifth_and_follows_its_seed():
    world = tastes(users=50, items=100, ratings=10)
    one, same, other = world.split(0), world.split(0), world.split(1)
    assert len(one.later) == 100
    assert sorted([*one.earlier, *one.later]) == list(range(500))
    assert (one.later == same.later).all()
    assert (one.later != other.later).any()
    known = one.known(BgtConfig("x", 100, scale=UNIT_SCALE))
    assert len(known.items) == 400
    assert known.users == 50


def test_own_ratings_come_from_csv_and_parquet_alike(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [("ann", 1, 5.0), ("bob", 4, 0.0), ("ann", 1, 2.5), ("cy", 2, 4.0)]
    text = tmp_path / "ratings.csv"
    text.write_text("u,i,r,other\n" + "".join(f"{u},{i},{r},x\n" for u, i, r in rows), encoding="utf-8")
    table = tmp_path / "ratings.parquet"
    columns = dict(zip(("u", "i", "r"), map(list, zip(*rows, strict=True)), strict=True))
    parquet.write_table(pyarrow.table(columns), table)
    for path in (text, table):
        world = load_ratings(path, rating_mapping(PLAIN))
        assert (world.user_count, world.item_count, world.public) == (3, 4, False)
        assert world.items.tolist() == [0, 3, 0, 1]
        assert world.values.tolist() == [1.0, 0.0, 0.5, 0.8]


def test_names_of_items_may_be_listed_or_for_public_data_left_out(tmp_path):
    path = tmp_path / "ratings.csv"
    path.write_text("u;i;r\n7;b;1\n7;a;2\n8;b;3\n", encoding="utf-8")
    named = rating_mapping({**PLAIN, "items": ["a", "b", "c"], "delimiter": ";"})
    assert load_ratings(path, named).items.tolist() == [1, 0, 1]
    free = rating_mapping(
        {name: value for name, value in PLAIN.items() if name != "items"} | {"public": True, "delimiter": ";"}
    )
    assert load_ratings(path, free).item_count == 2


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"items": 1}, "expected 2 to"),
        ({"items": ["a", "a"]}, "different names"),
        ({"lowest": 5}, "highest: expected a number above lowest"),
        ({"lowest": "low"}, "lowest: expected a finite number"),
        ({"highest": float("inf")}, "highest: expected a finite number"),
        ({"stars": "r"}, "unknown key stars"),
        ({"user": None}, "user: expected a text"),
        ({"public": "yes"}, "public: expected true or false"),
    ],
)
def test_mappings_that_cannot_be_are_refused_by_key(change, match):
    with pytest.raises(LogError, match=match):
        rating_mapping({**PLAIN, **change})


def test_missing_keys_and_unnamed_items_are_refused():
    with pytest.raises(LogError, match="missing key user, highest"):
        rating_mapping({"item": "i", "rating": "r", "lowest": 0})
    with pytest.raises(LogError, match="rows are not public"):
        rating_mapping({name: value for name, value in PLAIN.items() if name != "items"})


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ("ann,5,1", "row 1.*i: expected an item from 1 to 4|line 2.*i: expected an item from 1 to 4"),
        ("ann,0,1", "expected an item from 1 to 4"),
        ("ann,1.5,1", "i.*an integer"),
        ("ann,1,5.01", "r.*a number in"),
        ("ann,1,nan", "r.*a number in"),
        ("ann,1,", "r.*a number in"),
        (",1,1", "u.*a text"),
    ],
)
def test_rows_that_cannot_be_are_named_and_not_repeated(tmp_path, row, match):
    path = tmp_path / "ratings.csv"
    path.write_text(f"u,i,r\n{row}\n", encoding="utf-8")
    with pytest.raises(LogError, match=match) as caught:
        load_ratings(path, RatingMapping(user="u", item="i", rating="r", lowest=0, highest=5, items=4))
    assert "5.01" not in str(caught.value)


def test_own_ratings_are_played_like_any_world(tmp_path):
    world = tastes(users=200, items=60, ratings=10)
    path = tmp_path / "ratings.csv"
    rows = zip(world.users, world.items + 1, world.values * 5, strict=True)
    path.write_text("u,i,r\n" + "".join(f"{u},{i},{r}\n" for u, i, r in rows), encoding="utf-8")
    mapping = RatingMapping(user="u", item="i", rating="r", lowest=0, highest=5, items=60)
    played = play_world(Task("own", 10.0, 0), load_ratings(path, mapping))
    assert len(played.kinds) == 3
    assert played.rmse < 0.25
