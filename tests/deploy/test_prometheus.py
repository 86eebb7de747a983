"""Configuration, rules and alerts of Prometheus: valid, tested both ways, classed, and explained."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
HOME = DEPLOY / "prometheus"
ALLOWED = {
    "released": {"released"},
    "slot-public": {"released", "slot-public"},
    "zone-private": {"released", "slot-public", "zone-private"},
}
RULES = {
    (path.name, rule["alert"])
    for path in (HOME / "rules").glob("*.yml")
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
"""Alerts with the files that hold them: one of learners, in the zone, may be called as that of other roles."""
ALERTS = {alert for _, alert in RULES}
CASES = sorted((HOME / "cases").glob("*.yml"))


@pytest.mark.parametrize("name", ["prometheus.yml", "zone.yml"])
def test_prometheus_accepts_the_configuration_with_its_rules(promtool, name):
    code, said = promtool("check", "config", name)
    assert code == 0, said
    assert "SUCCESS" in said


def test_every_alert_fires_and_stays_silent_as_its_cases_say(promtool):
    code, said = promtool("test", "rules", *(f"cases/{path.name}" for path in CASES))
    assert code == 0, said


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not():
    fires: set[tuple[str, str]] = set()
    silent: set[tuple[str, str]] = set()
    for path in CASES:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        for test in document["tests"]:
            for case in test.get("alert_rule_test", ()):
                tried = {(Path(file).name, case["alertname"]) for file in document["rule_files"]}
                (fires if case["exp_alerts"] else silent).update(tried & RULES)
    assert fires == silent == RULES


@pytest.mark.sweep
@pytest.mark.parametrize("broken", ["vector(0) > 1", "vector(1)"], ids=["never", "always"])
def test_the_cases_notice_every_alert_that_fires_never_or_always(promtool, tmp_path, broken):
    copied = tmp_path / "prometheus"
    shutil.copytree(HOME, copied)
    for path in (copied / "rules").glob("*.yml"):
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        for group in document["groups"]:
            for rule in group["rules"]:
                if "alert" in rule:
                    rule["expr"] = broken
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
    code, said = promtool("test", "rules", *(f"cases/{path.name}" for path in CASES), cwd=copied)
    assert code != 0
    assert set(re.findall(r"alertname: (\w+), time", said)) == ALERTS


def test_an_alert_names_the_class_of_the_metrics_that_it_reads(rules, classes_in):
    for file, found in rules.items():
        for rule in found:
            if "alert" in rule:
                stated = rule["labels"]["metric_class"]
                assert classes_in(rule["expr"]) <= ALLOWED[stated], rule["alert"]
                assert (stated == "zone-private") == (file == "zone"), rule["alert"]
                assert stated != "slot-public" or "slot-public" in classes_in(rule["expr"]), rule["alert"]


def test_rules_of_the_public_prometheus_read_nothing_zone_private(rules, classes_in):
    for rule in (*rules["recording"], *rules["alerts"]):
        assert "zone-private" not in classes_in(rule["expr"])


def test_the_public_prometheus_scrapes_public_ports_alone_and_the_zones_its_zone():
    for name, port, files in (("prometheus", 9101, "public"), ("zone", 9201, "zone")):
        scrape = yaml.safe_load((HOME / f"{name}.yml").read_text(encoding="utf-8"))["scrape_configs"]
        assert [place for job in scrape for found in job["file_sd_configs"] for place in found["files"]] == [
            f"targets/{files}.yml"
        ]
        for entry in yaml.safe_load((HOME / "targets" / f"{files}.yml").read_text(encoding="utf-8")):
            assert {int(target.rsplit(":", 1)[1]) for target in entry["targets"]} == {port}
            assert {"deployment", "role"} == set(entry["labels"])


def test_the_first_page_of_the_runbook_says_of_every_alert_what_to_do_first():
    page = (DEPLOY / "docs" / "runbook.md").read_text(encoding="utf-8").split("\n## ")[1]
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| [")]
    named = [name for row in rows for name in re.findall(r"\[(\w+)\]\(#", row[0])]
    assert sorted(named) == sorted(ALERTS)
    assert all(cell.strip() for row in rows for cell in row)
    assert len(page) < 6_000, "one reads it at night"


def test_the_runbook_is_shorter_than_60_000_characters():
    assert len((DEPLOY / "docs" / "runbook.md").read_text(encoding="utf-8")) < 60_000


def test_every_alert_links_to_a_section_of_the_runbook(rules):
    headings = re.findall(r"^#+ (.+)$", (DEPLOY / "docs" / "runbook.md").read_text(encoding="utf-8"), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for found in rules.values():
        for rule in found:
            if "alert" in rule:
                page, anchor = rule["annotations"]["runbook"].split("#")
                assert page == "deploy/docs/runbook.md"
                assert anchor == rule["alert"].lower()
                assert anchor in anchors
