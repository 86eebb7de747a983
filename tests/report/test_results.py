import pytest

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.feedback.join import JoinOutcome
from hushstream.privacy.mechanisms.guarantee import paper_guarantee, slot_sums_guarantee
from hushstream.privacy.promises.promise import NOT_PRIVATE, REPRODUCIBLE
from hushstream.privacy.promises.sentence import PERSON, UNIT
from hushstream.replay.report.parts import COUNT_CLASSES, RoleCheck, slot_public
from hushstream.replay.report.payoff import Gap, Payoff
from hushstream.replay.report.replayed import Column, RunCurve, RunRows
from hushstream.replay.result import BadResult, Headline
from hushstream.schemas.rows import Reason
from hushstream.systems.catalogue import kinds

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
    assert stated.summary.startswith("one slot of one user, replace-one: epsilon 1.4, delta ")
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
