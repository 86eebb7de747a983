"""The words with which an operator accepts losses (`--accept-loss`): their form, and which of them a worker has needed.

A word names one refusal: a partition of the role with a journal that is behind its marks, and the generation that it
gets; or a partition of the role with an input, and the offsets that were lost.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from hushstream.engine.records import TopicPartition

FORM = "PARTITION:JOURNAL:GENERATION or PARTITION:TOPIC/PARTITION:FROM-TO, as a refusal names it"
_WORD = re.compile(r"[0-9]+:([0-9a-f]+|new):[0-9]+|[0-9]+:[A-Za-z0-9._-]+/[0-9]+:[0-9]+-[0-9]+")
ALL_AT_ONCE = "give the words of all partitions in one start"
"""A worker that is started with one word is refused for the next partition, and may have stopped others meanwhile."""


def journal_word(partition: int, journal: str, generation: int) -> str:
    """The word that accepts a journal against its marks."""
    return f"{partition}:{journal}:{generation}"


def input_word(partition: int, source: TopicPartition, low: int, first: int) -> str:
    """The word that accepts the loss of an input's records with ``low <= offset < first``."""
    return f"{partition}:{source[0]}/{source[1]}:{low}-{first}"


def is_word(text: str) -> bool:
    """Whether a text has the form of such a word."""
    return _WORD.fullmatch(text) is not None


@dataclass(slots=True)
class NeededWords:
    """Notes which of an operator's words a worker has needed."""

    _settled: set[str] = field(default_factory=set)

    def accepts(self, word: str, given: Collection[str]) -> bool:
        """Whether the operator has given this word; notes that it was needed."""
        if word not in given:
            return False
        self._settled.add(word)
        return True

    def not_needed(self, partition: int, given: Collection[str]) -> tuple[str, ...]:
        """The given words for a partition that were not needed when it was opened; each is returned once."""
        words = tuple(w for w in given if w.startswith(f"{partition}:") and w not in self._settled)
        self._settled.update(words)
        return words
