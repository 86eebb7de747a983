from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from hushstream.privacy.mechanisms.guarantee import paper_guarantee, slot_sums_guarantee
from hushstream.replay.report.results import RoleCheck, StatedGuarantee
from hushstream.replay.report.summaries import Comparison
from hushstream.replay.studies.p2b.report.folder import write_report
from hushstream.replay.studies.p2b.report.page import run_page
from hushstream.replay.studies.p2b.report.plots import plots
from hushstream.replay.studies.p2b.report.results import ConditionRow, ConditionSummary

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
    """The page without its pictures, for what is said in words."""
    return Page(run_page(result, [], ["results.json"]))


def whole(result) -> Page:
    """The page with its pictures."""
    return Page(run_page(result, plots(result), ["results.json"]))


@pytest.fixture(scope="module")
def source(tmp_path_factory, result) -> str:
    """The page as a report holds it."""
    return write_report(result, tmp_path_factory.mktemp("report"))[-1].read_text(encoding="utf-8")


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
    assert [one["class"] for one in pictures(page)] == ["wide", "narrow"] * 3
    assert all(len(one["aria-label"]) > 60 for one in pictures(page))
    assert len({one["aria-label"] for one in pictures(page)}) == 3
    # The description of the rewards gives the figures of the first and of the last interaction.
    assert "At the first: cold 0." in pictures(page)[0]["aria-label"]
    assert "At the last interaction: cold 0." in pictures(page)[0]["aria-label"]


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


def test_the_whole_guarantee_stands_on_the_page(page, result):
    for line in result.privacy.lines:
        name, _, fact = line.partition(": ")
        assert fact in page.text
        assert name == "Not protected" or name in page.text


def test_conditions_of_the_guarantee_stand_on_the_page(make_result):
    stated = StatedGuarantee.of(paper_guarantee(threshold=10, sampling=0.5))
    page = words(make_result(privacy=stated, release_mode="paper", sampling=0.5))
    for line in stated.lines:
        assert (line.partition(": ")[2] or line) in page.text


def test_marks_stand_at_the_top(make_result):
    stated = StatedGuarantee.of(paper_guarantee(threshold=10, sampling=0.5).under_key(True))
    page = words(make_result(privacy=stated, release_mode="paper", sampling=0.5, marks=("SHORT RUN",)))
    assert [a["role"] for a in page.all("div") if a.get("class") == "mark"] == ["note"] * 3
    for mark in ("NOT PRIVATE AS STATED", "REPRODUCIBLE, NOT PRIVATE", "SHORT RUN"):
        assert page.text.index(mark) < page.text.index("Outcome")


def test_a_page_without_marks_claims_none(page):
    assert not [a for a in page.all("div") if a.get("class") == "mark"]


def test_the_outcome_gives_the_ratio_with_its_interval(make_result):
    conditions = {
        "cold": ConditionSummary(0.1205, 0.0097, 600),
        "warm_nonprivate": ConditionSummary(0.5095, 0.0124, 600),
        "warm_private": ConditionSummary(0.438, 0.0125, 600),
    }
    kept = Comparison(0.86, 0.84, 0.88)
    text = words(make_result(conditions=conditions, kept=kept)).text
    assert text.index("86 % of what a model without privacy earns (84 to 88 %), ") < text.index("Outcome")
    assert "earn 3.63 times what users earn who start cold (95 % interval 3.35 to 3.97)" in text
    assert "0.4255 to 0.4505" in text


def test_a_cold_mean_near_zero_gets_words_instead_of_a_ratio(make_result):
    conditions = {"cold": ConditionSummary(0.0, 0.0, 9), "warm_private": ConditionSummary(0.4, 0.1, 9)}
    page = words(make_result(conditions=conditions, rows=()))
    assert "has no ratio" in page.text
    assert "×" not in page.text


def test_a_live_run_says_why_it_shows_no_rewards(live_result):
    page = whole(live_result)
    assert "This is a live run" in page.text
    assert len(pictures(page)) == 2
    assert "public data only" not in page.text.partition("happened how often")[2].partition("Value")[2]


def test_every_count_says_whether_it_tells_of_users(page):
    assert "Slot 1,400" in page.text
    assert "Rewarded shown where a dataset is replayed 32,000" in page.text


def test_measured_quantities_stand_with_their_units(make_result):
    measured = {
        "seconds": 17.25,
        "decisions": 60_000.0,
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
    assert [a["class"] for a in page.all("small") if "class" in a] == ["bad", "good", "bad"], "NOT PRIVATE first"
    assert "Verify did not run." in words(make_result(verify=None)).text


def test_tables_have_captions_and_headings_with_a_scope(page):
    tables = page.all("table")
    assert len(tables) == len(page.all("caption")) == 4
    assert all(heading.get("scope") in ("col", "row") for heading in page.all("th"))
    labels = {a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a}
    assert labels <= {a.get("id") for a in page.all("h2")}


def test_names_are_shown_as_text_and_never_as_markup(make_result):
    hostile = '<img src=x onerror="alert(1)">&amp;\'"{{ 7*7 }}$x^2$'
    stated = slot_sums_guarantee(epsilon=1).as_json()
    page = whole(
        make_result(
            system=hostile,
            dataset=hostile,
            runner=hostile,
            deployment=hostile,
            marks=(hostile,),
            throughput={hostile: 1.0},
            verify={hostile: RoleCheck(1)},
            environment={hostile: hostile},
            privacy=StatedGuarantee({**stated, "unit": hostile}, (f"Mechanism: {hostile}.", hostile)),
        )
    )
    assert page.open == []
    assert len(pictures(page)) == 6
    assert not page.all("img")
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert page.text.count(hostile) >= 9


def test_what_the_start_is_worth_at_once_stands_beside_the_mean(make_result):
    rows = tuple(
        ConditionRow(arm, place, 400, mean, 0.02)
        for arm, means in (("cold", (0.1, 0.4)), ("warm_private", (0.4, 0.45)))
        for place, mean in enumerate(means, start=1)
    )
    text = words(make_result(rows=rows)).text
    assert "At the first interaction 4.00× 0.400 warm, private; 0.100 cold; 95 % interval" in text
    assert "At the first interaction" not in words(make_result(rows=())).text
