"""`hushstream init` and `hushstream plan`: a draft that the own check accepts, and what a deployment will bring."""

from __future__ import annotations

import io
import re

import pytest

from hushstream.engine.declare.plan import DAYS
from hushstream.replay.logged.drafts.deployment import WINDOWS, Shop
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
    assert set(BY_SYSTEM) == {name for name, kind in kinds().items() if kind.plan is not None} == set(kinds())


@pytest.mark.parametrize("text", [*BY_SYSTEM.values(), CODES], ids=[*BY_SYSTEM, "codes"])
def test_one_command_says_what_it_brings_and_what_that_assumes(cli, written, text):
    path = written(text)
    asked = ("plan", path, "--users", "20000", "--visits-per-user", "12")
    found = cli(*asked, "--json").json
    said = cli(*asked).out
    paragraphs = said.split("\n\n")
    assert paragraphs[-1].splitlines() == ["Assumed", *(f"  {one}" for one in found["assumed"])]
    assert found["verdict"] == paragraphs[0].splitlines()[0]
    assert [life["days"] for life in found["lives"]] == [1, 30, 365]
    assert found["lives"][-1]["prices"].startswith("one person, replace-one: epsilon ")
    assumed = "\n".join(found["assumed"])
    assert ("ten simulated worlds of 1,000 to" in assumed) == (text in (SHOP, CODES)), "only these were drawn"
    assert ("do not change, nor features of a user" in assumed) == (text == SHOP), "codes' contexts do change"
    wide = "spread over items times 8, of the whole context times 8\nnine of ten simulated worlds"
    assert (wide in assumed) == (text == CODES), "histograms' worlds differ more: the features' held 17 of 40"
    assert "partitions" in found["sizes"]
    for title in ("Noise", "Charged to one person", "Size"):
        assert f"\n{title}\n" in said
    for point in found["points"]:
        share = point["share"]
        assert share is None or 0 <= share["low"] <= share["middle"] <= share["high"]


def test_a_plan_of_codes_names_the_public_table_that_gained_more_than_its_range(cli, written):
    """As `hushstream replay p2b --dataset tmc2007` plays it: a label is right in 11 % of visits; .33 became .51."""
    text = CODES.replace("10}", "20}").replace("20000", "192") + "slot: {after_interactions: 100}\n"
    path = written(text + "release: {window_units: 192}\n")
    asked = ("--users", 192, "--visits-per-user", 100, "--click-rate", 0.11, "--json")
    found = cli("plan", path, *asked).json
    ours, alone = (found["values"][name] for name in ("this deployment", "own learning"))
    assert max(ours["high"] - alone["low"], ours["high"] - alone["high"]) < 0.51 - 0.33, "the range should be mended"
    assert "TMC2007 far more: 192 reports raised its reward from .33 to .51" in "\n".join(found["assumed"])


def test_a_shop_with_enough_visitors_gets_ahead_once_its_first_window_has_closed(cli, written):
    path = written(SHOP)
    found = cli("plan", path, "--users", "20000", "--visits-per-user", "12", "--json").json
    assert found["beats_own_learning"] is True
    # The tenth of twelve visits in thirty days is made after 22.5, and 5,000 of 667 a day come 7.5 days later.
    assert found["first_day_better"]["expected"] == 30
    shares = {point["day"]: point["share"]["middle"] for point in found["points"]}
    assert list(shares) == list(DAYS)
    assert shares[21] == 0
    assert 0.5 < shares[45] < shares[90] == shares[365] < 1, "nobody comes after the stated users"
    assert found["values"]["own learning"]["middle"] < found["values"]["this deployment"]["middle"]
    assert found["lives"][0]["prices"] is None
    assert "epsilon 2" in found["lives"][1]["prices"]


