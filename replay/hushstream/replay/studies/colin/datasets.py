"""The datasets that collaborative bandits bring: addresses and checksums, never the data themselves."""

from __future__ import annotations

from hushstream.replay.datasets.dataset import Dataset, SummaryBy

COLIN = Dataset(
    name="colin",
    description="Simulator of collaborative bandits: users of a public graph, features of every arm",
    licence="none: simulated",
    page="https://doi.org/10.1145/3383313.3412254",
    files=(),
    archive_url=None,
    verified=True,
    note="Nothing to fetch.",
    folders=(),
    summarise=SummaryBy("hushstream.replay.studies.colin.summaries:summarise_colin"),
)
