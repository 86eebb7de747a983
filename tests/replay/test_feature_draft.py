"""A draft of features tells kinds apart, marks what it took from rows, and says what is clipped."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pytest
import yaml

from hushstream.features.checks import FROM_ROWS, Unconfirmed, private_settings, require_confirmed, without_marks
from hushstream.features.schema import declare
from hushstream.replay.logged.drafts.deployment import shop_of_log
from hushstream.replay.logged.drafts.features import draft_features
from hushstream.replay.logged.drafts.mapping import draft_mapping
from hushstream.replay.logged.log import LogError

COUNTRIES = ("de", "fr", "se")


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    path, rng = tmp_path_factory.mktemp("table") / "visits.csv", random.Random(3)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(
            [
                "user_id",
                "country",
                "age",
                "spend",
                "member",
                "hour",
                "weekday",
                "likes",
                "session note",
                "item",
                "click",
            ]
        )
        for row in range(1000):
            writer.writerow(
                [
                    f"user-{row}",
                    rng.choice(COUNTRIES) if row % 10 else "",
                    rng.randint(20, 59),
                    round(10 ** rng.uniform(0, 4), 2),
                    rng.choice(["true", "false"]),
                    rng.randint(0, 23),
                    rng.choice(["mon", "tue", "sun"]),
                    "|".join(rng.sample(["a", "b", "c", "d"], rng.randint(1, 3))),
                    f"note {row}",
                    "shoes",
                    int(row % 8 == 0),
                ]
            )
    return path


def test_kinds_are_told_apart_and_what_came_from_rows_is_marked(table):
    found = draft_features(table)
    features = found.declaration["features"]
    assert {name: content["kind"] for name, content in features.items()} == {
        "country": "category",
        "age": "number",
        "spend": "number",
        "member": "boolean",
        "hour": "time_of_day",
        "weekday": "day_of_week",
        "likes": "tags",
    }
    assert features["country"] == {"kind": "category", "vocabulary": ["de", "fr", "se"], "from_rows": ["vocabulary"]}
    assert features["age"]["range"] == [20, 60]
    assert features["spend"]["scale"] == "log"
    assert features["likes"]["most"] == 3
    assert list(found.left_out) == ["session note"]
    marked = ["country.vocabulary", "age.range", "spend.range", "likes.vocabulary", "likes.most"]
    assert private_settings(found.declaration) == ["click_rate", *(f"features.{one}" for one in marked)]
    assert found.declaration["click_rate"] == 0.125


def test_shares_are_of_all_rows(table):
    found = draft_features(table)
    assert found.shares["country"].missing == pytest.approx(0.1)
    assert found.shares["age"] == (0, 0, 0)
    # A range leaves one row in a hundred out at either end, but is rounded outward.
    assert 0 <= found.shares["spend"].clipped <= 0.02
    assert found.clipped_rows == pytest.approx(found.shares["spend"].clipped)


def test_the_text_of_a_draft_is_the_draft_and_is_refused_until_every_mark_is_gone(table):
    read = yaml.safe_load(draft_features(table).text())
    assert read == draft_features(table).declaration
    with pytest.raises(Unconfirmed, match=r"features\.country\.vocabulary, features\.age\.range") as refused:
        declare(read["features"])
    assert len(refused.value.settings) == 5
    for name in ("country", "age", "spend"):
        del read["features"][name]["from_rows"]
    read["features"]["likes"]["from_rows"].remove("most")
    with pytest.raises(Unconfirmed, match=r"taken from rows: features\.likes\.vocabulary;"):
        declare(read["features"])
    del read["features"]["likes"]["from_rows"]
    assert declare(read["features"]).row_bytes == draft_features(table).row_bytes
    with pytest.raises(Unconfirmed, match="click_rate"):
        require_confirmed(read)


def test_a_mark_that_cannot_be_read_is_a_mark():
    for mark in (True, "vocabulary", {"vocabulary": True}):
        content = {"a": {"kind": "boolean", "from_rows": mark}}
        with pytest.raises(Unconfirmed, match=r"features\.a\.from_rows"):
            declare(content)
        assert declare(without_marks(content)).cells == 3


def test_an_emptied_list_of_marks_marks_nothing():
    assert declare({"a": {"kind": "boolean", "from_rows": []}}) == declare({"a": {"kind": "boolean"}})


def test_a_parquet_table_has_lists(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "visits.parquet"
    rows = {"text": [[0.1, 0.2], [0.3, 0.9]] * 50, "likes": [["a", "b"], []] * 50, "age": [20, 30] * 50}
    parquet.write_table(pyarrow.table(rows), path)
    features = draft_features(path).declaration["features"]
    assert features["text"] == {"kind": "embedding", "dimension": 2}
    assert features["likes"]["vocabulary"] == ["a", "b"]


@pytest.mark.parametrize("content", ["", "a,b\n", "user_id,click\nme,1\n"])
def test_a_table_without_features_is_refused(content, tmp_path):
    path = tmp_path / "visits.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(LogError):
        draft_features(path)


def test_values_of_a_megabyte_do_not_enter_a_draft(tmp_path):
    path = tmp_path / "visits.csv"
    path.write_text("name,age\n" + f"{'x' * 100_000},1\n" + "a,2\nb,3\na,4\n" * 10, encoding="utf-8")
    found = draft_features(path)
    assert found.declaration["features"]["name"]["vocabulary"] == ["a", "b"]
    assert found.shares["name"].unknown == pytest.approx(1 / 31)


def test_the_command_prints_a_draft_of_a_file(table):
    from typer.testing import CliRunner

    from hushstream.cli.main import app

    plain = CliRunner().invoke(app, ["datasets", "inspect", str(table)])
    assert plain.exit_code == 0, plain.output
    assert "from_rows: [vocabulary]" in plain.stdout
    machine = CliRunner().invoke(app, ["datasets", "inspect", str(table), "--json"])
    assert json.loads(machine.stdout)["features"]["country"]["kind"] == "category"


def test_many_tags_a_value_are_drafted_as_ones_that_say_partly_the_same(tmp_path):
    words = [f"word{number}" for number in range(40)]
    lines = ["|".join(words[start % 20 : start % 20 + 15]) for start in range(60)]
    path = tmp_path / "texts.csv"
    path.write_text("words,reward\n" + "".join(f"{line},{number % 2}\n" for number, line in enumerate(lines)), "utf-8")
    drafted = draft_features(path).declaration["features"]["words"]
    assert (drafted["kind"], drafted["most"], drafted["redundancy"]) == ("tags", 15, 0.2)


def _left_out(tmp_path: Path, header: str, rows: list[str]) -> tuple[dict[str, object], dict[str, str]]:
    path = tmp_path / "visits.csv"
    path.write_text("\n".join([header, *rows]), encoding="utf-8")
    found = draft_features(path)
    return dict(found.declaration["features"]), dict(found.left_out)


@pytest.mark.parametrize("name", ["visitor_id", "VisitorId", "Customer", "client-no", "SESSION_ID", "user"])
def test_who_visited_is_no_feature_and_is_the_user_of_the_mapping(name, tmp_path):
    rows = [f"v{row % 300},{row % 50 + 18},{row % 2}" for row in range(1000)]
    features, left_out = _left_out(tmp_path, f"{name},age,click", rows)
    assert (list(features), left_out) == (["age"], {})
    assert yaml.safe_load(draft_mapping(tmp_path / "visits.csv").replace("arm: COLUMN", "arm: age"))["user"] == name


def test_ids_and_points_in_time_of_any_name_are_left_out(tmp_path):
    """Each id comes three times, so no row holds a text of its own."""
    rows = [
        f"p{row % 400},{row % 400},2026-{row % 12 + 1:02}-{row % 28 + 1:02},{('de', 'fr')[row % 2]}"
        for row in range(1200)
    ]
    features, left_out = _left_out(tmp_path, "badge,basketId,seen,country", rows)
    assert list(features) == ["country"]
    assert "write the column as `user`" in left_out["badge"]
    assert left_out["basketId"] == left_out["badge"]
    assert "points in time" in left_out["seen"]


def test_a_time_of_day_is_told_by_its_values_and_so_is_when_a_row_was(tmp_path):
    rows = [f"2026-03-{row % 28 + 1:02} {row % 24:02}:07:31.5,{row % 24}:{row % 60:02},{row % 2}" for row in range(400)]
    features, left_out = _left_out(tmp_path, "when,arrived,click", rows)
    assert (features, left_out) == ({"arrived": {"kind": "time_of_day"}}, {})
    drafted = yaml.safe_load(draft_mapping(tmp_path / "visits.csv").replace("arm: COLUMN", "arm: arrived"))
    assert (drafted["timestamp"], drafted["timestamp_unit"]) == ("when", "iso")
    two = [f"2026-03-01 10:07:31.{row:06},2026-03-02 11:08:31.{row:06},{row % 9},{row % 2}" for row in range(400)]
    features, left_out = _left_out(tmp_path, "begun,ended,visits,click", two)
    assert (list(features), set(left_out)) == (["visits"], {"begun", "ended"})
    assert "# timestamp: COLUMN" in draft_mapping(tmp_path / "visits.csv")


def test_what_describes_the_item_or_is_known_afterwards_is_no_feature_of_a_visit(tmp_path):
    rows = [
        f"{('bag', 'hat')[row % 2]},{(12, 30)[row % 2]},{20 * (row % 8 == 0)},{int(row % 4 == 0)},{row % 7},eu"
        for row in range(400)
    ]
    features, left_out = _left_out(tmp_path, "item,price,revenue,click,visits_before,region", rows)
    assert list(features) == ["visits_before", "region"]
    assert "describes the item" in left_out["price"]
    assert "known only afterwards" in left_out["revenue"]


def _log(tmp_path, names, rows):
    path = tmp_path / "log.csv"
    path.write_text("\n".join([names, *rows]) + "\n", encoding="utf-8")
    return path


def test_an_only_column_of_0_and_1_is_proposed_as_the_reward_and_is_no_feature(tmp_path):
    path = _log(
        tmp_path, "user,item,age,value", [f"u{row},{'abc'[row % 3]},{row % 50},{row % 2}" for row in range(900)]
    )
    (line,) = [one for one in draft_mapping(path).splitlines() if one.startswith("reward:")]
    assert line.startswith("reward: value          # ? by its values")
    assert list(draft_features(path).declaration["features"]) == ["age"]


def test_of_two_columns_that_may_be_the_reward_both_are_marked(tmp_path):
    rows = [f"u{row},{'abc'[row % 3]},{row % 50},{row % 2},{row % 5 // 4}" for row in range(900)]
    path = _log(tmp_path, "user,item,age,value,gold", rows)
    assert "reward: COLUMN          # ? no column seems to fit: write its name (value, gold?)" in draft_mapping(path)
    marked = [line.split(":")[0].strip() for line in draft_features(path).text().splitlines() if "# ? if this" in line]
    assert marked == ["value", "gold"]


@pytest.mark.parametrize(
    ("rewards", "levels"),
    [
        (["0", "0.2", "1"], 5),
        (["0", "0.25", "0.5"], 4),
        (["0", "0.3333333333333333", "0.5"], 6),
        (["0", "1", "1"], None),
        (["no", "yes", "no"], None),
        (["0", "0.123456", "0.7"], 100),
    ],
)
def test_the_fewest_reward_levels_that_hold_the_rewards_are_drafted_and_marked(tmp_path, rewards, levels):
    """Rewards that no number of levels holds get the most."""
    path = _log(tmp_path, "user,item,age,reward", [f"u{n},{'ab'[n % 2]},{n % 50},{rewards[n % 3]}" for n in range(900)])
    drafted = yaml.safe_load(shop_of_log(path, "shop").text())["feedback"]
    assert drafted.get("reward_levels") == levels
    assert drafted[FROM_ROWS] == [*(["reward_levels"] if levels else []), "click_rate"]