@pytest.mark.parametrize(
    ("text", "users", "visits", "said"),
    [
        (SHOP, 20_000, 9, "a report is due after 10 visits, and a user makes 9"),
        (SHOP, 100, 12, "a window closes at 5,000 reports of a partition, and within a year there are 100"),
        (SHOP + "privacy: {epsilon: 0.0001}\n", 20_000, 12, "as assumed, even with large effects: noise is too much"),
        (CODES + "release: {mechanism: tuples, sampling: 0.5}\n", 20_000, 12, "stay below the threshold of 50"),
        (MALL + "privacy: {epsilon: 0.00001}\n", 20, 12, "unless others' items suit their users better on average"),
        (CLINICS + "privacy: {epsilon: 0.1}\n", 500, 2, "keep apart, or take a larger epsilon"),
        (MALL.replace(", {name: south, items: {capacity: 5}}", ""), 20_000, 12, "one vendor has nobody to share with"),
        (FILMS, 1, 2, "will not beat own learning (each device alone)"),
        (CLUB + "learner: {algorithm: linucb}\n", 50, 20, "perhaps no better than random"),
    ],
)
def test_where_it_will_not_pay_it_says_so_plainly(cli, written, text, users, visits, said):
    found = cli("plan", written(text), "--users", users, "--visits-per-user", visits, "--json").json
    assert found["beats_own_learning"] is False
    assert "will not beat" in found["verdict"]
    assert said in found["verdict"]


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (4, "The best single item for everybody should earn less"),
        (200, "The best single item for everybody is expected to earn more"),
    ],
)
def test_a_plan_that_expects_less_than_the_best_single_item_brings_says_so(cli, written, items, said):
    text = SHOP.replace("capacity: 10", f"capacity: {items}").replace("window_units: 5000", "window_units: 2000")
    found = cli("plan", written(text), "--users", 5_000, "--visits-per-user", 12, "--json").json
    middle = {name: one["middle"] for name, one in found["values"].items()}
    assert (middle["this deployment"] < middle["the best single item"]) == ("is expected" in said)
    assert said in found["verdict"]


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (24, "Too late for these users, of whom the last comes on day 24: the first better model comes on day 24."),
        (30, "A better model comes late: on day 24, and 20% of these users come after it. It will"),
        (120, "It will beat own learning"),
    ],
)
def test_a_plan_says_how_few_of_its_users_come_after_a_better_model(cli, written, days, said):
    """It said "will" where the model came on the day of the last user, too; each slot is due 22.5 days after a user."""
    text = SHOP.replace("window_units: 5000", "window_units: 1000")
    asked = ("--users", 20_000, "--visits-per-user", 12, "--days", days, "--visit-days", 30, "--json")
    assert cli("plan", written(text), *asked).json["verdict"].startswith(said)


def test_one_item_for_everybody_is_compared_where_it_is_hardest_to_beat(cli, written):
    """Items that differ most and features that tell least are no end of the range of the gain, and were left out: there
    a plan "expected" what four of six drawn worlds did not have."""
    found = cli("plan", written(SHOP), "--users", 20_000, "--visits-per-user", 12, "--json").json
    ours, single = (found["values"][name] for name in ("this deployment", "the best single item"))
    assert all(ours[end] > single[end] for end in ("low", "middle", "high"))
    assert "The best single item for everybody should earn less" in found["verdict"]


@pytest.mark.parametrize(("window", "late"), [(1000, False), (15_000, True)])
def test_a_plan_says_under_which_effects_it_will_help_and_whether_its_users_begin_with_a_model(
    cli, written, window, late
):
    """The word was unconditional, and "better from day 45" was said of users of whom the last had come on day 30."""
    text = SHOP.replace("window_units: 5000", f"window_units: {window}")
    found = cli("plan", written(text), "--users", 20_000, "--visits-per-user", 12, "--json").json
    first = found["first_day_better"]["expected"]
    assert (first > 30) == late
    said = (
        f"Too late for these users, of whom the last comes on day 30: the first better model comes on day {first}. "
        "For later users: "
    )
    will = "It will beat own learning if effects are in the range assumed; after a year"
    assert (f"{said}{will}" in found["verdict"]) == late
    assert will in found["verdict"]
    one = next(point for point in found["points"] if point["day"] == first)
    assert one["share"]["middle"] > 0, "the table has the day of the verdict"


def test_what_nobody_begins_with_is_not_measured_and_sizes_are_for_the_stated_users(cli, written):
    """It said that nothing is released within a year, and which difference its users' models would show."""
    text = SHOP + "measurement: {baseline: 0.1, own: 0.1, epsilon: 0.5}\n"
    for users, released in ((100, False), (20_000, True)):
        found = cli("plan", written(text), "--users", users, "--visits-per-user", 12, "--json").json
        assert any("hushstream lift" in note for note in found["notes"]) == released
        assert f"for these {users:,} users" in found["sizes"]["learner, memory"]


