"""The document, the terminal, pictures and files of a result: every field stands there, and nothing that is private."""

from __future__ import annotations

import csv
import io
import json
import re
import struct
from dataclasses import asdict, fields
from importlib.resources import files

import matplotlib
import numpy as np
import pytest
from rich.console import Console

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.feedback.join import JoinOutcome
from hushstream.privacy.mechanisms.guarantee import paper_guarantee, slot_sums_guarantee, tuples_guarantee
from hushstream.privacy.promises.page import page_json
from hushstream.privacy.promises.promise import NOT_PRIVATE, REPRODUCIBLE
from hushstream.privacy.promises.sentence import PERSON, UNIT
from hushstream.replay.report.parts import COUNT_CLASSES, EXACT, RoleCheck, paired, slot_public
from hushstream.replay.report.payoff import Gap, Payoff
from hushstream.replay.report.replayed import (
    RELEASED,
    Column,
    RunCurve,
    RunRows,
    document,
    drawing,
    provenance_lines,
    table,
    view,
    write,
)
from hushstream.replay.report.sheet import NARROW, WIDE, Drawing, Sheet, png, svg
from hushstream.replay.result import BadResult, Headline, ReportNotWritten
from hushstream.replay.studies.p2b.run import reward_figures
from hushstream.schemas.rows import Reason
from hushstream.systems.catalogue import kinds


def through_text(result):
    return json.loads(json.dumps(document(result), allow_nan=False))


def test_every_field_of_a_result_stands_in_the_document_exactly(result, live_result, make_result):
    tuples = tuples_guarantee(threshold=50, sampling=0.5, lifetime_slots=2).under_key(True)
    variants = [result, live_result, make_result(verify=None, seed=None), make_result(privacy=tuples)]
    elsewhere = {"reached": "answers", "verdict": "answers", "warnings": "marks", "unprotected": "figures"}
    shown_alone = {"picture", "sections", "ending", "details"}
    for variant in variants:
        found = through_text(variant)
        for one in fields(variant):
            if one.name in elsewhere:
                assert elsewhere[one.name] in found
            elif one.name not in shown_alone:
                wanted = json.loads(json.dumps(shown(one.name, getattr(variant, one.name))))
                assert found[one.name] == wanted, one.name


def shown(name, value):
    """How a field's value stands in the document, written down a second time."""
    if name == "privacy":
        return page_json(value)
    if name == "rows":
        return value.plain
    if name == "curve":
        return value.points
    if name == "facts":
        return {key.replace(" ", "_"): one for key, one in value.items()}
    if name == "verify" and value is not None:
        return {role: {"status": check.status, **asdict(check)} for role, check in value.items()}
    return value


def test_the_promised_keys_stand_in_the_document(result):
    found = through_text(result)
    assert {row["condition"] for row in found["rows"]} == {
        "shared private model",
        "own learning only",
        "shared, non-private",
    }
    assert all({"users", "mean_reward", "ci95"} <= set(row) for row in found["rows"])
    assert all({"line", "at", "value", "ci95"} == set(point) for point in found["curve"])
    assert {"sentence", "person", "unit", "mechanism", "not_protected"} <= set(found["privacy"])
    assert found["privacy"]["unit"]["zero_out"]["epsilon"] == 1.0
    assert found["counts"] == {"slot": 1400, "rewarded": 32_000}
    assert found["count_classes"] == {"slot": "slot-public", "rewarded": "zone-private"}
    assert found["throughput"]["events_per_second"] == 15_527.25


def shown_of_table(result, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table(result))
    return console.file.getvalue()


def words(text: str) -> str:
    """Without the places where lines end."""
    return " ".join(text.split())


def test_the_terminal_shows_arms_guarantee_speed_and_verify(result):
    text = shown_of_table(result)
    for row in result.rows.plain:
        assert re.search(rf"^ *{row['condition']} .* {row['mean_reward']:.4f} ", text, re.MULTILINE)
    assert text.startswith("A shared private model raised new users' mean reward")
    assert result.privacy.sentence() in words(text)
    assert "demo (hosted)" in text
    assert "7,764 decisions/s" in text
    assert "30 records equal, 1 float tie, 0 changed" in text


