"""The collaborative bandits' line of the table of papers."""

from __future__ import annotations

from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.papers import line, sound_epsilon
from hushstream.replay.experiments.rows import Row, privacy_columns
from hushstream.replay.progress import Progress
from hushstream.replay.studies.colin.experiments.grid import canonical, play_tasks
from hushstream.replay.studies.colin.experiments.mechanisms import PAPER, find_calibration
from hushstream.replay.studies.colin.experiments.play import WorldSetting
from hushstream.replay.studies.colin.experiments.table1 import plain_task, private_task, worst_guarantee

ALGORITHM, CLAIMED, SOUND = "DP-CoLin", 2.0, "local-reward"


def paper_line(scale: Scale, progress: Progress | None) -> Row:
    """DP-CoLin with the paper's noise, against noise on each reward at what the paper's noise truly costs."""
    events, seeds = (1_000, (10,)) if scale.quick else (10_000, (10, 11, 12))
    worlds = [WorldSetting("colin", (("dimension", 5), ("variant", "uniform")), events, seed) for seed in seeds]
    printed = [private_task(world, ALGORITHM, find_calibration(PAPER), CLAIMED) for world in worlds]
    true = privacy_columns(worst_guarantee(printed))
    price = sound_epsilon(CLAIMED, true)
    ours = [private_task(world, ALGORITHM, find_calibration(SOUND), price) for world in worlds]
    alone = [plain_task(world, "LinUCB") for world in worlds]
    played = play_tasks([*printed, *ours, *alone], progress)
    reached, sound, apart = (
        [float(played[canonical(task)].regret[-1]) for task in tasks] for tasks in (printed, ours, alone)
    )
    return line(
        system="colin",
        source="Wang et al. 2020 (collaborative bandits), DP-CoLin",
        setting=f"uniform world, 10 users, d = 5, {events:,} interactions",
        measure="cumulative regret",
        less_is_better=True,
        claimed=CLAIMED,
        true=true,
        reached=reached,
        sound=privacy_columns(worst_guarantee(ours)),
        sound_reached=sound,
        alone=apart,
        alone_is="users apart, each with an exact LinUCB",
    )
