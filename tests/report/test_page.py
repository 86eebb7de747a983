"""The page of a result: whole, from nowhere else, with every figure, and with the verdict that follows from it."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from hushstream.privacy.mechanisms.guarantee import paper_guarantee, slot_sums_guarantee
from hushstream.privacy.promises.page import groups_of
from hushstream.replay.report.parts import RoleCheck
from hushstream.replay.report.payoff import Gap, Payoff, paired_gap
from hushstream.replay.report.replayed import page as page_of
from hushstream.replay.report.replayed import write
from hushstream.replay.result import BadResult, Headline

VOID = {"meta", "img", "source", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """What a page asks for, shows and says."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.captions: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "figcaption":
            self.captions.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.words.append(data)
        if "figcaption" in self.open:
            self.captions[-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def words(result) -> Page:
    """The page of a result."""
    return Page(page_of(result, ("results.json",)))


@pytest.fixture(scope="module")
def source(tmp_path_factory, result) -> str:
    """The page as a report holds it."""
    return write(result, tmp_path_factory.mktemp("report"))[-1].read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(source) -> Page:
    return Page(source)


def test_every_element_is_closed_and_the_language_and_title_are_named(page):
    assert page.open == []
    assert page.all("html")[0]["lang"] == "en"
    assert page.all("title")
    assert page.all("meta")[1]["content"] == "width=device-width, initial-scale=1"


def test_the_page_asks_for_nothing_from_elsewhere(page):
    assert not [tag for tag, _ in page.tags if tag in ("script", "link", "iframe", "object", "base", "form", "img")]
    for _, attributes in page.tags:
        for name in ("src", "srcset", "href", "xlink:href", "poster", "action", "data", "background"):
            assert (attributes.get(name) or "#").startswith("#")
        assert "url(" not in (attributes.get("style") or "")
    policy = next(meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'")


def test_the_style_sheet_asks_for_nothing_and_knows_dark_and_narrow_screens(source):
    style = source.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style
    assert "max-width: 44rem" in style
    assert "http" not in source.replace("http-equiv", "")


def pictures(page):
    """The drawings of a page; each stands there in two widths."""
    return [attributes for attributes in page.all("svg") if attributes.get("role") == "img"]


def test_every_picture_is_there_for_wide_and_narrow_screens_and_described(page):
    assert [one["class"] for one in pictures(page)] == ["wide", "narrow"]
    assert all(len(one["aria-label"]) > 60 for one in pictures(page))
    assert len({one["aria-label"] for one in pictures(page)}) == 1
    # The description of the rewards gives the figures of the first and of the last interaction.
    assert "at 1: shared private model 0." in pictures(page)[0]["aria-label"]
    assert "at 10: shared private model 0." in pictures(page)[0]["aria-label"]


def test_pictures_have_the_colours_of_the_page_and_names_of_their_own(source, page):
    body = source.partition("</style>")[2]
    assert not re.search(r"#[0-9a-fA-F]{6}\b", body)
    assert "var(--blue)" in body
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(names) == len(set(names))
    asked = {a["href"][1:] for tag, a in page.tags if "href" in a}
    asked |= {a["clip-path"][5:-1] for _, a in page.tags if "clip-path" in a}
    assert asked <= set(names)


def test_the_navigation_leads_to_every_part(page):
    anchors = [a["href"][1:] for a in page.all("a")]
    assert anchors == [a["id"] for a in page.all("h2")]
    assert anchors[0] == "outcome"


def test_seed_guarantee_deployment_and_digest_stand_once_at_the_end(page, result):
    footer = page.text[page.text.rindex("Where this comes from") :]
    for fact in ("Seed 3", f"Guarantee {result.privacy.summary}", "Deployment demo (hosted)", "Run broker and workers"):
        assert fact in footer
    assert page.text.count(result.config_digest) == 1
    assert result.config_digest in footer


def stands(group, page) -> bool:
    """Whether all lines of a group stand on a page; its bars say what the line in words does."""
    return all(line.text in page.text for line in group.lines if line.key != "belief")


def test_the_whole_guarantee_stands_on_the_page_and_each_fact_once(page, result):
    assert page.text.count(result.privacy.sentence()) == 1
    assert result.privacy.lifetime.units == 1
    for group in groups_of(result.privacy):
        assert stands(group, page)
        # One report is a whole life here: what is said of one is not said again of the other.
        assert (group.title in page.text) == (group.key not in ("short", "readers", "person"))
    assert page.text.count("what is protected, against anything else in its place") == 1
    assert "Counted of one person" not in page.text
    assert [text for text in page.captions if "epsilon" in text] == []
    assert page.all("details")


def test_conditions_of_the_guarantee_stand_on_the_page(make_result):
    stated = paper_guarantee(threshold=10, sampling=0.5)
    page = words(make_result(privacy=stated))
    assert all(stands(group, page) for group in groups_of(stated))


def test_marks_stand_at_the_top(make_result):
    stated = paper_guarantee(threshold=10, sampling=0.5).under_key(True)
    page = words(make_result(privacy=stated))
    assert [a["role"] for a in page.all("div") if a.get("class") == "mark"] == ["note"] * 2
    for mark in ("NOT PRIVATE AS STATED", "REPRODUCIBLE, NOT PRIVATE"):
        assert page.text.index(mark) < page.text.index("Outcome")


def test_a_page_without_marks_claims_none(page):
    assert not [a for a in page.all("div") if a.get("class") == "mark"]


def test_the_headline_stands_with_its_interval_below_what_was_reached(make_result):
    """ "92 % of what a model without privacy earns" hid that own learning alone earns half of it."""
    kept = Headline("share of the gain that is kept", 0.816, 0.78, 0.85)
    reached = "A shared private model raised new users' mean reward from 0.120 (own learning only) to 0.438"
    text = words(make_result(headline=kept, reached=reached)).text
    assert text.index(reached) < text.index("Outcome") < text.index("82 %")
    assert "Share of the gain that is kept; 95 % interval 78 % to 85 %." in text


def test_what_a_run_remarks_stands_with_the_outcome(make_result):
    assert "There is nothing to share." in words(make_result(remarks=("There is nothing to share.",))).text


def test_a_live_run_says_why_it_shows_no_rewards(live_result):
    page = words(live_result)
    assert "This is a live run" in page.text
    assert not pictures(page)
    assert "public data only" not in page.text.partition("happened how often")[2].partition("Value")[2]


def test_every_count_says_whether_it_tells_of_users(page):
    assert "Slot 1,400" in page.text
    assert "Rewards sent, also of 0 for a replayed dataset only 32,000" in page.text


def test_measured_quantities_stand_with_their_units(make_result):
    measured = {
        "seconds": 17.25,
        "decisions": 60_000.0,
        "decisions_per_second": 1454.5,
        "events_per_second": 3706.4,
        "decision_seconds_p99": 0.0441,
        "peak_memory_bytes_learner": 181_400_000.0,
    }
    text = words(make_result(throughput=measured)).text
    for line in (
        "Duration 17.25 s",
        "Events per second 3,706",
        "Asked to answered in the replay's queue, 99 % within 0.0441 s",
        "Service time of a decision 0.2875 ms",
        "Peak memory learner 181.4 MB",
    ):
        assert line in text


def test_what_verify_found_stands_on_the_page(make_result):
    page = words(make_result(verify={"learner": RoleCheck(27), "shuffler": RoleCheck(2, changed=1)}))
    assert "Verify: changed (at least one published record differs" in page.text
    assert [a["class"] for a in page.all("small") if "class" in a] == ["good", "bad"]
    assert "Verify did not run." in words(make_result(verify=None)).text


def test_tables_have_captions_and_headings_with_a_scope(page):
    tables = page.all("table")
    assert len(tables) == len(page.all("caption")) == 4
    assert all(heading.get("scope") in ("col", "row") for heading in page.all("th"))
    labels = {a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a}
    assert labels <= {a.get("id") for a in page.all("h2")}


def test_names_are_shown_as_text_and_never_as_markup(make_result):
    hostile = '<img src=x onerror="alert(1)">&amp;\'"{{ 7*7 }}$x^2$'
    page = words(
        make_result(
            dataset=hostile,
            runner=hostile,
            deployment=hostile,
            throughput={hostile: 1.0, "decisions_per_second": 1.0},
            verify={hostile: RoleCheck(1)},
            environment={hostile: hostile},
            privacy=replace(slot_sums_guarantee(epsilon=1), unit=hostile, mechanism=hostile, conditions=(hostile,)),
        )
    )
    assert page.open == []
    assert len(pictures(page)) == 2
    assert not page.all("img")
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert page.text.count(hostile) >= 7


def test_the_beginning_stands_beside_the_mean(make_result, result):
    ours, other = "shared private model", "own learning only"
    curve = replace(result.curve, at=(1, 2), lines={ours: (0.4, 0.45), other: (0.1, 0.4)}, half_widths={})
    text = words(make_result(curve=curve)).text
    assert f"First of 2 visits of a new user 0.400 against 0.100 {ours} against {other}" in text
    assert f"Last of 2 0.450 against 0.400 {ours} against {other}" in text


# Does it pay: the interval, the verdict and the words.


def payoff(low: float | None, high: float | None, **more: Any) -> Payoff:
    value = 0.0 if low is None or high is None else (low + high) / 2
    given: dict[str, Any] = {
        "what": "share of labels right",
        "value": 0.6,
        "baseline": "nodes that keep apart",
        "reference": 0.6 - value,
        "gap": Gap(value, low, high, 64),
        "units": "nodes",
        "otherwise": "keep apart, or take an epsilon of at least 3",
    }
    return Payoff(**{**given, **more})


@pytest.mark.parametrize(
    ("low", "high", "less", "verdict", "begins"),
    [
        (0.01, 0.02, False, "pays", "In this run it pays: "),
        (-0.02, -0.01, False, "does not pay", "In this run it does not pay: "),
        (-0.02, -0.01, True, "pays", "In this run it pays: "),
        (0.01, 0.02, True, "does not pay", "In this run it does not pay: "),
        (-0.01, 0.02, False, "too close to call", "Too close to call in this run"),
        (-0.01, 0.0, True, "too close to call", "Too close to call in this run"),
        (None, None, False, "too close to call", "Too close to call in this run"),
    ],
)
def test_the_verdict_follows_from_the_interval_alone(low, high, less, verdict, begins):
    found = payoff(low, high, less_is_better=less)
    assert found.verdict == verdict
    assert found.sentence.startswith(begins)
    assert ("Keep apart, or take an epsilon of at least 3." in found.sentence) == (verdict != "pays")
    assert found.as_json()["verdict"] == verdict


def test_the_sentence_names_both_figures_the_interval_and_its_method():
    assert payoff(-0.02, -0.006).sentence == (
        "In this run it does not pay: share of labels right 0.600 against 0.613 of nodes that keep apart (-0.013; 95 % "
        "interval -0.020 to -0.006, paired over 64 nodes of this run, whose noise was drawn once). Keep apart, or take "
        "an epsilon of at least 3."
    )


def test_a_comparison_in_worlds_drawn_from_a_log_says_so_and_a_wide_interval_that_the_log_cannot_tell():
    said = payoff(-0.02, -0.006, fitted="over 24 worlds").sentence
    assert said.startswith("In worlds that fit this log it does not pay: ")
    assert "interval -0.020 to -0.006, over 24 worlds)." in said
    assert payoff(-0.02, 0.006, fitted="over 24 worlds").sentence.startswith("This log cannot tell whether it pays: ")


def test_rows_of_one_group_count_as_one():
    """Ten users with 100 equal differences each are ten values, not a thousand."""
    by_user = np.random.default_rng(1).normal(0.1, 1.0, 10)
    users = np.repeat(np.arange(10), 100)
    rows = np.repeat(by_user, 100)
    alone = paired_gap(by_user, np.zeros(10))
    together = paired_gap(rows, np.zeros(1000), users)
    assert together.groups == 10
    assert (together.low, together.high) == pytest.approx((alone.low, alone.high))
    assert paired_gap(rows, np.zeros(1000)).groups == 1000


def test_the_interval_holds_in_95_of_100():
    """2,000 seeded samples of 12 users with 5 dependent rows: the count of misses is binomial about 100 +- 9.7.

    A true miss rate of .05 leaves 60 to 140 with probability 4e-5; an interval that takes rows as independent misses
    some 25 %, 500 of them.
    """
    draw = np.random.default_rng(5)
    users, misses = np.repeat(np.arange(12), 5), 0
    for _ in range(2000):
        shared = np.repeat(draw.normal(0.0, 1.0, 12), 5) + draw.normal(0.0, 0.5, 60)
        gap = paired_gap(shared, np.zeros(60), users)
        assert gap.low is not None
        assert gap.high is not None
        misses += not gap.low <= 0.0 <= gap.high
    assert 60 <= misses <= 140


def test_one_group_has_no_interval_and_no_rows_are_refused():
    assert paired_gap(np.ones(5), np.zeros(5), np.zeros(5, dtype=np.int64)) == Gap(1.0, None, None, 1)
    with pytest.raises(BadResult, match="at least one"):
        paired_gap(np.ones(0), np.ones(0))
