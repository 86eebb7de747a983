"""P2B, Figure 3: epsilon against the probability of taking part, with the true delta."""

from __future__ import annotations

import math
from fractions import Fraction

from hushstream.privacy.mechanisms.guarantee import tuples_guarantee
from hushstream.privacy.mechanisms.tuples import curve_epsilon, exact_delta, smallest_threshold
from hushstream.replay.bench.rows import BenchRow
from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.findings import Description, Findings
from hushstream.replay.experiments.rows import Row
from hushstream.replay.progress import Progress

NAME = "p2b-fig3"
TITLE = "Epsilon against the probability p that a slot is kept, with the exact delta of each threshold"
THRESHOLDS = (10, 20, 50, 100)
TARGET_DELTA = Fraction(1, 10**6)

_DELTAS_AT_HALF = {10: 7.6e-3, 20: 6.0e-4, 50: 9.2e-7, 100: 5.3e-11}
_SMALLEST = {0.1: 36, 0.25: 41, 0.5: 50, 0.75: 73, 0.9: 148}


def run(scale: Scale, progress: Progress | None = None) -> Findings:
    """Compute the curve at every hundredth (quick: every twentieth) of p."""
    steps = 20 if scale.quick else 100
    rows: list[Row] = []
    for step in range(1, steps):
        rows.append(_row(Fraction(step, steps)))
        if progress is not None:
            progress(step, steps - 1, "p")
    return Findings(_description(), rows, _targets(rows))


def _row(chance: Fraction) -> Row:
    epsilon = curve_epsilon(chance)
    row: Row = {"p": float(chance), "epsilon": float(epsilon), "formula": -math.log1p(-float(chance))}
    for threshold in THRESHOLDS:
        row[f"delta_threshold_{threshold}"] = float(exact_delta(threshold, chance, epsilon))
    row["smallest_threshold"] = smallest_threshold(chance, epsilon, TARGET_DELTA)
    return row


def _targets(rows: list[Row]) -> list[BenchRow]:
    # Amounts are whole millionths, rounded up.
    off = max(abs(row["epsilon"] - row["formula"]) for row in rows)
    found = [BenchRow("epsilon against -ln(1-p), largest difference", off, "epsilon", "at most 1e-06", off <= 1e-6)]
    half = Fraction(1, 2)
    for threshold, known in _DELTAS_AT_HALF.items():
        delta = float(exact_delta(threshold, half, curve_epsilon(half)))
        name = f"delta at p=0.5, threshold {threshold}"
        found.append(BenchRow(name, delta, "delta", f"{known:g} to two digits", f"{delta:.1e}" == f"{known:.1e}"))
    for chance, known_threshold in _SMALLEST.items():
        p = Fraction(str(chance))
        least = smallest_threshold(p, curve_epsilon(p), TARGET_DELTA)
        name = f"smallest threshold for delta 1e-6 at p={chance:g}"
        found.append(BenchRow(name, float(least), "reports", f"{known_threshold}", least == known_threshold))
    return found


def _description() -> Description:
    promise = tuples_guarantee(50, Fraction(1, 2))
    return Description(
        NAME,
        TITLE,
        "P2B (Malekzadeh et al. 2020), Figure 3 and Equation 3",
        (),
        (),
        (
            f"Relation: {promise.relation}.",
            "Epsilon is -ln(1-p), rounded up to millionths; delta is exact for release mode tuples, for the worst"
            " number of other reports.",
            "One slot a user; the shuffler draws the coin after the window has closed.",
        ),
    )
