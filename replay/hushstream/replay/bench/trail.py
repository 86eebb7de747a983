"""Measures the time from a reward to the model that contains it, from the journals of learner, shuffler and aggregator.

By design, an observer cannot see whether a slot contains a reward. But the logs show which slots form a window, which
decisions record released each slot, and which clicks had been folded by then. So the wait for a model runs from the log
time of the last click that was folded when the last slot of its window left the learner, to the log time of the first
decisions record that had read this model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.records import InputRecord
from hushstream.replay.bench.journal import Folded
from hushstream.schemas import codec

_SLOTS = frozenset({"SlotReport", "SealedSlot"})


@dataclass(frozen=True, slots=True)
class Trail:
    """The records of a run with one partition of each role, all in log order.

    Attributes:
        decisions: the learner's decisions.
        clicks_ms: the log time of every click.
        slots: offsets of the slots among the reports.
        windows: for each window, the offset of the report after its last one.
        models: for each model, its offset and the offset of the crowd after its last one.
    """

    decisions: Sequence[Folded]
    clicks_ms: Sequence[int]
    slots: Sequence[int]
    windows: Sequence[int]
    models: Sequence[tuple[int, int]]

    def waits_ms(self) -> list[int]:
        """Times from the last reward to the adopted model, for every adopted model that had a reward before it."""
        sent = list(accumulate(record.slots for record in self.decisions))
        folded = list(accumulate((record.clicks[1] for record in self.decisions), max))
        adopted = list(accumulate((record.models[1] for record in self.decisions), max))
        waits = []
        for offset, crowds in self.models:
            slots = bisect_left(self.slots, self.windows[crowds - 1])
            last_slot, first_use = bisect_left(sent, slots), bisect_left(adopted, offset + 1)
            if first_use < len(adopted) and folded[last_slot]:
                click = folded[last_slot] - 1
                waits.append(self.decisions[first_use].log_time_ms - self.clicks_ms[click])
        return waits


async def read_trail(settings: WorkerSettings, decisions: Sequence[Folded]) -> Trail:
    """Read the logs of a run up to their present ends."""
    async with LogReader(settings) as reader:
        clicks = await _all(reader, "clicks")
        reports = await _all(reader, "reports")
        windows = await _all(reader, "journal-shuffler")
        models = await _all(reader, "models")
    return Trail(
        decisions,
        [record.timestamp_ms for record in clicks],
        [record.offset for record in reports if codec.decode(record.value)[0] in _SLOTS],
        [high for _, high in _highs(windows, "WindowJournal")],
        _highs(models, "Model"),
    )


async def _all(reader: LogReader, topic: str) -> list[InputRecord]:
    source = (topic, 0)
    end = (await reader.end_offsets([source]))[source]
    reader.open({source: 0})
    return await reader.read(source, 0, end)


def _highs(journal: Sequence[InputRecord], name: str) -> list[tuple[int, int]]:
    """For every journal record except the genesis: its offset, and the end of its input of this name."""
    decoded = [(record.offset, *codec.decode(record.value)) for record in journal]
    return [(offset, fields["head"]["inputs"][0]["high"]) for offset, found, fields in decoded if found == name]
