"""Makes the table of the papers: each claim, the true guarantee and result of its mechanism, and the sound form.

Each system's study computes its own row (`hushstream.replay.study.Study.paper`) by `line`; this module knows no system.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from hushstream.replay.bench.rows import BenchRow
from hushstream.replay.datasets.dataset import DatasetError
from hushstream.replay.experiments.experiment import Experiment, Scale
from hushstream.replay.experiments.figures import Picture
from hushstream.replay.experiments.findings import Description, Findings
from hushstream.replay.experiments.rows import Row, over_seeds
from hushstream.replay.progress import Progress
from hushstream.replay.report.palette import BLUE, GREY, RED
from hushstream.replay.report.sheet import Sheet

NAME = "papers"
TITLE = "The papers: what is claimed, what truly holds, and what a sound form reaches at the same price"

MOST_EPSILON = 64.0
"""An epsilon above this is no useful guarantee.

In this case the sound form is played at the epsilon that the paper claims.
"""


def sound_epsilon(claimed: float, true: Row) -> float:
    """The epsilon at which the sound form is compared with the paper's: the true price, or the claim if that is no use.

    Args:
        claimed: the epsilon that the paper claims.
        true: `privacy_columns` of its mechanism's true guarantee.
    """
    usable = true["delta"] < 0.5 and 0 < true["epsilon"] <= MOST_EPSILON
    return float(true["epsilon"]) if usable else claimed


def line(
    *,
    system: str,
    source: str,
    setting: str,
    measure: str,
    less_is_better: bool,
    claimed: float,
    true: Row,
    reached: Sequence[float],
    sound: Row,
    sound_reached: Sequence[float],
    alone: Sequence[float],
    alone_is: str,
) -> Row:
    """Make the row of a paper.

    Args:
        system: name of the system.
        source: the paper.
        setting: the world and its size, in words.
        measure: what is measured, in words.
        less_is_better: whether a smaller value is better.
        claimed: the paper's epsilon.
        true: `privacy_columns` of its mechanism's true guarantee.
        reached: results of the paper's mechanism, one value a seed.
        sound: `privacy_columns` of the sound form's guarantee.
        sound_reached: results of the sound form, one value a seed.
        alone: results without data of other users, one value a seed.
        alone_is: the policy with these results, in words.
    """
    figures: Row = {}
    for name, values in (("paper", reached), ("sound", sound_reached), ("alone", alone)):
        mean, low, high = over_seeds(np.array(values))
        figures |= {name: mean, f"{name}_low": low, f"{name}_high": high}
    return {
        "system": system,
        "source": source,
        "setting": setting,
        "measure": measure,
        "better": "less" if less_is_better else "more",
        "claimed_epsilon": claimed,
        "true_epsilon": true["epsilon"],
        "true_delta": true["delta"],
        "sound_epsilon": sound["epsilon"],
        "sound_delta": sound["delta"],
        **figures,
        "alone_is": alone_is,
        "seeds": len(reached),
    }


def run(scale: Scale, progress: Progress | None) -> Findings:
    """Compute the row of every study that has one; a row whose dataset is absent has a remark in place of figures."""
    from hushstream.replay.study import studies

    rows: list[Row] = []
    for name, study in studies().items():
        if study.paper is None:
            continue
        try:
            rows.append(study.paper(scale, progress))
        except DatasetError as error:
            rows.append({"system": name, "setting": f"not played: {error}"})
    settings = (
        "Claimed: the epsilon that the paper states. True: the guarantee that is computed from its mechanism; "
        "a delta of 1/2 or more is no guarantee.",
        "The sound form is played at the true price, and at the claimed epsilon where the true price is no guarantee.",
        "All keys come from seeds: REPRODUCIBLE, NOT PRIVATE.",
        *(
            ("The quick version has small worlds and few seeds; its figures only show the form of the table.",)
            * scale.quick
        ),
    )
    seeds = max((row.get("seeds", 0) for row in rows), default=0)
    worlds = tuple(f"of {row['system']}: {row['setting']}" for row in rows)
    description = Description(NAME, TITLE, "the five papers", worlds, tuple(range(seeds)), settings)
    return Findings(description, rows, [] if scale.quick else targets(rows))


def targets(rows: Sequence[Row]) -> list[BenchRow]:
    """The target of each paper: at a price that is not higher, the sound form is better than the published one."""
    found = []
    for row in rows:
        if "sound" in row:
            gain = (row["paper"] - row["sound"]) * (1 if row["better"] == "less" else -1)
            name = f"{row['system']}: sound form over the paper's"
            found.append(BenchRow(name, gain, row["measure"], "above 0", gain > 0))
    return found


def _times_alone(row: Row, name: str) -> float:
    """The result divided by the result without other users' data, inverted where less is better."""
    share = float(row[name]) / float(row["alone"])
    return 1 / share if row["better"] == "less" else share


def draw(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw a pair of bars for each paper: as published, and the sound form."""
    played = [row for row in rows if "sound" in row]
    (axes,) = sheet.named_rows([str(row["system"]) for row in played])
    places = np.arange(len(played))
    for shift, name, colour, label in ((-0.2, "paper", RED, "as published"), (0.2, "sound", BLUE, "sound form")):
        axes.barh(places + shift, [_times_alone(row, name) for row in played], height=0.36, color=colour, label=label)
    axes.axvline(1.0, linestyle=":", color=GREY)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("Times as good as what is had alone")
    sheet.legend(axes)


PAPERS = Experiment(NAME, TITLE, run, (Picture("As published and sound, over what is had alone", draw),))
