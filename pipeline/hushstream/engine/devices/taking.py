"""Accepts models on a device, which remembers versions and keys: it accepts no older model, and no loss of a key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic

from hushstream.engine.devices.agreed import Agreed, StatementT
from hushstream.engine.devices.envelope import ModelBody, read_model


class TakesModels(ABC, Generic[StatementT]):
    """The part of a device that accepts models, in any system. Not thread-safe."""

    def __init__(self, agreement: Agreed[StatementT]) -> None:
        """Begin with the agreement's own keys."""
        self.agreement = agreement
        self._taken: ModelBody | None = None
        self._seen: StatementT | None = None
        self._signing, self._sealing = agreement.signing, agreement.sealing

    @property
    def tag(self) -> str | None:
        """The entity tag of the newest model that was accepted; None if there is none."""
        return None if self._taken is None else self._taken.tag

    @property
    def version(self) -> int:
        """Version of the newest model that was accepted; 0 if there is none."""
        return 0 if self._seen is None else self._seen.version

    def take(self, body: bytes, now_ms: int) -> StatementT:
        """Check a model, and use it from now on.

        Args:
            body: the body of the answer, as it was received.
            now_ms: time of the device's clock.

        Raises:
            BadModel: the device must not accept it (the page on the transport lists the reasons). Nothing has changed.
        """
        model = read_model(body)
        self.agreement.require_keys(model, self._signing, self._sealing)
        statement = self.agreement.stated(model, now_ms, self._seen)
        self._adopt(statement, model.content)
        self._remember(model, statement)
        return statement

    @abstractmethod
    def _adopt(self, statement: StatementT, content: bytes) -> None:
        """Use the content of an accepted model from now on; raises `BadModel` before anything has changed."""

    def _remember(self, model: ModelBody, statement: StatementT) -> None:
        self._taken, self._seen = model, statement
        self._signing, self._sealing = model.signing, model.sealing
