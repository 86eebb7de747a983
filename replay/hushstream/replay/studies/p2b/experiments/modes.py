"""Compares P2B's three release modes: what each withholds, its guarantee, and its value for new users."""

from __future__ import annotations

from collections.abc import Sequence

from hushstream.replay.bench.rows import BenchRow
from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.findings import Description, Findings
from hushstream.replay.progress import Progress
from hushstream.replay.studies.p2b.experiments.paper import (
    CODE,
    LN_2,
    SETTINGS,
    TEXT,
    play_all,
    ratio_target,
    worlds_of,
)
from hushstream.replay.studies.p2b.experiments.points import Line, Played, Point, WorldSpec, provenance
from hushstream.replay.studies.p2b.experiments.population_run import COLD, WARM_NONPRIVATE
from hushstream.systems.p2b.configuration import ReleaseConfig

NAME = "p2b-modes"
TITLE = "Release mode, codes and users: reward, withheld reports, and guarantee"

SOFTMAX = WorldSpec("softmax-1", "softmax: W scale 5, reward scale 1, clicks", "synthetic")
SOFTMAX_HALF = WorldSpec(
    "softmax-0.5", "softmax: W scale 5, reward scale 0.5, clicks", "synthetic", {"reward_scale": 0.5}
)
MODES = {
    "slot-sums": ReleaseConfig(mode="slot-sums", epsilon=LN_2),
    "tuples": ReleaseConfig(mode="tuples", sampling=0.5),
    "paper": ReleaseConfig(mode="paper", sampling=0.5),
}


def run(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play the grid of mode x k x U in each world, then the points with a target under more seeds."""
    grid_seeds = range(2) if scale.quick else range(5)
    target_seeds = range(4) if scale.quick else range(16)
    grid, aimed = _grid(scale.quick), _aimed(scale.quick)
    total = sum(p.interactions() for p in grid) * len(grid_seeds)
    total_aimed = sum(p.interactions() for p in aimed) * len(target_seeds)

    def shifted(offset: int) -> Progress:
        def step(done: int, _: int, what: str) -> None:
            if progress is not None:
                progress(offset + done, total + total_aimed, what)

        return step

    played = play_all(grid, grid_seeds, shifted(0))
    hit = play_all(aimed, target_seeds, shifted(total))
    everything = [*played, *hit]
    description = Description(
        NAME,
        TITLE,
        "P2B (Malekzadeh et al. 2020), sections 3.3 and 4, with two releases beyond the paper",
        worlds_of(everything),
        tuple(grid_seeds),
        (
            *SETTINGS,
            "Tuples: p = 0.5, the smallest threshold on the whole tuple with delta of at most 1e-6.",
            f"Rows of part target have {len(target_seeds)} seeds, from 0.",
        ),
        provenance(everything),
    )
    rows = [row for one in everything for row in one.rows()]
    return Findings(description, rows, _targets(hit))


def _grid(quick: bool) -> list[Point]:
    codes = (8, 32) if quick else (8, 32, 128, 1024)
    users = (1_000,) if quick else (2_000, 20_000, 100_000)
    worlds = (SOFTMAX,) if quick else (SOFTMAX, SOFTMAX_HALF, TEXT, CODE)
    lines = tuple(Line(f"{mode}, k={k}", k, release) for mode, release in MODES.items() for k in codes)
    return [Point(NAME, {"part": "grid"}, world, size, 10, 10, 10, lines) for world in worlds for size in users]


def _aimed(quick: bool) -> list[Point]:
    few = Line("slot sums, k=8, epsilon 1", 8, ReleaseConfig(epsilon=1.0))
    points = [Point(NAME, {"part": "target"}, SOFTMAX, 2_000, 10, 10, 10, (few,))]
    if not quick:
        many = (Line("slot sums, k=32, epsilon ln 2", 32, MODES["slot-sums"]),)
        points += [
            Point(NAME, {"part": "target"}, world, 20_000, 10, 10, 10, many) for world in (SOFTMAX, SOFTMAX_HALF)
        ]
    return points


def _targets(hit: Sequence[Played]) -> list[BenchRow]:
    found = [ratio_target("default mode, U=2,000, k=8, epsilon 1", hit[0], 0, COLD, 2.5)]
    for one in hit[1:]:
        name = f"default mode, U=20,000, k=32, epsilon ln 2, {one.point.world.key}"
        found.append(ratio_target(name, one, 0, WARM_NONPRIVATE, 0.96))
    return found
