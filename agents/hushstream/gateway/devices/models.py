"""The newest model that the aggregator has signed, as devices fetch it."""

from __future__ import annotations

from hushstream.engine.declare.desk import Desk
from hushstream.engine.devices.envelope import STATEMENT_RECORD
from hushstream.engine.devices.errors import BadModel
from hushstream.engine.records import InputRecord
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError

_SCHEMAS = frozenset({STATEMENT_RECORD})


class SignedModels:
    """Follows what is stated; what is not signed, or older than what is there, is passed over."""

    def __init__(self, desk: Desk) -> None:
        """There is no model yet."""
        self._desk = desk
        self._version = 0
        self.body: bytes | None = None
        """What `GET /v1/model` answers with; None before the first version."""
        self.tag: str | None = None
        """Its entity tag."""

    def read(self, record: InputRecord) -> None:
        """Take a record of the statements' topic: it may be anybody's, so its signature is looked at here, too."""
        desk = self._desk
        try:
            _, fields = codec.decode(record.value, _SCHEMAS)
            if fields["config_digest"] != desk.digest or fields["version"] <= self._version:
                return
            served = desk.follow(fields)
        except (CodecError, BadModel):
            return
        self._version, self.body, self.tag = fields["version"], served.as_bytes(), served.tag
