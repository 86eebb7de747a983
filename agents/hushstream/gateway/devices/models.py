"""The newest model that the aggregator has signed, in the form that devices fetch."""

from __future__ import annotations

from hushstream.engine.declare.device_service import DeviceService
from hushstream.engine.devices.envelope import STATEMENT_RECORD
from hushstream.engine.devices.errors import BadModel
from hushstream.engine.records import InputRecord
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError

_SCHEMAS = frozenset({STATEMENT_RECORD})


class SignedModels:
    """Follows published models; it ignores models that are not signed, or older than the newest known one."""

    def __init__(self, service: DeviceService) -> None:
        """Begin without a model."""
        self._service = service
        self._version = 0
        self.body: bytes | None = None
        """The body of `GET /v1/model`; None before the first version."""
        self.tag: str | None = None
        """The entity tag of that body."""

    def read(self, record: InputRecord) -> None:
        """Read a record of the topic of statements. Its signature is checked, because anybody may write there."""
        service = self._service
        try:
            _, fields = codec.decode(record.value, _SCHEMAS)
            if fields["config_digest"] != service.digest or fields["version"] <= self._version:
                return
            served = service.follow(fields)
        except (CodecError, BadModel):
            return
        self._version, self.body, self.tag = fields["version"], served.as_bytes(), served.tag
