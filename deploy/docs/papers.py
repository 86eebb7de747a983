"""Make the pages of the papers and of joining from the results of those experiments in the files beside them.

python deploy/docs/papers.py [RESULT...]    takes results (papers.json of all or single systems, or joining.json) first;
--check compares alone
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from scipy.special import stdtrit

from hushstream.replay.experiments.figures import render
from hushstream.replay.experiments.findings import Findings
from hushstream.replay.experiments.systems import JOINING, MOST_EPSILON
from hushstream.replay.report.committed import settle
from hushstream.replay.report.replayed import json_bytes

HERE = Path(__file__).parent
OVERS = ("over_published", "over_local_only")
"""Columns of what ours gains."""

RIVALS = dict(zip(OVERS, ("published", "local only"), strict=True))

_HEAD = """\
# Five papers, one table

By our analysis none of the five published mechanisms has the (ε, δ) that its paper claims: an attack refutes \
{outright} outright, {read} if the paper is read literally. Our corrected variant reaches significantly more than the \
published one in {over_published} of {all} systems, and than learning without others' data (*local only*) in \
{over_local_only}.

{table}
Pairs are (ε, δ) of what the claim protects (below); upper bounds are rounded up, lower ones down; δ below 1e-9 is 0. \
± is half of the 95 % interval of the mean over {seeds} seeds. Keys come from seeds: REPRODUCIBLE, NOT PRIVATE.

