"""The machine of the rater role: what a partition of users holds, and one journaled step for each batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hushstream.engine.journal.chain import head_fields, ranges_of
from hushstream.engine.journal.digests import digest_outputs
from hushstream.engine.journal.generations import in_its_generation
from hushstream.engine.records import InputSlice, ReplayMismatch, Step
from hushstream.systems.bgt.edge.fold import RaterFold
from hushstream.systems.bgt.edge.rater import Rater
from hushstream.systems.bgt.slots import Float64


class RaterMachine(Rater):
    """A `Rater` that folds batches."""

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for one batch."""
        fold, fields = self._folded(slices, None)
        return [Step(self.chain.append(fields), tuple(fold.outputs), tuple(fold.dead), fold.counts)]

    @in_its_generation
    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: what the journal says was predicted stands where it is the same but for a rounding.

        After a `ReplayMismatch` the machine must be thrown away.
        """
        fields = self.chain.accept(value, self.positions())
        fold, again = self._folded(slices, np.frombuffer(fields["values"], "<f8"), self.chain.sequence)
        ours, theirs = self.chain.written(again), self.chain.written(fields)
        for name in ours:
            if ours[name] != theirs[name]:
                raise ReplayMismatch(
                    f"predictions/{self.partition} record {self.chain.sequence}: its inputs give another {name}"
                )
        return Step(None, tuple(fold.outputs), tuple(fold.dead), fold.counts)

    def _folded(
        self, slices: Sequence[InputSlice], journaled: Float64 | None, sequence: int | None = None
    ) -> tuple[RaterFold, dict[str, Any]]:
        """Fold a batch, and say what the journal record that covers it holds."""
        covered = self._covered(slices)
        fold = RaterFold(self, journaled)
        fold.run(covered)
        self._decoded = None
        number = self.chain.sequence + 1 if sequence is None else sequence
        inputs, outputs = self.input_digest(covered), digest_outputs(self.key, fold.outputs)
        head = head_fields(number, 0, ranges_of(covered), inputs, outputs, self.chain.schema_generation)
        return fold, {"head": head, **fold.fields()}

    def _covered(self, slices: Sequence[InputSlice]) -> list[InputSlice]:
        """One slice for every input in one order, empty ones included."""
        given = {(part.topic, part.partition): part for part in slices}
        return [
            given.get(source, InputSlice(*source, low=position, high=position, records=()))
            for source, position in sorted(self.positions().items())
        ]
