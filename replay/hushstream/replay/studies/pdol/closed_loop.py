"""Plays the closed loop of PDOL: records are predicted, then their labels are sent, in phases.

Within a phase the records of a domain come one after the other, each predicted before its label is sent; domains run at
the same time. A record waits for the model of the phase before (`after_phase`). So the predictions do not depend on
which domain is faster, and the direct runner and a stream give the same ones.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hushstream.client.logs.event_log import EventLog
from hushstream.client.records import RecordClient
from hushstream.replay.progress import Progress
from hushstream.replay.studies.pdol.worlds.records import RecordStream
from hushstream.systems.pdol.deployment import PdolSystem

_TIMEOUT_SECONDS = 120.0
_SAMPLE = 16


@dataclass(slots=True)
class RecordsPlayed:
    """The outcome of a run.

    Attributes:
        predicted: int8 (m,), before each label.
        versions: int64 (m,), the version of the model behind each prediction.
        seconds: from the first record to the last end of a phase.
        latencies: seconds from request to answer, for a sample of the records.
    """

    predicted: NDArray[np.int8]
    versions: NDArray[np.int64]
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


def record_name(place: int) -> str:
    """The name of a stream's record."""
    return f"record-{place}"


def person_name(place: int) -> str:
    """The name of a record's person: every record is the only one of its person."""
    return f"person-{place}"


class RecordLoop:
    """Plays a stream of records against a deployment."""

    def __init__(
        self, stream: RecordStream, system: PdolSystem, records_per_phase: int, progress: Progress | None = None
    ) -> None:
        """Bind a stream to the deployment of its nodes."""
        self._stream = stream
        self._homes = np.array([system.home_of(node) for node in range(stream.node_count)])[stream.nodes]
        self._phase_records = records_per_phase
        self._progress = progress
        self._done = 0
        self.played = RecordsPlayed(np.zeros(len(stream), dtype=np.int8), np.zeros(len(stream), dtype=np.int64))

    @property
    def phases(self) -> int:
        """The number of phases; the last one may be shorter."""
        return -(-len(self._stream) // self._phase_records)

    async def run(self, log: EventLog) -> RecordsPlayed:
        """Play all phases over a client's log.

        Raises:
            PredictionTimeout: a node's answer or the model of a phase did not come in time.
        """
        started = time.perf_counter()
        async with RecordClient(log, self._stream.node_count, self._stream.dimension) as client:
            for phase in range(self.phases):
                low = phase * self._phase_records
                here = np.arange(low, min(len(self._stream), low + self._phase_records))
                homes = self._homes[here]
                await asyncio.gather(
                    *(self._domain(client, here[homes == home], phase) for home in np.unique(homes).tolist())
                )
                await client.end_phase(phase)
        self.played.seconds = time.perf_counter() - started
        return self.played

    async def _domain(self, client: RecordClient, places: NDArray[np.int64], phase: int) -> None:
        for place in places.tolist():
            await self._interact(client, place, phase)
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, len(self._stream), f"phase {phase + 1} of {self.phases}")

    async def _interact(self, client: RecordClient, place: int, phase: int) -> None:
        stream, event_id, person = self._stream, record_name(place), person_name(place)
        node = int(stream.nodes[place])
        row = stream.rows.part(place, place + 1)
        asked = time.perf_counter()
        found = await client.predict_slot(event_id, person, node, row, after_phase=phase - 1, timeout=_TIMEOUT_SECONDS)
        if place % _SAMPLE == 0:
            self.played.latencies.append(time.perf_counter() - asked)
        self.played.predicted[place], self.played.versions[place] = found.label, found.model_version
        label = int(stream.rows.labels[place])
        if label:
            await client.label(event_id, person, node, label)
