"""P2B's line of the table of papers."""

from __future__ import annotations

from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.papers import NAME, line, sound_epsilon
from hushstream.replay.experiments.rows import Row, privacy_columns
from hushstream.replay.progress import Progress
from hushstream.replay.studies.p2b.experiments.modes import MODES, SOFTMAX
from hushstream.replay.studies.p2b.experiments.paper import LN_2
from hushstream.replay.studies.p2b.experiments.points import Line, Point, play


def paper_line(scale: Scale, progress: Progress | None) -> Row:
    """The threshold on codes alone against slot sums, at the paper's p of 1/2: its claim is epsilon ln 2."""
    users, seeds = (500, range(2)) if scale.quick else (5_000, range(3))
    lines = (Line("paper", 8, MODES["paper"]), Line("slot sums", 8, MODES["slot-sums"]))
    played = play(Point(NAME, {}, SOFTMAX, users, 10, 10, 10, lines), seeds, progress)
    true, sound = (privacy_columns(one) for one in played.guarantees)
    claimed = float(LN_2)
    assert sound_epsilon(claimed, true) == claimed, "the sound line is played at the claim: the true delta is large"
    return line(
        system="p2b",
        source="Malekzadeh et al. 2020 (P2B)",
        setting=f"softmax world, clicks, {users:,} users, 10 items, 8 codes",
        measure="mean reward of new users",
        less_is_better=False,
        claimed=claimed,
        true=true,
        reached=played.means[:, 2].tolist(),
        sound=sound,
        sound_reached=played.means[:, 3].tolist(),
        alone=played.means[:, 0].tolist(),
        alone_is="users who start cold",
    )
