"""PDOL's line of the table of papers."""

from __future__ import annotations

from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.papers import NAME, line, sound_epsilon
from hushstream.replay.experiments.rows import Row, privacy_columns
from hushstream.replay.progress import Progress
from hushstream.replay.studies.pdol.experiments.gossip_play import as_printed, play_gossip
from hushstream.replay.studies.pdol.play import isolated_labels, play
from hushstream.replay.studies.pdol.runs import NODES, PAPER, RATE, gossip_config, sharing_config, told
from hushstream.replay.studies.pdol.worlds.records import RecordStream
from hushstream.replay.studies.pdol.worlds.streams import sparse_synthetic, tmc_binary
from hushstream.systems.pdol.guarantee import epoch_guarantee

CLAIMED = 8.0


def paper_line(scale: Scale, progress: Progress | None) -> Row:
    """Gossip of noised weights, as printed, against counters of gradients at the published model."""
    seeds = range(1) if scale.quick else range(2)
    streams = [_stream(scale, seed) for seed in seeds]
    gossip = [gossip_config(stream, CLAIMED) for stream in streams]
    true = privacy_columns(epoch_guarantee(gossip[0]))
    counters = [sharing_config(stream, sound_epsilon(CLAIMED, true)) for stream in streams]
    step = told(progress, len(streams))
    reached, sound, alone = [], [], []
    for seed, stream in enumerate(streams):
        step(f"{NAME}, pdol")
        reached.append(play_gossip(stream, gossip[seed], seed, as_printed(gossip[seed])).accuracy.whole)
        sound.append(play(stream, counters[seed], seed).released.whole)
        alone.append(float((isolated_labels(stream, RATE) == stream.rows.labels).mean()))
    return line(
        system="pdol",
        source=PAPER,
        setting=f"{streams[0].name}, {NODES} nodes, {len(streams[0]):,} records",
        measure="labels right",
        less_is_better=False,
        claimed=CLAIMED,
        true=true,
        reached=reached,
        sound=privacy_columns(epoch_guarantee(counters[0])),
        sound_reached=sound,
        alone=alone,
        alone_is="nodes apart",
    )


def _stream(scale: Scale, seed: int) -> RecordStream:
    if scale.quick:
        return sparse_synthetic(records=640, dimension=200, features=20, nodes=NODES, seed=seed)
    return tmc_binary(nodes=NODES, seed=seed, data_dir=None if scale.data_dir is None else str(scale.data_dir))
