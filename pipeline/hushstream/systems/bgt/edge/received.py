"""The published records that a rater receives: models on their chain, and rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hushstream.engine.learner.model_parts import ModelReader
from hushstream.engine.records import InputRecord, InputSlice, TopicPartition
from hushstream.engine.state.declared import READER, array
from hushstream.schemas import codec
from hushstream.systems.bgt.artefacts import TRACK, BgtSystem
from hushstream.systems.bgt.records import (
    NONE,
    BgtError,
    Model,
    Round,
    blank_model,
    first_round,
    parse_model,
    parse_round,
)

ROUNDS_TOPIC: TopicPartition = ("rounds", 0)

RECEIVED = {"reader": READER, "models": array("bytes"), "rounds": "long", "asked": array("bytes")}
"""Avro fields of `Received.dump`."""


class Received:
    """All rounds and models so far. A round is answered with its own model, even if newer ones were published.

    Attributes:
        reader: of the model track.
        rounds_read: next offset of rounds.
    """

    def __init__(self, system: BgtSystem) -> None:
        """Begin before the first record."""
        self._system = system
        self.reader = ModelReader(system, 0, TRACK, "RatingModel")
        self.rounds_read = 0
        self._first = first_round(system.config)
        self._models: list[tuple[bytes, Model]] = []
        self._asked: dict[int, tuple[bytes, dict[str, Any]]] = {}

    @property
    def version(self) -> int:
        """Version of the newest model; 0 before the first."""
        return len(self._models)

    @property
    def model(self) -> Model:
        """The newest model; in the first round it is empty."""
        return self._model_of(self.version)

    @property
    def number(self) -> int:
        """Number of the newest round whose model was also received; after the last round, one more than its number."""
        return min(self.version, max(self._asked, default=0))

    @property
    def ended(self) -> bool:
        """Whether there will be no further round."""
        return any(fields["kind"] == NONE for _, fields in self._asked.values())

    def round(self, number: int) -> Round | None:
        """A received round with its model; None if it asks for nothing.

        Raises:
            BgtError: it does not fit its model.
        """
        if not number:
            return self._first
        if number not in self._asked:
            return None
        return parse_round(self._asked[number][1], self._model_of(number), self._system.config)

    def opening(self, number: int) -> bytes | None:
        """The record that opened a round; None for the first one."""
        return self._asked[number][0] if number in self._asked else None

    def read_models(self, part: InputSlice) -> int:
        """Take the models of a slice; returns their number."""
        models = list(self.reader.read(part))
        for record in models:
            self._adopt(record.value, record.fields)
        return len(models)

    def read_round(self, record: InputRecord) -> bool:
        """Take a record of `rounds`; False if it was received before.

        Raises:
            CodecError: the record is no round.
            BgtError: the round is of another deployment, not the next one, or invalid.
        """
        fields = codec.decode(record.value, frozenset({"RatingRound"}))[1]
        newest = max(self._asked, default=0)
        if fields["config_digest"] != self._system.digest or not 0 < fields["number"] <= newest + 1:
            raise BgtError(f"round: expected the next one of this deployment after {newest}, got another")
        if fields["number"] <= newest:
            return False
        parse_round(fields, blank_model(self._system.config, fields["kept"]), self._system.config)
        self._asked[fields["number"]] = record.value, fields
        return True

    def dump(self) -> dict[str, Any]:
        """The values of `RECEIVED`; all of them are public."""
        return {
            "reader": self.reader.dump(),
            "models": [value for value, _ in self._models],
            "rounds": self.rounds_read,
            "asked": [value for value, _ in self._asked.values()],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Return to dumped values."""
        self.reader.load(state["reader"])
        self.rounds_read, self._models, self._asked = state["rounds"], [], {}
        for value in state["models"]:
            self._adopt(value, codec.decode(value)[1])
        for value in state["asked"]:
            fields = codec.decode(value)[1]
            self._asked[fields["number"]] = value, fields

    def _model_of(self, version: int) -> Model:
        return self._models[version - 1][1] if version else self._first.model

    def _adopt(self, value: bytes, fields: Mapping[str, Any]) -> None:
        self._models.append((value, parse_model(fields, self._system.config)))
