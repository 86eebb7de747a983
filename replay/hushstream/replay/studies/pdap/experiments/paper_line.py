"""P-DAP's line of the table of papers."""

from __future__ import annotations

from dataclasses import replace

from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.papers import NAME, line, sound_epsilon
from hushstream.replay.experiments.rows import Row, privacy_columns
from hushstream.replay.progress import Progress
from hushstream.replay.runners.grid import play_all
from hushstream.replay.studies.pdap.experiments.paper import PaperTask, paper_guarantee, play_paper
from hushstream.replay.studies.pdap.play import Task, play
from hushstream.replay.studies.pdap.rows import SOURCE, guarantee_of

CLAIMED = 1.0


def paper_line(scale: Scale, progress: Progress | None) -> Row:
    """P-DAP as printed against sums of disjoint blocks."""
    contexts, further, arms, seeds = (3_000, 500, 50, (0,)) if scale.quick else (50_000, 5_000, 200, (0, 1))
    true = privacy_columns(paper_guarantee("P-DAP", CLAIMED).under_key(reproducible=True))
    price = sound_epsilon(CLAIMED, true)
    printed = [PaperTask("P-DAP", CLAIMED, contexts, (further,), seed, arms) for seed in seeds]
    blocks = [Task("blocks", price, contexts, seed, options=(("arms", arms),)) for seed in seeds]
    apart = [replace(task, form="alone-exact") for task in blocks]
    theirs = play_all(play_paper, printed, NAME, progress)
    ours = play_all(play, [*blocks, *apart], NAME, progress)
    sound = guarantee_of(blocks[0])
    assert sound is not None
    return line(
        system="pdap",
        source=SOURCE,
        setting=f"specialised vendors, 4 x {arms:,} items, {contexts:,} contexts; paper: {further:,} more",
        measure="answers clicked, %",
        less_is_better=False,
        claimed=CLAIMED,
        true=true,
        reached=[100 * theirs[task][further] for task in printed],
        sound=privacy_columns(sound),
        sound_reached=[100 * ours[task].greedy for task in blocks],
        alone=[100 * ours[task].greedy for task in apart],
        alone_is="vendors apart with exact clicks",
    )