def test_marks_come_first_on_the_terminal(make_result):
    stated = paper_guarantee(threshold=10, sampling=0.5).under_key(True)
    text = shown_of_table(make_result(privacy=stated))
    assert text.index("NOT PRIVATE AS STATED") < text.index("REPRODUCIBLE, NOT PRIVATE") < text.index("  mean reward")


def test_a_live_run_shows_its_guarantee_without_rewards(live_result):
    text = shown_of_table(live_result)
    assert "mean reward" not in text
    assert live_result.privacy.sentence() in words(text)


def test_names_are_not_read_as_markup(make_result):
    text = shown_of_table(make_result(dataset="[red]data[/red]", deployment="[bold]d"))
    assert "p2b on [red]data[/red]" in text
    assert "[bold]d (hosted)" in text


@pytest.mark.parametrize("width", [48, 60])
def test_narrow_terminals_keep_every_figure(result, width):
    text = shown_of_table(result, width)
    assert f"{result.rows['shared private model']['mean_reward']:.4f}" in text
    assert result.config_digest in "".join(text.split())


def test_a_changed_record_is_said(make_result):
    assert "0 records equal, 0 float ties, 1 changed" in shown_of_table(
        make_result(verify={"learner": RoleCheck(0, changed=1)})
    )


def cold(rewards):
    """Mean and half-width of users with own learning only, in all and by interaction."""
    rows, curve = reward_figures({"cold": rewards})
    (name,) = curve.lines
    return rows[name], curve.lines[name], curve.half_widths[name]


def test_means_and_intervals_come_from_the_users():
    rewards = np.array([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    whole, means, halves = cold(rewards)
    # The users' means are 0.5, 1 and 0: their standard deviation is 0.5.
    assert whole["mean_reward"] == pytest.approx(0.5)
    assert whole["ci95"] == pytest.approx(1.959964 * 0.5 / 3**0.5, rel=1e-6)
    assert whole["users"] == 3
    assert means == pytest.approx((1 / 3, 2 / 3))
    assert halves[0] == pytest.approx(1.959964 * rewards[:, 0].std(ddof=1) / 3**0.5, rel=1e-6)


def test_interactions_of_one_user_are_not_taken_as_independent():
    rng = np.random.default_rng(1)
    one_round = (rng.random((400, 1)) < 0.3).astype(float)
    same_again = np.repeat(one_round, 25, axis=1)
    assert cold(same_again)[0]["ci95"] == pytest.approx(cold(one_round)[0]["ci95"])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (3,)])
def test_nobody_has_no_mean(shape):
    with pytest.raises(BadResult, match="shape"):
        cold(np.zeros(shape))


@pytest.mark.parametrize("value", [-0.1, 1.1, np.nan, np.inf])
def test_rewards_outside_their_range_are_refused(value):
    with pytest.raises(BadResult, match="in \\[0, 1\\]"):
        cold(np.array([[0.5, value]]))


def test_one_user_alone_gives_an_interval_that_claims_nothing():
    whole, _, halves = cold(np.array([[1.0, 0.0]]))
    assert whole["ci95"] == halves[0] == 1.0


def test_the_interval_of_paired_units_covers_the_ratio_in_95_of_100_runs():
    """Units that share most of their spread; with 2,000 runs the share is 0.95 +- 0.005, so 4 of these are allowed."""
    rng, runs, units = np.random.default_rng(4), 2_000, 300
    covered = width = 0.0
    for _ in range(runs):
        shared = rng.gamma(4.0, 1.0, units)
        compared = paired(1.3 * shared + rng.normal(0, 0.5, units), shared + rng.normal(0, 0.5, units))
        covered += compared.low <= 1.3 <= compared.high
        width += compared.high - compared.low
    assert 0.93 <= covered / runs <= 0.97
    # Taken as independent the same means would have an interval more than four times as wide.
    assert width / runs < 0.1


def test_pairs_without_anything_below_have_no_ratio():
    assert paired(np.ones(5), np.zeros(5)) is None
    assert paired(np.ones(1), np.ones(1)) is None


def chunks(png: bytes) -> dict[bytes, bytes]:
    """The chunks of a PNG by type."""
    found, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        found[png[at + 4 : at + 8]] = png[at + 8 : at + 8 + length]
        at += 12 + length
    return found


def test_a_live_run_has_no_picture_of_content(result, live_result):
    assert [*view(result).pictures] == ["rewards"]
    assert not view(live_result).pictures


