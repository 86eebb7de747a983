"""Dashboards: committed as the code makes them, every panel classed, and every query answered by a live Prometheus."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from hushstream.replay.report.committed import settle

DEPLOY = Path(__file__).parents[2] / "deploy"
BOARDS = (
    "hushstream-overview",
    "hushstream-benefit",
    "hushstream-privacy",
    "hushstream-performance",
    "hushstream-zone",
    "hushstream-gateway",
)
ALLOWED = {
    "released": {"released"},
    "slot-public": {"released", "slot-public"},
    "zone-private": {"released", "slot-public", "zone-private"},
}


@pytest.fixture(scope="module")
def live(grafana, tmp_path_factory):
    """A deployment that was played, and the two Prometheus that scraped it."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (Debian: apt-get install prometheus)")
    with grafana.live.LiveRun(tmp_path_factory.mktemp("live"), users=100, pace=200) as run:
        run.play()
        yield run


def committed(name):
    (path,) = (DEPLOY / "grafana" / "dashboards").glob(f"*/{name}.json")
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_committed_dashboards_are_what_the_code_makes(grafana):
    assert settle(grafana.build.wanted(), check=True) == 0
    folder = DEPLOY / "grafana" / "dashboards"
    found = {path.stem: path.parent.name for path in folder.rglob("*.json")}
    assert found == {board.uid: board.endpoint for board in grafana.panels.BOARDS}
    assert found.keys() == set(BOARDS)


def test_a_changed_panel_is_noticed(grafana, tmp_path, monkeypatch, capsys):
    shutil.copytree(DEPLOY / "grafana" / "dashboards", tmp_path / "dashboards")
    monkeypatch.setattr(grafana.build, "FOLDER", tmp_path / "dashboards")
    changed = tmp_path / "dashboards" / "zone" / "hushstream-zone.json"
    changed.write_text(changed.read_text(encoding="utf-8").replace("15m", "20m"), encoding="utf-8")
    assert settle(grafana.build.wanted(), check=True) == (1 if "20m" in changed.read_text(encoding="utf-8") else 0)
    (tmp_path / "dashboards" / "public" / "hushstream-privacy.json").unlink()
    assert settle(grafana.build.wanted(), check=True) == 1
    assert "hushstream-privacy.json" in capsys.readouterr().err


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_asks_one_question_and_says_the_class_of_its_metrics(grafana, classes_in, name):
    board = next(board for board in grafana.panels.BOARDS if board.uid == name)
    for shown, panel in zip(committed(name)["panels"], board.panels, strict=True):
        assert shown["title"] == panel.title
        assert panel.title.endswith(("?", ")"))
        assert shown["description"].endswith(f"Class: {board.class_of(panel)}.")
        read = set().union(*(classes_in(target["expr"]) for target in shown["targets"]))
        assert read <= ALLOWED[board.class_of(panel)], panel.title
        assert board.class_of(panel) in read, panel.title
        assert ("zone-private" in read) == (board.endpoint == "zone"), panel.title
        assert [target["expr"] for target in shown["targets"]] == [query.expr for query in panel.queries]


def test_a_limit_that_is_drawn_is_that_of_the_alert_which_it_names(grafana, rules):
    exprs = {rule["alert"]: rule["expr"] for found in rules.values() for rule in found if "alert" in rule}
    drawn = [panel for board in grafana.panels.BOARDS for panel in board.panels if panel.alert]
    assert len(drawn) >= 12
    for panel in drawn:
        limits = [float(number) for number in re.findall(r"[<>]=?\s*(?:bool\s+)?([0-9.]+)", exprs[panel.alert])]
        # What fires above none, or where one is over another, is drawn where it begins.
        assert panel.limit in limits or (panel.limit == 1 and (not limits or 0 in limits)), panel.title


def test_what_is_committed_draws_its_limits_and_names_its_values():
    (path,) = (DEPLOY / "grafana" / "dashboards").glob("*/hushstream-privacy.json")
    panels = {panel["title"]: panel for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]}
    defaults = panels["Was anybody charged more than planned?"]["fieldConfig"]["defaults"]
    assert defaults["mappings"][0]["options"]["0"]["text"] == "as planned"
    assert defaults["thresholds"]["steps"][1] == {"value": 1.0, "color": "red"}
    fill = panels["Are windows full when they close?"]["fieldConfig"]["defaults"]
    assert fill["custom"]["thresholdsStyle"]["mode"] == "dashed"
    assert [step["color"] for step in fill["thresholds"]["steps"]] == ["red", "green"]


