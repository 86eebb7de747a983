"""What a rater hears from the server: models on their chain, and what is asked for next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hushstream.engine.machine import InputRecord, InputSlice, TopicPartition
from hushstream.engine.models import ModelReader
from hushstream.engine.state_parts import READER
from hushstream.schemas import codec
from hushstream.systems.bgt.deployment import LINE, BgtSystem
from hushstream.systems.bgt.errors import BgtError
from hushstream.systems.bgt.records import NONE, parse_model, parse_round
from hushstream.systems.bgt.rounds import Model, Round, first_round

ROUNDS_TOPIC: TopicPartition = ("rounds", 0)

HEARD = {"reader": READER, "model": "bytes", "rounds": "long", "asked": "bytes"}
"""Avro fields of `Heard.dump`."""


class Heard:
    """The newest model and the newest round.

    Attributes:
        reader: of the model line.
        version: of the model in use; 0 before the first.
        model: in use.
        rounds_read: up to which offset rounds were read.
        asked: the newest round's record; empty while it is the first one, which follows from the configuration.
    """

    def __init__(self, system: BgtSystem) -> None:
        """Nothing was heard."""
        self._system = system
        self.reader = ModelReader(system, 0, LINE, "RatingModel")
        self.version = 0
        self.model: Model = first_round(system.config).model
        self.rounds_read = 0
        self.asked = b""
        self._fields: dict[str, Any] = {}
        self._value = b""

    @property
    def number(self) -> int:
        """Of the newest round whose model is in use too; what ended has the number that would have come."""
        return min(self.version, int(self._fields.get("number", 0)))

    @property
    def ended(self) -> bool:
        """Whether nothing is asked for any more."""
        return self._fields.get("kind") == NONE

    def round(self) -> Round | None:
        """The newest round, with its model; None where nothing is asked for any more.

        Raises:
            BgtError: it does not fit its model.
        """
        if not self.asked:
            return first_round(self._system.config)
        return parse_round(self._fields, self.model, self._system.config)

    def read_models(self, part: InputSlice) -> int:
        """Take the models of a slice; how many."""
        taken = 0
        for record in self.reader.read(part):
            self._adopt(record.value, record.fields)
            taken += 1
        return taken

    def read_round(self, record: InputRecord) -> bool:
        """Take a record of `rounds`; False where it was heard before.

        Raises:
            CodecError: it is no round.
            BgtError: of another deployment.
        """
        fields = codec.decode(record.value, frozenset({"RatingRound"}))[1]
        if fields["config_digest"] != self._system.digest:
            raise BgtError("round: expected one of this deployment, got another digest")
        if fields["number"] <= self._fields.get("number", 0):
            return False
        self.asked, self._fields = record.value, fields
        return True

    def dump(self) -> dict[str, Any]:
        """The values of `HEARD`: all of it was published."""
        return {
            "reader": self.reader.dump(),
            "model": self._value,
            "rounds": self.rounds_read,
            "asked": self.asked,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Return to dumped values."""
        self.reader.resume(state["reader"])
        self.version, self.model, self._value = 0, first_round(self._system.config).model, b""
        if state["model"]:
            self._adopt(state["model"], codec.decode(state["model"])[1])
        self.rounds_read, self.asked = state["rounds"], state["asked"]
        self._fields = codec.decode(self.asked)[1] if self.asked else {}

    def _adopt(self, value: bytes, fields: Mapping[str, Any]) -> None:
        self.model, self.version = parse_model(fields, self._system.config), fields["version"]
        self._value = value