def test_equal_results_give_equal_pictures_whatever_the_users_own_settings_are(result):
    plot = drawing(result)
    once, page = png(plot, ["Seed: 3."]), svg(plot)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.dpi": 10}):
        assert png(plot, ["Seed: 3."]) == once
        assert svg(plot) == page
        assert matplotlib.rcParams["font.size"] == 30


def test_pictures_carry_no_time_and_no_version(result):
    kinds = set(chunks(png(drawing(result), ["Seed: 3."])))
    assert kinds <= {b"IHDR", b"pHYs", b"IDAT", b"IEND"}


def test_a_file_has_room_for_its_provenance(result):
    plot = drawing(result)
    sizes = [struct.unpack(">II", chunks(png(plot, lines))[b"IHDR"][:8]) for lines in ([], ["Seed: 3."] * 4)]
    assert sizes[1][0] == sizes[0][0]
    assert sizes[1][1] > sizes[0][1]


def test_panels_stand_side_by_side_only_where_there_is_room():
    wide, narrow = Sheet(WIDE), Sheet(NARROW)
    for sheet, columns in ((wide, 3), (narrow, 1)):
        panels = sheet.panels(5)
        assert panels[0].get_gridspec().ncols == columns
        assert len(sheet.figure.axes) == 5


def test_a_colour_without_a_dark_form_is_refused():
    def draw(sheet):
        sheet.panels()[0].plot([0, 1], [0, 1], color="#123456")

    with pytest.raises(KeyError, match="#123456"):
        svg(Drawing("odd", "Odd", "", "", draw))


OWNED = ("results.json", "rows.csv", "rewards.csv", "rewards.png", "index.html")
NOT_PRIVATE_LINE = "shared, non-private"


@pytest.fixture(scope="module")
def written(tmp_path_factory, result):
    return write(result, tmp_path_factory.mktemp("runs") / "new" / "report")


def test_a_report_holds_every_file_and_the_page_comes_last(written):
    assert [path.name for path in written] == list(OWNED)
    assert sorted(path.name for path in written[0].parent.iterdir()) == sorted(OWNED)
    assert all(path.stat().st_size > 100 for path in written)


def test_equal_results_give_equal_bytes(written, tmp_path, result):
    again = write(result, tmp_path)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


def test_results_json_is_the_document_of_the_result(written, result):
    assert json.loads(written[0].read_text(encoding="utf-8")) == json.loads(json.dumps(document(result)))


def test_the_csv_files_hold_every_row_and_every_point_exactly(written, result):
    for path, wanted in ((written[1], result.rows.plain), (written[2], result.curve.points)):
        with path.open(newline="") as source:
            rows = list(csv.DictReader(source))
        assert [[row[name] for name in wanted[0]] for row in rows] == [
            [str(value) for value in one.values()] for one in wanted
        ]


def test_every_row_of_every_file_says_what_is_exact_in_it_and_what_is_not_private(written, result):
    """A column that leaves its folder is read without the page's legend."""
    for path, name in ((written[1], "condition"), (written[2], "line")):
        with path.open(newline="") as source:
            rows = list(csv.DictReader(source))
        for row in rows:
            assert EXACT in row["figures"]
            assert (NOT_PRIVATE in row["figures"]) == (row[name] == NOT_PRIVATE_LINE)
        assert {row[name] for row in rows} > {NOT_PRIVATE_LINE}
    assert NOT_PRIVATE in document(result)["figures"]
    assert EXACT in drawing(result).caption
    assert any(line.startswith(f"Figures: {EXACT}") for line in provenance_lines(result))


def test_a_live_run_says_that_nothing_of_it_is_exact(live_result):
    assert document(live_result)["figures"] == RELEASED


def test_a_live_run_leaves_no_exact_figure_and_none_of_an_earlier_run(tmp_path, result, live_result):
    write(result, tmp_path)
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    write(live_result, tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"results.json", "index.html", "notes.txt"}
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert (found["rows"], found["curve"]) == ([], [])


def test_a_folder_that_cannot_be_written_is_named(tmp_path, live_result):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ReportNotWritten, match="expected a folder to write to"):
        write(live_result, tmp_path / "file")


def test_the_template_and_its_style_sheet_belong_to_the_package():
    names = {entry.name for entry in files("hushstream.replay.report").iterdir()}
    assert {"page.html.j2", "page.css"} <= names


