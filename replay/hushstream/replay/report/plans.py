"""The picture of a plan: the share of the non-private gain against time, with its range."""

from __future__ import annotations

from functools import partial

from hushstream.engine.declare.plan import Plan
from hushstream.privacy.amounts import count_text
from hushstream.replay.report.palette import BLUE, INK
from hushstream.replay.report.sheet import Drawing, Sheet, png
from hushstream.replay.report.values import BadResult


def plan_picture(plan: Plan, deployment: str) -> bytes:
    """A plan as PNG bytes, with its assumptions below; equal plans give equal bytes.

    Raises:
        BadResult: the plan has no figures against time.
    """
    if not plan.points:
        raise BadResult(f"plan: expected a system with figures against time for a picture, got {plan.system}")
    shown = Drawing(
        "plan",
        f"{deployment}: share of the non-private gain against time",
        plan.verdict,
        plan.verdict,
        partial(_draw, plan),
    )
    facts = (plan.verdict, *(f"Assumed: {one}." for one in plan.assumed), *(_paid(plan)))
    return png(shown, facts)


def _paid(plan: Plan) -> tuple[str, ...]:
    """The guarantee of one person at the end of the plan, as text."""
    last = plan.as_json()["lives"][-1]
    if last["prices"] is None:
        return (f"No {plan.paid} of anybody is released within {count_text(last['days'], 'day')}.",)
    return (f"One person after {count_text(last['days'], 'day')}: {last['prices']}.",)


def _draw(plan: Plan, sheet: Sheet) -> None:
    (axes,) = sheet.panels(1, height=300)
    known = [(point.day, point.share) for point in plan.points if point.share is not None]
    days = [day for day, _ in known]
    axes.fill_between(
        days, [share.low for _, share in known], [share.high for _, share in known], color=BLUE, alpha=0.18, linewidth=0
    )
    axes.plot(days, [share.middle for _, share in known], color=BLUE, marker="o", label="expected, and range")
    if plan.first_day is not None and plan.first_day[1] is not None:
        axes.axvline(plan.first_day[1], color=INK, linestyle="--", linewidth=0.9, label="first day better")
    axes.set(xlabel="Day", ylabel="Share of the gain", ylim=(0, 1.02), xlim=(0, days[-1] if days else 1))
    sheet.legend(axes)
