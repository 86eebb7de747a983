"""The datasets that collaborative bandits bring: addresses and checksums, never the data themselves."""

from __future__ import annotations

from hushstream.replay.datasets.dataset import SummaryBy, simulated_dataset

COLIN = simulated_dataset(
    "colin",
    "Simulator of collaborative bandits: users of a public graph, features of every arm",
    SummaryBy("hushstream.replay.studies.colin.summaries:summarise_colin"),
    page="https://doi.org/10.1145/3383313.3412254",
)
