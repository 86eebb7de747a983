"""What happened since a role's last step: refused records, and how many events had which outcome."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.records import InputRecord, Output, Step, TopicPartition
from hushstream.engine.refusals import DeadLetters


@dataclass(slots=True)
class Gathered:
    """What a step will say beside what it journals and releases."""

    dead: list[Output] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    ids: dict[str, None] = field(default_factory=dict)
    """Of inputs that came; remembered only when it is settled that they count."""

    def refuse(self, letters: DeadLetters, reason: str, source: TopicPartition, record: InputRecord) -> None:
        """Set a record aside, with the reason."""
        self.dead.append(letters.letter(reason, *source, record.offset, value=record.value))
        self.counts[Outcome.REJECTED] += 1

    def steps(self) -> list[Step]:
        """A step without a journal record for what is left; none where nothing is."""
        return [Step(None, (), tuple(self.dead), self.counts)] if self.dead or self.counts else []
