"""Makes the page and the picture of a replayed log: what each policy would have earned, with intervals."""

from __future__ import annotations

from functools import partial

from hushstream.replay.report import frame
from hushstream.replay.report.palette import BLUE
from hushstream.replay.report.parts import closing, guarantee_tile, verify_tile, with_meanings
from hushstream.replay.report.sheet import Drawing, Sheet
from hushstream.replay.report.wording import EXACT, provenance
from hushstream.replay.studies.p2b.evaluation.deployed import CONFIRMING
from hushstream.replay.studies.p2b.evaluation.evaluation import Evaluation, PolicyRow
from hushstream.replay.studies.p2b.evaluation.verdict import relative_gain
from hushstream.replay.studies.p2b.report.wording import policy_name

_SHOWN = ("replay", "snips", "dr")
_ESTIMATORS = {
    "replay": "replay",
    "ips": "IPS",
    "snips": "SNIPS",
    "dm": "DM",
    "dr": "DR",
    "sndr": "SNDR",
    "switch-dr": "Switch-DR",
}
_READING = (
    "Replay keeps the rows on which a policy shows the logged arm. IPS and SNIPS weight rewards by the policy's "
    "probability of this arm over its propensity. DM uses estimated rewards alone and has no interval. DR, SNDR and "
    "Switch-DR combine both. Effective rows are the number of equally weighted rows with the same information."
)


def policies_drawing(found: Evaluation) -> Drawing:
    """Draw values and 95 % intervals by policy, for some of the estimators."""
    shown = [row for row in found.policies if row.estimator in _SHOWN or row.policy == "logged"]
    rows = [(row, row.value) for row in shown if row.value is not None]
    values = "; ".join(f"{_name(row)} {value:.4f}" for row, value in rows)
    return Drawing(
        "policies",
        "Mean reward of each policy",
        f"With 95 % intervals, on the rows of users who did not contribute. These are {EXACT}.",
        f"Dot chart of the mean reward by policy and estimator: {values}.",
        partial(_draw_policies, rows),
    )


def _draw_policies(rows: list[tuple[PolicyRow, float]], sheet: Sheet) -> None:
    (axes,) = sheet.named_rows([_name(row) for row, _ in rows])
    for place, (row, value) in enumerate(rows):
        if row.ci95 is not None:
            axes.plot(row.ci95, (place, place), color=BLUE, linewidth=2, solid_capstyle="butt")
        axes.plot([value], [place], "o", color=BLUE)
    axes.set_xlim(left=min([0.0, *(row.ci95.low for row, _ in rows if row.ci95 is not None)]))
    axes.set_xlabel("Mean reward")


def _name(row: PolicyRow) -> str:
    return f"{policy_name(row.policy)} ({_ESTIMATORS.get(row.estimator, row.estimator)})"


def evaluation_page(found: Evaluation, names: tuple[str, ...]) -> str:
    """Make the page; ``names`` are the other files of its folder."""
    drawing = policies_drawing(found)
    return frame.html(
        frame.Page(
            kind="hushstream evaluation",
            title=f"What other policies would have earned: {found.log}",
            answers=(found.verdict,),
            sentence=found.privacy.sentence,
            marks=with_meanings(found.marks),
            figure=relative_gain(found.gains),
            outcome=_outcome(found),
            tiles=(
                frame.Tile("Rows replayed", f"{found.rows:,}", f"of {found.users:,} users"),
                frame.Tile("Users who contributed", f"{found.contributors:,}", "all others are evaluated"),
                guarantee_tile(found.privacy),
                *verify_tile(found.verify),
            ),
            sections=(
                frame.Section("plots", "Policies", (frame.Pictures((drawing,)),)),
                frame.Section("estimates", "Estimates", (frame.Words((_READING,)), _table(found), *_warnings(found))),
                *closing(found),
                *_deploy(found),
            ),
            provenance=provenance(found),
            files=names,
        )
    )


def _outcome(found: Evaluation) -> tuple[str, ...]:
    headline = found.headline
    if headline is None:
        return (
            "Replay cannot compare warm private users with cold ones: too few rows agree with one of them, or "
            "the mean of cold users does not differ from 0 significantly.",
        )
    return (
        f"Users who start from the private model would have earned {headline.value:.2f} times what users earn who "
        f"start cold (95 % interval {headline.low:.2f} to {headline.high:.2f}; by replay).",
    )


def _deploy(found: Evaluation) -> list[frame.Section]:
    """The section with the evaluated deployment and the steps to run it live; none without a deployment."""
    steps = found.next_steps
    if steps is None:
        return []
    confirm = (
        frame.Bullets(
            f"Confirm first: these settings were taken from rows, and a deployment publishes them ({CONFIRMING})",
            steps.unconfirmed,
        ),
    )
    blocks: tuple[frame.Block, ...] = (
        frame.Words((steps.differs,)),
        *(confirm if steps.unconfirmed else ()),
        frame.Code("The commands", "\n".join(steps.commands)),
        frame.Code(f"The configuration, {steps.path}", steps.yaml),
        frame.Code("Its forecast, from public numbers alone", steps.forecast.as_text().rstrip()),
    )
    return [frame.Section("deploy", "Deploy this", blocks)]


def _table(found: Evaluation) -> frame.Table:
    caption = f"Mean reward with its 95 % interval; with too few effective rows there is no value. These are {EXACT}."
    columns = ("Policy and estimator", "Mean reward", "Agrees with the log", "Effective rows")
    return frame.Table(caption, columns, tuple(_row(row) for row in found.policies))


def _row(row: PolicyRow) -> tuple[frame.Cell, ...]:
    within = "" if row.ci95 is None else f"{row.ci95.low:.4f} to {row.ci95.high:.4f}"
    return (
        frame.Cell(policy_name(row.policy), _ESTIMATORS.get(row.estimator, row.estimator)),
        frame.Cell("–" if row.value is None else f"{row.value:.4f}", within),
        frame.Cell("–" if row.matched_share is None else f"{row.matched_share:.1%}"),
        frame.Cell(f"{row.effective_sample_size:,.0f}"),
    )


def _warnings(found: Evaluation) -> list[frame.Block]:
    """The section with each warning once, after the names of the rows that it is about."""
    said: dict[str, list[str]] = {}
    for row in found.policies:
        for text in row.warnings:
            said.setdefault(text, []).append(_name(row))
    items = tuple(f"{', '.join(names)}: {text}." for text, names in said.items())
    return [frame.Bullets("Warnings about single figures", items)] if items else []