@pytest.mark.parametrize(
    ("days", "horizon", "counted", "compared"), [(30, 128, 0, 0), (365, 128, 4_164, 2), (365, 10, 0, 0)]
)
def test_a_plan_counts_for_the_lift_whom_it_will_count(cli, written, days, horizon, counted, compared):
    """It said what all 20,000 show, of whom none begins with a model, and by a day after the last release.

    Ten visits of twelve, 2.5 days apart: 5,000 slots at 20,000 in 365 days are there on day 114, and 14 days are left.
    """
    measured = f"measurement: {{baseline: 0.1, own: 0.1, epsilon: 2, decisions_per_user: 20, releases: {horizon}}}\n"
    asked = ("--users", 20_000, "--visits-per-user", 12, "--days", days, "--visit-days", 30, "--json")
    notes = cli("plan", written(SHOP + measured), *asked).json["notes"]
    if horizon == 128:
        counted = {30: 0, 365: 20_000 * 14 // 365}[days]
    assert f"counts {counted:,} of these users" in notes[0]
    assert sum("12 decisions of each" in one for one in notes) == compared


def test_users_may_come_over_a_year_while_the_visits_of_each_take_a_month(cli, written):
    asked = ("plan", written(SHOP), "--users", 20_000, "--visits-per-user", 10, "--days", 335, "--json")
    # 5,000 slots at 59.7 a day take 83.75 days; each is due at the tenth visit, 27 days after the first, or 301.5.
    for more, day in ((("--visit-days", 30), 111), ((), None)):
        found = cli(*asked, *more).json
        assert next((point["day"] for point in found["points"] if point["units"] >= 5_000), None) == day


def test_a_plan_of_ratings_says_which_scatter_its_rmse_rests_on(cli, written):
    """The range of the RMSE is .001 wide where the scatter alone, which was assumed unsaid, makes .187 of it."""
    found = cli("plan", written(FILMS), "--users", 20_000, "--visits-per-user", 50, "--json").json
    assert found["values"]["without privacy"]["middle"] > 0.187
    assert "ratings scatter around user and item by 0.187" in found["assumed"][0]
    assert found["assumed"][1].startswith("range: item offsets ")


def test_checking_a_configuration_that_cannot_do_what_it_is_for_says_so_and_exits_2(cli, written):
    noisy = written(SHOP + "privacy: {epsilon: 0.0001}\n")
    found = cli("config", "check", noisy)
    assert found.code == 2
    assert found.out.startswith(f"{noisy}: valid, but useless\n")
    assert "\nuseless: with the 20,000 reports expected: It will not beat own learning" in found.out
    assert found.out.endswith(f"\nnext: hushstream plan {noisy}\n")
    found = cli("config", "check", noisy, "--json")
    assert (found.code, len(found.json["useless"])) == (2, 1)
    found = cli("config", "check", written(SHOP), "--json")
    assert (found.code, found.json["useless"]) == (0, [])


@pytest.mark.parametrize(("added", "code"), [("", 0), ("privacy: {epsilon: 0.0001}\n", 2)])
def test_a_warning_comes_before_what_to_do_next(cli, written, added, code):
    timed = SHOP.replace("window_units: 5000", "window_units: 5000, window_seconds: 60, sums: counter, horizon: 100")
    found = cli("config", "check", written(timed + added))
    kinds = [line.partition(" ")[0] for line in found.out.splitlines()]
    assert (found.code, kinds[1:]) == (code, ["guarantee:", "useless:" if code else "plan:", "warning:", "next:"])


@pytest.mark.parametrize(
    ("changed", "least"), [("", 5_000), ("partitions: {shuffler: 2}\n", 10_000), ("slot: {}\n", 5_000)]
)
def test_a_window_larger_than_all_expected_slots_is_refused_before_anything_is_made(
    cli, written, tmp_path, changed, least
):
    """It promised a release that no number of days would have brought; one slot more is accepted."""
    short, enough = (
        written(SHOP.replace("20000", str(slots)) + changed, f"{slots}.yaml") for slots in (least - 1, least)
    )
    found = cli("prepare", short, tmp_path / "short")
    assert found.code == 1
    assert f"{least - 1:,} are expected in the whole life" in found.err
    assert "nothing would ever be released. State release.window_units of at most " in found.err
    assert not (tmp_path / "short").exists()
    checked = cli("config", "check", short)
    assert checked.code == 2
    assert f"{short}: valid, but useless\n" in checked.out
    assert "\nuseless: release.window_units: a window closes at 5,000 reports" in checked.out
    assert cli("prepare", enough, tmp_path / "enough").code == 0
    timed = written(short.read_text("utf-8").replace("window_units: 5000", "window_units: 5000, window_seconds: 3600"))
    assert cli("prepare", timed, tmp_path / "timed").code == 0


def test_a_plan_without_numbers_is_for_the_audience_that_the_check_of_the_configuration_takes(cli, refused, written):
    """`config check` took expected_slots, where `plan` refused to run without --users."""
    noisy = written(SHOP + "privacy: {epsilon: 0.0001}\n")
    verdict = cli("plan", noisy, "--json").json["verdict"]
    assert cli("config", "check", noisy).out.count(f"\nuseless: with the 20,000 reports expected: {verdict}") == 1
    stated = ("--users", 20_000, "--visits-per-user", 10, "--days", 335, "--visit-days", 30)
    assert cli("plan", written(SHOP)).out == cli("plan", written(SHOP), *stated).out
    visits = ("--users", 5_000, "--days", 60)
    assert cli("plan", written(SHOP), *visits).out == cli("plan", written(SHOP), *visits, "--visits-per-user", 10).out
    assert "plan: expected --users, as colin has no setting for it" in refused(
        "plan", written(CLUB), "--visits-per-user", 10
    )
    assert "for example --users 20000 --visits-per-user 12" in refused("plan", written(CLUB), "--users", 10)


def test_days_with_one_forecast_have_one_line_and_equal_costs_are_said_once(cli, written):
    asked = ("plan", written(SHOP), "--users", 20_000, "--visits-per-user", 12)
    points, said = cli(*asked, "--json").json["points"], cli(*asked).out
    table = said.split("\n\n")[3].splitlines()[1:]
    assert len(table) < len(points)
    assert len({line.split(maxsplit=1)[1] for line in table}) == len(table)
    assert table[0].split()[:2] == ["1", "0"]
    assert "within 30, 365 days: epsilon 2, delta" in said


def test_the_picture_is_a_png_and_equal_plans_have_equal_ones(cli, written, refused, tmp_path):
    first, again = tmp_path / "a.png", tmp_path / "b.png"
    for picture in (first, again):
        asked = ("--users", "20000", "--visits-per-user", "12", "--picture", picture)
        assert cli("plan", written(SHOP), *asked).code == 0
    assert first.read_bytes() == again.read_bytes()
    assert first.read_bytes().startswith(b"\x89PNG")
    none = ("--users", "9", "--visits-per-user", "2", "--picture", first)
    assert "figures against time" in refused("plan", written(MALL), *none)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--users", "0", "users: expected"),
        ("--visits-per-user", "0", "visits-per-user: expected"),
        ("--days", "0", "days: expected"),
        ("--visit-days", "0", "visit-days: expected"),
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
    assert any("a new report 90 days after one fell due, and 4 in their life" in one for one in renewed["assumed"])
    assert renewed["lives"][-1]["prices"].startswith("one person, replace-one: epsilon 3,")


def test_new_slots_need_a_cap_and_a_system_that_has_slots(refused, written):
    for text, expected in ((SHOP, "privacy.units_per_person: expected at least 2"), (CLUB, "renew_every_seconds")):
        asked = ("plan", written(text), "--users", "20000", "--visits-per-user", "12", "--renew-every", "90")
        assert expected in refused(*asked)


STATED = ("--items", 6, "--known", "device=phone,laptop", "--known", "age=16..96", "--levels", 4, "--rate", 0.1)


@pytest.mark.parametrize(("name", "visits"), [("null", 2_000), ("2027", 50_000)])
def test_a_draft_is_accepted_by_the_own_check_without_a_warning(cli, tmp_path, name, visits):
    path = tmp_path / f"{name}.yaml"
    drafted = cli("init", path, *STATED, "--known", "likes=sport|music", "--visits", visits, "--visits-per-user", 4)
    assert drafted.code == 0
    if "# measurement: left out; it takes " in path.read_text(encoding="utf-8"):
        assert re.search(r"it takes [\d,]{6,} users who begin with a model to show", path.read_text(encoding="utf-8"))
    said = cli("config", "check", path).out
    assert said.startswith(f"{path}: valid\n")
    printed, day = next(line for line in drafted.out.splitlines() if "hushstream plan" in line).split("   # ")
    found = cli(*printed.split()[1:], "--json").json
    assert day.endswith(f"; from day {found['first_day_better']['expected']}"), "both have one traffic"
    assert ("\nmeasurement:" in path.read_text(encoding="utf-8")) == (found["facts"]["detects"] is not None)
    assert found["facts"]["detects"] is None or found["facts"]["detects"] <= found["facts"]["gain"], (
        "control groups cost something: they tell"
    )
    assert found["beats_own_learning"] is True
    assert "warning:" not in said


def test_too_few_visits_are_told_with_a_number_that_would_do(cli, refused, tmp_path):
    stated = ("init", tmp_path / "shop.yaml", *STATED, "--visits-per-user", 4)
    said = refused(*stated, "--visits", 50)
    assert "may not beat users' own learning" in said
    assert not list(tmp_path.iterdir())
    enough = re.search(r"would work: ([\d,]+) visits a month", said)
    assert enough is not None, said
    assert cli(*stated, "--visits", enough[1].replace(",", "")).code == 0
    assert cli("config", "check", tmp_path / "shop.yaml").code == 0


@pytest.mark.parametrize("known", ["country", "=de,fr", "country=de", "country=de,fr,gb age=16..96"])
def test_a_feature_that_is_none_is_refused(refused, tmp_path, known):
    stated = ("init", tmp_path / "shop.yaml", "--items", 6, "--levels", 1, "--rate", 0.1, "--visits", 90_000)
    said = refused(*stated, "--visits-per-user", 4, "--known", known)
    assert "known: expected one feature, as NAME=a,b,c (one of these)" in said
    assert f"got {known!r}" in said


def test_a_shop_that_best_sellers_would_serve_better_is_refused(cli, refused, tmp_path):
    """A year of 1,767 visits a month beats own learning, and the best single item for everybody beats both."""
    path = tmp_path / "shop.yaml"
    stated = ("init", path, "--items", 40, "--known", "country=de,fr", "--levels", 1, "--rate", 0.04)
    stated += ("--visits-per-user", 4)
    said = refused(*stated, "--visits", 1_767)
    assert (
        "is not expected to earn 2% more than the best single item for everybody (0.0556 against that item's 0.0651 a "
        "visit; an item at random earns 0.04)" in said
    )
    enough = re.search(r"would work: ([\d,]+) visits a month", said)
    assert enough is not None, said
    printed = next(
        line for line in cli(*stated, "--visits", enough[1].replace(",", "")).out.splitlines() if " plan " in line
    )
    found = cli(*printed.partition("   # ")[0].split()[1:], "--json").json["values"]
    assert found["this deployment"]["middle"] >= found["the best single item"]["middle"]
    assert f"`hushstream init {path} --items 40 --levels 1 --rate 0.04 --visits " in said
    assert said.endswith(" --visits-per-user 4 --known country=de,fr`\n")
    own = re.sub("expected_slots: .*", "expected_slots: 5300", path.read_text(encoding="utf-8"))
    path.write_text(re.sub("window_units: .*", "window_units: 2650", own), encoding="utf-8")
    first, *_, last = cli("config", "check", path).out.splitlines()
    assert first.startswith(f"{path}: valid, but a shared private model is not expected to earn 2% more than the best")
    assert last == f"next: hushstream plan {path}"


def test_a_log_becomes_a_draft_that_waits_for_its_owners_word(cli, refused, tmp_path):
    """The first header is empty, as `to_csv` of a data frame writes it; other names are words of YAML."""
    log = tmp_path / "my log.csv"
    rows = (
        f"{row},u{row % 900},{'abcdef'[row % 6]},{('on', 'no')[row // 6 % 2]},{row * 13 % 59},{int(row % 11 == 0)}"
        for row in range(3600)
    )
    log.write_text(",user,item,null,age,click\n" + "\n".join(rows) + "\n", encoding="utf-8")
    marked, public = tmp_path / "marked.yaml", tmp_path / "public.yaml"
    stated = ("--from", log, "--visits", 20_000)
    assert "say --public" in cli("init", marked, *stated).out
    assert "features.null.vocabulary" in refused("config", "check", marked)
    assert "expected no file" in refused("init", marked, *stated)
    assert cli("init", public, *stated, "--public").code == 0
    assert cli("config", "check", public).code == 0
    few = cli("init", tmp_path / "few.yaml", "--from", log, "--visits", 10)
    assert (few.code, (tmp_path / "few.yaml").exists()) == (0, True), "`evaluate` needs the draft all the same"
    assert few.err.startswith("warning: whether so few visits teach a model that beats users' own learning depends on")
    assert "`hushstream evaluate` measures them on the log, and its verdict counts" in few.err
    assert "too few" not in few.err, "the evaluation of such a log may say Deploy"
    assert few.out.splitlines()[0].endswith(
        "30 users in its life (a year of 10 visits a month, 4 each), 2 models for them, no control "
        "groups. Read it through; then:"
    )
    drafted = (tmp_path / "few.yaml").read_text(encoding="utf-8")
    assert "cannot tell a difference" not in drafted, "4,000 users of whom it was said tell .11 of a rate of .25"
    assert "# measurement: left out; first evaluate whether there is a gain\n" in drafted
    assert "hushstream up" not in few.out, "no step leads to a deployment that is not forecast to help"
    assert f"evaluate --log '{log}' --mapping" in few.out, "a printed command works as printed"
    mapping = public.with_suffix(".map.yaml")
    assert mapping.read_text(encoding="utf-8") == marked.with_suffix(".map.yaml").read_text(encoding="utf-8")


def test_a_log_of_other_names_is_drafted_by_the_mapping_that_is_given(cli, refused, tmp_path):
    """The columns that are there are told, unless they may be cells of a first row."""
    log, config, mapping = (tmp_path / name for name in ("log.csv", "wine.yaml", "own.yaml"))
    rows = [f"p{row % 700};{'xyz'[row % 3]};{row % 50};{row % 4 / 4}" for row in range(2_100)]
    log.write_text("\n".join(["user;wine;age;stars", *rows]), encoding="utf-8")
    said = refused("init", config, "--from", log)
    assert "got user, wine, age, stars; rename it, or say what the columns mean (--mapping FILE" in said
    mapping.write_text("data: internal\ndelimiter: ;\nuser: user\narm: wine\narms: [x, y, z]\nreward: stars\n", "utf-8")
    kept = mapping.read_text("utf-8")
    drafted = cli("init", config, "--from", log, "--mapping", mapping)
    assert (drafted.code, mapping.read_text("utf-8"), sorted(tmp_path.glob("*map*"))) == (0, kept, [])
    assert f"--mapping {mapping}" in drafted.out
    text = config.read_text("utf-8")
    assert "expected: 3" in text
    assert ("reward_levels: 4" in text, "age:" in text, "stars:" in text, "wine:" in text) == (True, True, False, False)
    log.write_text("\n".join(rows), encoding="utf-8")
    said = refused("init", tmp_path / "other.yaml", "--from", log)
    assert "is the first line a header?" in said
    assert "p0" not in said


def test_what_no_flag_states_is_asked_for_where_somebody_can_answer(cli, refused, tmp_path, monkeypatch):
    path = tmp_path / "shop.yaml"
    assert "expected --items, --known, --rate, --visits, --visits-per-user where nobody can" in refused("init", path)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", Terminal("8\ndevice=phone,laptop\nhour=clock\n\n1\n3000\n3%\n0.05\n30000\n5\n"))
    asked = cli("init", path)
    assert asked.code == 0
    assert (asked.out + asked.err).count("expected a share from 0 to 1, as 0.03 for 3 %, got '3") == 2
    assert "hour: {kind: time_of_day}" in path.read_text(encoding="utf-8")
    assert cli("config", "check", path).code == 0


def test_each_draft_closes_a_window_though_a_quarter_of_its_users_send_no_slot():
    """`Shop.visits` are those of three in four users; a size is rounded, so 1,500 users are drafted as 2,000."""
    for users in range(2, 5_000):
        drafts = [Shop(name="shop", items=2, features=(), users=users, visits=4, windows=one) for one in WINDOWS]
        assert max(one.window for one in drafts) <= 3 * users / 4, users


def middle_of(found):
    return {name: one["middle"] for name, one in found["values"].items()}


@pytest.mark.parametrize(
    ("text", "days", "begins"),
    [
        (SHOP, "0.01", "It will not beat own learning: a report leaves before the wait for rewards"),
        (CODES, "0.01", "It may or may not beat own learning: a report leaves before rewards of most of its visits"),
        (SHOP, "30", ""),
        (CODES, "30", ""),
    ],
)
def test_reports_that_leave_before_their_rewards_can_come_are_not_said_to_teach(cli, written, text, days, begins):
    """Such a report of features is null; one of codes tells of rewarded visits alone: in three drawn worlds of which
    the plan said "will", users then earned .01 to .32 less than by own learning."""
    feedback = "feedback: {settle_seconds: 60, attribution_window_seconds: 7200"
    late = f"{text}{feedback}}}\n" if text == CODES else text.replace("feedback: {", f"{feedback}, ")
    asked = ("plan", written(late), "--users", "20000", "--visits-per-user", "12", "--visit-days", days, "--json")
    found = cli(*asked).json
    assert ("leaves before" in found["verdict"]) == bool(begins)
    assert begins in found["verdict"]
    if text == SHOP and begins:
        assert found["values"]["this deployment"] == found["values"]["own learning"]


def test_where_tuples_are_withheld_new_users_earn_what_own_learning_earns(cli, written):
    """ "It will not beat own learning" stood over nearly twice its reward."""
    path = written(CODES + "release: {mechanism: tuples, sampling: 0.5}\n")
    found = middle_of(cli("plan", path, "--users", 20_000, "--visits-per-user", 12, "--json").json)
    assert found["this deployment"] == found["own learning"] < found["without privacy"]


def test_decisions_that_are_drawn_earn_what_a_random_item_does(cli, written):
    def said(share):
        text = SHOP + (f"exploration: {{choice: epsilon, share: {share}}}\n" if share else "")
        return middle_of(cli("plan", written(text), "--users", 20_000, "--visits-per-user", 12, "--json").json)

    none, half, every = said(0), said(0.5), said(1)
    for name in ("own learning", "this deployment", "without privacy"):
        assert every[name] == pytest.approx(0.08)
        assert half[name] == pytest.approx((none[name] + every[name]) / 2)
    assert half["the best single item"] == none["the best single item"]


@pytest.mark.parametrize(("rate", "said"), [(0.4, "40.00% of visits (as given)"), (1.0, "5.00% of visits (a guess")])
def test_how_many_visits_are_rewarded_is_not_how_much_graded_rewards_are_worth(cli, written, rate, said):
    """A log whose random item earns .43 had a plan from .76 on, and of a share of 1 it was said that .05 was given."""
    text = SHOP.replace("click_rate: 0.08", f"click_rate: {rate}, reward_levels: 4")
    asked = ("plan", written(text), "--users", 20_000, "--visits-per-user", 12, "--json")
    found, told = cli(*asked).json, cli(*asked, "--click-rate", 0.3).json
    assert "if each reward were whole" in found["measure"]
    assert told["measure"] == "reward a visit of a new user"
    assert any(said in one for one in found["assumed"])


@pytest.mark.parametrize(("users", "visits"), [(1, 12), (20_000, 100), (20_000, 100_000)])
def test_a_plan_of_few_users_or_many_visits_says_what_own_learning_earns_in_which_visits(cli, written, users, visits):
    """Own learning over a hundred visits was called that of 100,000; a model in clear of one user was called worse."""
    found = cli("plan", written(SHOP), "--users", users, "--visits-per-user", visits, "--json").json
    assert middle_of(found)["without privacy"] >= middle_of(found)["own learning"]
    for said in (found["measure"], found["verdict"]):
        assert ("over the first 100 visits" in said) == (visits > 100)


def test_a_deployment_of_devices_has_no_learners_to_size(cli, written):
    found = cli("plan", written(f"{SHOP}kind: edge\n"), "--users", 20_000, "--visits-per-user", 12, "--json").json
    assert not any("learner" in f"{name} {size}" for name, size in found["sizes"].items())
    assert found["sizes"]["partitions"].startswith("shuffler 1:")
