"""Replays of ratings: errors stand beside those of baselines, own files are played, and what cannot be is refused."""

import json

import pytest

from hushstream.privacy.promises.promise import REPRODUCIBLE
from hushstream.replay.report.replayed import write
from hushstream.replay.studies.bgt.play import BgtOptions, run_bgt
from hushstream.schemas.errors import HushstreamError

SMALL = {"users": 120, "items": 40, "ratings": 8}
RELEASE = {"release": {"pairs": 16, "top": 20}}


@pytest.fixture(scope="module")
def result():
    return run_bgt(BgtOptions("tastes", world=SMALL, config=RELEASE, seed=2))


def test_a_run_tells_errors_of_every_round_beside_those_of_the_device_alone(result):
    names = [row["predicted_by"] for row in result.rows.plain]
    assert names[:2] == ["round 1: A (items)", "round 2: B (pairs)"]
    assert names[3:] == ["each device alone", "constant"]
    rmse = {row["predicted_by"]: row["RMSE"] for row in result.rows.plain}
    assert result.headline.value == pytest.approx(rmse[names[2]] / rmse["each device alone"])
    assert result.payoff.gap.value == pytest.approx(rmse[names[2]] - rmse["each device alone"])
    assert rmse[names[0]] < rmse["constant"]
    assert all(check.changed == 0 and check.equal for check in result.verify.values())
    assert REPRODUCIBLE in result.privacy.marks
    assert (result.counts["slot_sent"], result.counts["release"], result.counts["model"]) == (360, 6, 3)


def test_the_report_says_whether_anything_is_gained(result, tmp_path):
    files = {path.name for path in write(result, tmp_path)}
    assert files == {"results.json", "rows.csv", "rmse.csv", "rmse.png", "index.html"}
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert found["rows"] == result.rows.plain
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert result.payoff.sentence.replace("'", "&#39;") in page
    assert "2,068" not in page, "slots are of the configured size"
    assert f"<dd>{result.facts['bytes of a slot']:,}</dd>" in page


def test_nothing_gained_is_said_plainly():
    strict = {**RELEASE, "release": {**RELEASE["release"]}, "privacy": {"epsilon": 0.1}}
    result = run_bgt(BgtOptions("tastes", world={**SMALL, "users": 30}, config=strict, verify=False))
    assert result.headline.value > 1
    assert result.payoff.verdict != "pays"
    assert "Leave ratings on the devices" in result.answers[1]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_own_ratings_are_played_from_a_file_and_a_mapping(tmp_path, kind):
    rows = [(f"u{user}", 1 + (user * 7 + step) % 12, 1 + (user + step) % 5) for user in range(20) for step in range(6)]
    path, mapping = tmp_path / f"mine.{kind}", tmp_path / "mapping.yaml"
    if kind == "csv":
        path.write_text("who,film,stars\n" + "\n".join(",".join(map(str, row)) for row in rows), encoding="utf-8")
    else:
        parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet files need pyarrow")
        arrow = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
        columns = dict(zip(("who", "film", "stars"), map(list, zip(*rows, strict=True)), strict=True))
        parquet.write_table(arrow.table(columns), path)
    text = "user: who\nitem: film\nrating: stars\nlowest: 1\nhighest: 5\nitems: 12\npublic: {}\n"
    world = {"file": str(path), "mapping": str(mapping)}
    mapping.write_text(text.format("true"), encoding="utf-8")
    result = run_bgt(BgtOptions("own-ratings", world=world, config={"release": {"pairs": 8, "top": 6}}))
    assert [result.facts[name] for name in ("users", "items", "ratings predicted")] == [20, 12, 24]
    mapping.write_text(text.format("false"), encoding="utf-8")
    with pytest.raises(HushstreamError, match="expected a public one"):
        run_bgt(BgtOptions("own-ratings", world=world))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dataset": "synthetic"}, "expected a world of ratings, got 'synthetic'; .* played by"),
        ({"dataset": "nothing"}, "nothing"),
        (
            {"dataset": "tastes", "config": {"items": {"capacity": 9}}},
            "items, features: expected the world's 400 and 0, got 9 and 0",
        ),
        ({"dataset": "tastes", "runner": "river"}, "runner: expected direct or stream, got 'river'"),
        ({"dataset": "tastes", "config": {"privacy": {"epsilon": 0}}}, "privacy.epsilon"),
    ],
)
def test_what_cannot_be_played_is_refused(options, says):
    with pytest.raises(HushstreamError, match=says):
        run_bgt(BgtOptions(**options))
