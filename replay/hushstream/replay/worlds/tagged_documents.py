"""Documents as users: words are tags and labels are items. An item is clicked if the document has this label."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hushstream.features.schema import FeatureSchema, Rows, declare
from hushstream.replay.datasets.store import locate
from hushstream.replay.worlds.draws import Draws
from hushstream.replay.worlds.mixed_table import Visits
from hushstream.replay.worlds.multilabel import read_corpus, split_labels

Int64 = NDArray[np.int64]

MOST_WORDS = 64
_SAID_TWICE = 0.2
"""Redundancy of the words of one report: many words occur together, so a word's sums contain effects of others."""
_LEARNED_FROM = 0.7
_FIRST_NEW_USER = 1 << 30


@dataclass(frozen=True)
class TaggedDocuments:
    """TMC2007 with its 500 words as tags. A user shows another document at each visit.

    Attributes:
        seed: seed of the split and of who shows which document.
        arms: K, the most frequent labels.
        data_dir: see `locate`.
    """

    seed: int
    arms: int = 22
    data_dir: str | None = None
    name: str = "TMC2007, words as tags"

    @cached_property
    def schema(self) -> FeatureSchema:
        """The schema of the words."""
        vocabulary = [f"word-{number:03d}" for number in range(self._documents[0].shape[1])]
        words = {"kind": "tags", "vocabulary": vocabulary, "most": MOST_WORDS, "redundancy": _SAID_TWICE}
        return declare({"words": words})

    @property
    def click_rate(self) -> float:
        """The click rate as an operator would declare it."""
        return 0.2

    def visits(self, users: Int64, round_index: int) -> Visits:
        """See `FeatureWorld`; users from 2^30 on show documents that no contributor shows."""
        words, labels = self._documents
        order = Draws(self.seed, "split").generator().permutation(len(words))
        parts = np.split(order, [int(_LEARNED_FROM * len(words))])
        drawn = Draws(self.seed, "document").uniforms(users, round_index, 1)[:, 0]
        new = users >= _FIRST_NEW_USER
        sizes = np.where(new, len(parts[1]), len(parts[0]))
        place = (drawn * sizes).astype(np.int64)
        chosen = np.where(new, parts[1][np.minimum(place, len(parts[1]) - 1)], parts[0][place])
        return Visits(self._rows[chosen], labels[chosen].astype(np.float64))

    @cached_property
    def _documents(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        words, labels, _ = split_labels(read_corpus(locate("tmc2007", self.data_dir)))
        frequent = np.argsort(-labels.sum(axis=0), kind="stable")[: self.arms]
        return words, labels[:, np.sort(frequent)]

    @cached_property
    def _rows(self) -> Rows:
        words = self._documents[0]
        # A row holds a limited number of words; as for any tags, the first ones are kept.
        kept = words & (np.cumsum(words, axis=1) <= MOST_WORDS)
        rows = np.zeros(len(words), self.schema.layout)
        rows["words"] = np.packbits(kept, axis=1, bitorder="little")
        return rows