* **Refuted**: an attack on a small deployment shows, with confidence 1 - {false_alarm}, that it has neither: first at \
the claimed δ, then at the claimed ε.
* **Proved**: our upper bound ([Lemmas 17, 32](proofs.md#published-forms)), under the claim's relation \
(p2b's and bgt's papers leave it open). p2b's δ is 0.5 at every ε.
* **Ours costs**: the ε that is proved of the published form, or the claimed one if there is none below {most:g}. From \
ε 10 on a guarantee is next to nothing.
* **Published**: the paper's algorithm, reimplemented as we read it; no printed figure is reproduced.
* **Constant**: the best single item with hindsight (p2b, pdap), the more frequent label, the mean of earlier ratings. \
**Random**: an item, a coin, an earlier rating. {trivial}.
* **Over**: what ours gains, paired by seed. Bold: significant over all {comparisons} comparisons together \
(Bonferroni). By its single interval alone {lost}.

## Each paper

`hushstream audit --only NAME-paper` attacks a claim (ε varies a little by run); `hushstream experiment papers \
--system NAME` plays its row again.

{papers}

## Related work, and how to cite

Beside these five: joint DP by tree counters (Shariff, Sheffet 2018), federated (Dubey, Pentland 2020; its claim, \
too, fails: arXiv:2302.13945).

`@software{{hushstream, author={{{{The hushstream contributors}}}}, year={{2026}}, \
title={{hushstream: private online recommendation as a stream job}}, version={{0.1.0}}}}`
"""


_JOINING = """\
# What joining brings and costs

Sharing a private model is better than learning alone in {joined} of {all} rows and worse in {lost};
a mixture of both is better in {mixed} of {mixtures} and worse in {lost_mixed}.
{single} of these differences (†) are significant by their own interval, not over all {comparisons} comparisons \
together (Bonferroni).

* **Alone**: a learner that users, vendors, nodes or devices have without us; where labels drift, nodes can do better.
* **Joined**: the shared private model. p2b's users go on learning from it, so there it is the mixture.
* **Mixture**: both at once: colin's dark visits, pdap's trial, pdol's guarded nodes, bgt's mixing devices.
* **Without privacy**: the same sharing of exact values; pdol: one node with all records; bgt: exact biases of users and
  items alone, no upper bound for MovieLens (`ml-100k`), whose private model also uses genres and year.
* **ε**: zero-out (p2b, pdol, bgt) or replace-one (colin, pdap). Replace-one, 1 is 2 in p2b, 2.113 in pdol,
  2.131 in bgt, and bgt's 10 is 24.2: next to nothing.
* **Better, worse**: the 95 % interval of the difference from alone, paired by run, excludes 0.
* **Target**: of the design's simulation; *reached*: at most three deviations of one seed worse, by all of the mean's
  interval; *undecided*: by a part. *kept*: of the gain without privacy.

## All figures

Each row is {seeds} seeds; ± is half of the 95 % interval of the mean (Student's t). pdap's clicks include
exploration; after learning see [its page](../systems/pdap.md#when-it-pays).

`hushstream experiment joining` runs it ([result](joining.json)), `--system colin` all worlds of one. No setting
was chosen on `flights` or `diamonds`: play them as [own records](../systems/pdol.md#when-it-pays).

| system | world | ε | in words | measure | alone | joined | mixture | without privacy |target|
|---|---|---|---|---|---|---|---|---|---|
"""

TARGETS: dict[tuple[str, str, float], dict[str, float]] = {
    ("p2b", "mixed table, 10 items, 2,000", 1): {"kept": 0.41},
    ("p2b", "mixed table, 10 items, 50,000", 1): {"kept": 0.88},
    ("colin", "colin/uniform, 10", 1): {"joined": 32.0, "mixture": 23.0},
    ("pdap", "4 x 100, specialised", 0.1): {"mixture_over_alone": -3.1},
    ("pdap", "4 x 100, specialised", 1): {"joined_over_alone": 14.3, "mixture_over_alone": -0.6},
    ("pdap", "4 x 100, alike", 0.1): {"mixture_over_alone": -3.1},
    ("pdol", "tmc-binary/class19", 1): {"joined": 0.782, "mixture": 0.818},
    ("pdol", "tmc-binary/class19", 8): {"joined": 0.839, "mixture": 0.840},
    ("bgt", "filmtrust", 1): {"joined": 0.2389},
    ("bgt", "filmtrust", 10): {"joined": 0.2365, "mixture": 0.2364},
    ("bgt", "ml-100k", 1): {"joined": 0.1955},
    ("bgt", "ml-100k", 10): {"joined": 0.1868},
}
"""Figures of the design's simulation, before the product was built, by system, beginning of the world and epsilon.

``kept``: of the gain without privacy; ``_over_alone``: the gain.
"""


def joining(found: dict[str, Any]) -> str:
    """Make the page of joining from a result."""
    rows = found["rows"]
    signs = {name: [_sign(row, name) for row in rows if name in row] for name in ("joined", "mixture")}
    comparisons = sum(map(len, signs.values()))
    head = _JOINING.format(
        all=len(rows),
        mixtures=len(signs["mixture"]),
        joined=signs["joined"].count(1),
        mixed=signs["mixture"].count(1),
        lost=signs["joined"].count(-1),
        lost_mixed=signs["mixture"].count(-1),
        single=sum(_in_words(row, comparisons).count("†") for row in rows),
        seeds=" or ".join(sorted({str(row["seeds"]) for row in rows})),
        comparisons=comparisons,
    )
    return head + "".join(_joined_row(row, comparisons) for row in rows)


def _joined_row(row: dict[str, Any], comparisons: int) -> str:
    figures = (
        figure_text(row, name) if name in row else "" for name in ("alone", "joined", "mixture", "without_privacy")
    )
    measure = row["measure"].rpartition(": ")[2]
    words = _in_words(row, comparisons)
    return _line(row["system"], row["world"], f"{row['epsilon_asked']:.3g}", words, measure, *figures, _targets(row))


def _targets(row: dict[str, Any]) -> str:
    """The targets of a row, and whether each is reached; without blanks."""
    here, epsilon = (row["system"], row["world"]), round(row["epsilon_asked"], 2)
    wanted = (
        figures
        for (system, world, at), figures in TARGETS.items()
        if here[0] == system and here[1].startswith(world) and epsilon == at
    )
    return ",".join(f"{name}:{value:g}:{reached(row, name, value)}" for name, value in next(wanted, {}).items())


def reached(row: dict[str, Any], name: str, target: float) -> str:
    """Whether a figure's 95 % interval is no more than three deviations of one seed worse than its target."""
    if name == "kept":
        name, target = "joined", row["alone"] + target * (row["without_privacy"] - row["alone"])
    half = (row[f"{name}_high"] - row[f"{name}_low"]) / 2
    deviation = half * row["seeds"] ** 0.5 / stdtrit(row["seeds"] - 1, 0.975)
    less = row["system"] in ("colin", "bgt") and not name.endswith("_over_alone")
    ahead = (row[name] - target) * (-1 if less else 1) + 3 * deviation
    return "reached" if ahead >= half else "missed" if ahead < -half else "undecided"


def _sign(row: dict[str, Any], name: str) -> int:
    """1 where a policy is significantly better than alone, -1 where it is worse, else 0."""
    return (row[f"{name}_over_alone_low"] > 0) - (row[f"{name}_over_alone_high"] < 0)


def _in_words(row: dict[str, Any], comparisons: int) -> str:
    words = {1: "better by", -1: "worse by", 0: "no significant difference:"}
    said = []
    for name in ("joined", "mixture"):
        if name in row:
            sign, gain = _sign(row, name), row[f"{name}_over_alone"]
            half = (row[f"{name}_over_alone_high"] - row[f"{name}_over_alone_low"]) / 2
            said.append(f"{name} {words[sign]} {abs(gain) if sign else gain:.2g} ± {half:.2g}")
            said[-1] += " †" * _by_one_alone(row, f"{name}_over_alone", comparisons)
    return "; ".join(said)


def page(found: dict[str, Any]) -> str:
    """Make the page of the papers from a result."""
    rows = [row for row in found["rows"] if "ours" in row]
    comparisons = len(OVERS) * len(rows) + sum("tuned" in row for row in rows)
    lost = [
        f"{row['system']} {'beats' if row[name] > 0 else 'loses to'} {RIVALS[name]} ({figure_text(row, name)})"
        for row in rows
        for name in OVERS
        if _by_one_alone(row, name, comparisons)
    ]
    trivial = [row["system"] for row in rows if "constant" in row and not _above(row, "published", "constant")]
    return _HEAD.format(
        all=len(rows),
        outright=_names(row for row in rows if not row["reading"]),
        read=_names(row for row in rows if row["reading"]),
        most=MOST_EPSILON,
        false_alarm=" or ".join(sorted({f"{row['attack_false_alarm']:g}" for row in rows})),
        trivial=f"The constant beats the published form of {', '.join(trivial) or 'none'}",
        seeds=" or ".join(sorted({str(row["seeds"]) for row in rows})),
        comparisons=comparisons,
        lost=", ".join(lost) or "none",
        table=_table(rows, comparisons),
        papers="\n".join(_paper(row) for row in rows),
        **{name: sum(_significant(row, name, comparisons) for row in rows) for name in OVERS},
    )


def _names(rows: Iterable[dict[str, Any]]) -> str:
    return ", ".join(f"{row['system']}'s" for row in rows)


def _line(*cells: str) -> str:
    return f"|{'|'.join(cells)}|\n"


def _table(rows: list[dict[str, Any]], comparisons: int) -> str:
    """A column a paper: what is claimed, what holds, what algorithms reach, and what ours gains."""
    lines = _line("paper", *(f"**{row['system']}**" for row in rows)) + f"|{'---|' * (len(rows) + 1)}\n"
    columns = [_cells(row, comparisons) for row in rows]
    return lines + "".join(_line(name, *(column[name] for column in columns)) for name in columns[0])


def _cells(row: dict[str, Any], comparisons: int) -> dict[str, str]:
    proved = f"{row['at_most']} {row['relation']}" if row.get("most_epsilon") else "none: δ is 1"
    cells = {
        "claimed": _pairs(row["claimed"]),
        "refuted": _pairs(row["is_not"]),
        "proved": _pairs(proved),
        "ours costs": _pairs(row["ours_costs"]),
        "measured": f"{row['measure']}; {row['better'].removesuffix(' is better')} is better",
    }
    for name in ("published", "ours", "local_only", "constant", "random"):
        cells[name.replace("_", " ")] = figure_text(row, name) if name in row else ""
    for name in OVERS:
        cells[name.replace("_", " ")] = _with_equal_ridge(row, name, comparisons) + _bold(row, name, comparisons)
    return cells


def _pairs(text: str) -> str:
    """Pairs of (epsilon, delta) that stay together on a narrow page, one below the other."""
    below = text.replace("), ", ")<br>")
    return re.sub(r"\(([\d.]+), ", "(\\1,\N{NO-BREAK SPACE}", below)


def _with_equal_ridge(row: dict[str, Any], name: str, comparisons: int) -> str:
    """What ours gains over the published form with our ridge, where that was played; before its gain over its own."""
    if name != OVERS[0] or "tuned" not in row:
        return ""
    return f"equal ridge {_bold(row, 'over_tuned', comparisons)}; its own "


def _paper(row: dict[str, Any]) -> str:
    """Why its claim fails, and what was played."""
    printed = f" Printed in the paper: {row['printed_in_paper']}." if row["printed_in_paper"] else ""
    reading = f" Our reading: {row['reading']}." if row["reading"] else ""
    tuned = f" The paper's noise with our ridge reaches {figure_text(row, 'tuned')}." if "tuned" in row else ""
    return (
        f"* **{row['system']}**: {row['source']}.\n"
        f"  * The claim ({row['claimed_as']}) protects {protected_text(row)}. It fails: {row['fails']}.{reading}\n"
        f"  * Played: {row['setting']}. Local only: {row['local_only_is']}.{printed}{tuned}"
    )


def _above(row: dict[str, Any], name: str, rival: str) -> bool:
    """Whether the mean of one column is better than that of another."""
    return bool((row[name] > row[rival]) == (row["better"] == "more is better"))


def _bold(row: dict[str, Any], name: str, comparisons: int) -> str:
    return f"**{figure_text(row, name)}**" if _significant(row, name, comparisons) else figure_text(row, name)


def _significant(row: dict[str, Any], name: str, comparisons: int) -> bool:
    return (row.get(f"{name}_low") or 0) > 0 and not _by_one_alone(row, name, comparisons)


def _by_one_alone(row: dict[str, Any], name: str, comparisons: int) -> bool:
    """Whether a difference is significant by itself, and not if all comparisons are to hold together (Bonferroni)."""
    half, free = (row[f"{name}_high"] - row[f"{name}_low"]) / 2, row["seeds"] - 1
    wider = stdtrit(free, 1 - 0.025 / comparisons) / stdtrit(free, 0.975)
    return bool(half < abs(row[name]) <= half * wider)


def figure_text(row: dict[str, Any], name: str) -> str:
    """A mean over seeds with half of its 95 % interval, if it has one: to the interval's second digit."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if low is None or not low < high:
        return f"{row[name]:.4g}"
    half = (high - low) / 2
    digits = max(0, 1 - math.floor(math.log10(half)))
    return f"{row[name]:.{digits}f} ± {half:.{digits}f}"


def protected_text(row: dict[str, Any]) -> str:
    """What the paper's claim protects, and ours if that is less."""
    here = f" (here: {row['protects_here']})" if row["protects_here"] != row["protects"] else ""
    return f"{row['protects']}{here}"


def figures(found: dict[str, Any]) -> dict[Path, bytes]:
    """The figure of each system's page from the result of joining; p2b's page has another one."""
    made = {}
    for name in sorted({row["system"] for row in found["rows"]} - {"p2b"}):
        rows = [{**row, "at": f"epsilon {row['epsilon_asked']:.3g}"} for row in found["rows"] if row["system"] == name]
        measure = rows[0]["measure"].rpartition(": ")[2]
        curve = replace(JOINING.curves[0], title="", across="", panels=("world", "at"), label=measure)
        seeds = range(rows[0]["seeds"])
        made[HERE / "systems" / f"{name}.png"] = render(curve, JOINING, Findings(rows, [], (), seeds, ()))
    return made


PAGES = {"papers": (HERE, page), "joining": (HERE / "reference", joining)}
"""By the experiment's name: where its result and its page lie, and what makes the page."""


def _with_rows_of(kept: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """A result with the rows of another one for the systems that it did not play."""
    rows = {row["system"]: row for one in (kept, found) for row in one["rows"]}
    targets = {row["name"]: row for one in (kept, found) for row in one["targets"]}
    seeds = {row["first_seed"] + count for row in rows.values() for count in range(row["seeds"])}
    worlds = [f"of {row['system']}: {row['setting']}" for row in rows.values()]
    described = found["description"] | {"worlds": worlds, "seeds": sorted(seeds)}
    return {"description": described, "rows": list(rows.values()), "targets": list(targets.values())}


def main(arguments: list[str]) -> int:
    """Make or check the pages."""
    for given in arguments if arguments != ["--check"] else []:
        found = json.loads(Path(given).read_text(encoding="utf-8"))
        name = found["description"]["name"]
        at = PAGES[name][0] / f"{name}.json"
        if name == "papers":
            found = _with_rows_of(json.loads(at.read_text(encoding="utf-8")), found)
        at.write_bytes(json_bytes(found))
    if arguments != ["--check"]:
        for path, content in figures(json.loads((HERE / "reference" / "joining.json").read_bytes())).items():
            path.write_bytes(content)
    pages = {
        folder / f"{name}.md": make(json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))
        for name, (folder, make) in PAGES.items()
    }
    return settle(pages, check=arguments == ["--check"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