ROWS = RunRows("", (Column("condition"), Column("mean_reward")), (("own learning only", 0.5),))
CURVE = RunCurve(name="rewards", title="", caption="", what="", across="", at=(1,), lines={"own": (0.5,)})
PAYS = Payoff(
    what="reward", value=0.5, baseline="", reference=0.4, gap=Gap(0.1, 0.05, 0.15, 9), units="users", otherwise=""
)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("rows", ROWS, "rows: expected no exact figure"),
        ("curve", CURVE, "curve: expected no exact figure"),
        ("headline", Headline("kept", 0.8), "headline: expected no exact figure"),
        ("payoff", PAYS, "payoff: expected no exact figure"),
        ("counts", {"slot": 3, "rewarded": 2}, "got rewarded"),
        ("counts", {"records_dead-letters-edge": 2}, "got records_dead-letters-edge"),
    ],
)
def test_a_live_run_refuses_exact_figures_on_content(make_result, field, value, says):
    with pytest.raises(BadResult, match=says) as caught:
        make_result(public=False, **{field: value})
    assert "marked public" in str(caught.value)


def test_a_live_run_may_show_its_guarantee_its_slots_and_its_speed(live_result):
    assert live_result.counts == {"slot": 1400}
    assert live_result.throughput["seconds"] > 0


def test_every_count_of_the_machines_has_a_class():
    names = {str(name) for kind in (Outcome, JoinOutcome, Refusal, Reason) for name in kind}
    assert names | {f"records_{topic.name}" for kind in kinds().values() for topic in kind.topics} <= set(COUNT_CLASSES)


def test_what_tells_something_of_content_is_zone_private():
    joins = {str(name) for kind in (JoinOutcome, Refusal, Reason) for name in kind}
    dead = {name for name in COUNT_CLASSES if "dead" in name}
    private = joins | dead | {"rejected", "decided", "reports", "null_slots", "withheld", "records_clicks"}
    assert dead
    assert {COUNT_CLASSES[name] for name in private} == {"zone-private"}


def test_only_slot_public_counts_pass_the_filter():
    assert slot_public({"slot": 1, "window": 2, "rewarded": 3, "late_reward": 4}) == {"slot": 1, "window": 2}


def test_a_count_without_a_class_is_refused_even_for_public_data(make_result):
    with pytest.raises(BadResult, match="privacy class, got ages"):
        make_result(counts={"ages": 1})


def test_an_impossible_check_is_refused():
    with pytest.raises(BadResult):
        RoleCheck(-1)


def test_the_marks_of_the_guarantee_cannot_be_left_out(make_result):
    guarantee = paper_guarantee(threshold=10, sampling=0.5).under_key(True)
    marked = make_result(privacy=guarantee)
    assert marked.marks == (NOT_PRIVATE, REPRODUCIBLE)


def test_a_guarantee_is_stated_with_exact_amounts_rounded_up():
    stated = slot_sums_guarantee(epsilon="0.7", lifetime_slots=3)
    assert stated.summary.startswith("one report of one user, replace-one: epsilon 1.4, delta ")
    assert f"; {UNIT.zero_out}: epsilon 0.7, delta " in stated.summary
    assert "; one person in a whole life: " in stated.summary
    assert stated.in_life.startswith(f"{PERSON.which}: epsilon 4.2, delta ")
    assert f"; {PERSON.zero_out}: epsilon 2.1, delta " in stated.in_life


def test_a_guarantee_that_renews_is_never_shown_without_its_lifetime():
    once, renewed = (slot_sums_guarantee(epsilon=1, lifetime_slots=slots) for slots in (1, 3))
    assert "life" not in once.summary
    assert renewed.summary.endswith(f"; one person in a whole life: {renewed.in_life}")


@pytest.mark.parametrize(
    ("check", "status"),
    [
        (RoleCheck(5), "equal"),
        (RoleCheck(5, ties=1), "float tie"),
        (RoleCheck(5, ties=1, uncheckable=1), "uncheckable"),
        (RoleCheck(5, ties=1, changed=1, uncheckable=1), "changed"),
        (RoleCheck(0), "uncheckable"),
    ],
)
def test_the_status_of_a_role_is_the_worst_that_was_found(check, status):
    assert check.status == status
