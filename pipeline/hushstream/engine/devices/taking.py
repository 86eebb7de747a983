"""The models that a device takes, and what it remembers of them: no older one is taken, and no known key may go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic

from hushstream.engine.devices.agreed import Agreed, StatementT
from hushstream.engine.devices.envelope import ModelBody, read_model


class TakesModels(ABC, Generic[StatementT]):
    """A device of any system, as far as it takes models. Not thread-safe."""

    def __init__(self, agreement: Agreed[StatementT]) -> None:
        """Begin with the agreement's own keys."""
        self.agreement = agreement
        self._taken: ModelBody | None = None
        self._seen: StatementT | None = None
        self._signing, self._sealing = agreement.signing, agreement.sealing

    @property
    def tag(self) -> str | None:
        """The entity tag of the newest model that was taken; None without one."""
        return None if self._taken is None else self._taken.tag

    @property
    def version(self) -> int:
        """Of the newest model that was taken; 0 without one."""
        return 0 if self._seen is None else self._seen.version

    def take(self, body: bytes, now_ms: int) -> StatementT:
        """Go on with a model from here on.

        Args:
            body: as it came.
            now_ms: the device's clock.

        Raises:
            BadModel: it must not be taken (the transport's page has the list); nothing has changed.
        """
        model = read_model(body)
        self.agreement.require_keys(model, self._signing, self._sealing)
        statement = self.agreement.stated(model, now_ms, self._seen)
        self._adopt(statement, model.content)
        self._remember(model, statement)
        return statement

    @abstractmethod
    def _adopt(self, statement: StatementT, content: bytes) -> None:
        """Go on with the content of a model that may be taken; raises `BadModel` before anything has changed."""

    def _remember(self, model: ModelBody, statement: StatementT) -> None:
        self._taken, self._seen = model, statement
        self._signing, self._sealing = model.signing, model.sealing