def test_the_axis_of_a_lift_shows_what_is_below_0_and_no_other_is_cut_off():
    (path,) = (DEPLOY / "grafana" / "dashboards").glob("*/hushstream-benefit.json")
    panels = json.loads(path.read_text(encoding="utf-8"))["panels"]
    free = [panel["title"] for panel in panels if "min" not in panel["fieldConfig"]["defaults"]]
    assert free == [
        "What is the gain over own learning?",
        "What is the gain over your own choice?",
    ]


@pytest.mark.parametrize("name", BOARDS)
def test_panels_fill_the_width_without_overlap(name):
    taken = set()
    for panel in committed(name)["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


@pytest.mark.process
@pytest.mark.parametrize("name", BOARDS)
def test_every_query_of_every_panel_returns_data_from_a_live_prometheus(grafana, live, name):
    endpoint = next(board.endpoint for board in grafana.panels.BOARDS if board.uid == name)
    for panel in committed(name)["panels"]:
        for target in panel["targets"]:
            found = live.ask(endpoint, target["expr"])
            # Few users are the baseline's: while their noised count does not stand out, no gain over them is known.
            assert found or 'group="baseline"' in target["expr"], (panel["title"], target["expr"])
            assert all(value == value for series in found for _, value in series.points), panel["title"]


@pytest.mark.process
def test_what_was_played_is_what_the_dashboards_show(live):
    decided = live.ask("public", 'sum(hushstream_decisions_total{role="learner"})')
    # 100 contributors, then 50 users in each of two arms, three rounds each; asking for a model decides once more.
    assert 600 <= decided[0].points[0][1] <= 640
    assert live.ask("public", "sum(hushstream_windows_sealed_total)")[0].points[0][1] >= 4
    assert live.ask("public", "max(hushstream_model_version)")[0].points[0][1] >= 4
    assert live.ask("zone", "sum(hushstream:dead_letters:increase15m)")[0].points[0][1] > 0
    # Who begins with a model is counted for the lift, with noise, and so many are too few to tell its sign from.
    counted = {one.labels["group"]: one.points[0][1] for one in live.ask("public", "hushstream_lift_decisions")}
    assert counted.keys() == {"model", "own", "baseline"}
    # The 50 of one arm, three times each, at least; all contributors, both arms and requests for a model at most. Four
    # standard deviations of the noise of 200 releases in two partitions are 60.
    assert 150 - 60 <= sum(counted.values()) <= 640 + 60
    # A group whose noised count is not positive has no mean then, and few users are the baseline's. A true uplift is 1
    # at most; four standard deviations beyond are seen once in 15,000 releases.
    uplift, half = (
        {(one.labels["group"], at): value for one in live.ask_range("public", expr) for at, value in one.points}
        for expr in ("hushstream:lift:uplift", "hushstream:lift:half_width")
    )
    assert {"own"} <= {group for group, _ in uplift} <= {"own", "baseline"}
    last = {group: max(at for of, at in uplift.keys() & half.keys() if of == group) for group, _ in uplift}
    assert all(half[one] > 0 and abs(uplift[one]) < 1 + 4 / 1.96 * half[one] for one in last.items())
    # What readiness is judged by: every partition was given to somebody, who runs it; and all loops turn.
    for name in ("assigned", "held"):
        share = f"sum by (role) (hushstream_partitions_{name}) / max by (role) (hushstream_partitions_declared)"
        assert {found.labels["role"]: found.points[0][1] for found in live.ask("public", share)} == dict.fromkeys(
            ("learner", "shuffler", "aggregator"), 1
        )
    assert live.ask("public", "max(hushstream_heartbeat_age_seconds)")[0].points[0][1] < 60


@pytest.mark.process
def test_the_public_prometheus_holds_no_zone_private_series(live):
    from hushstream.agents.observe.metrics import METRICS

    private = {spec.name for spec in METRICS if spec.metric_class == "zone-private"}
    public, zone = (set(live.names(endpoint)) for endpoint in ("public", "zone"))
    assert not {name for name in public if any(name.startswith(one) for one in private)}
    assert {"hushstream_events_total", "hushstream_edge_batch_seconds_bucket"} <= zone


@pytest.mark.process
def test_nothing_is_wrong_while_all_goes_well(live):
    firing = live.ask("public", 'ALERTS{alertstate="firing"}')
    assert [series.labels["alertname"] for series in firing] == []
