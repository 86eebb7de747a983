"""The newest model that the aggregator has signed, as devices fetch it."""

from __future__ import annotations

from hushstream.engine.records import InputRecord
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.systems.p2b.device.errors import BadModel
from hushstream.systems.p2b.device.stated import ModelBody
from hushstream.systems.p2b.guarantee.deployment import P2BSystem

_SCHEMAS = frozenset({"ModelStatement"})


class SignedModels:
    """Follows what is stated; what is not signed, or older than what is there, is passed over."""

    def __init__(self, system: P2BSystem) -> None:
        """There is no model yet."""
        self._system = system
        self._version = 0
        self.body: bytes | None = None
        """What `GET /v1/model` answers with; None before the first version."""
        self.tag: str | None = None
        """Its entity tag."""

    def read(self, record: InputRecord) -> None:
        """Take a record of the statements' topic: it may be anybody's, so its signature is looked at here, too."""
        signing, sealing = self._system.signing, self._system.sealing
        assert signing is not None
        assert sealing is not None
        try:
            _, fields = codec.decode(record.value, _SCHEMAS)
            version, number = fields["version"], fields["signing_key"]
            if fields["config_digest"] != self._system.digest or version <= self._version:
                return
            signing.verify(version, number, fields["signature"], fields["statement"])
        except (CodecError, BadModel):
            return
        body = ModelBody(fields["statement"], number, fields["signature"], signing, sealing, fields["content"])
        self._version, self.body, self.tag = version, body.as_bytes(), body.tag
