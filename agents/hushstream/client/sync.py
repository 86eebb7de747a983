"""The client for code without an event loop: the same client on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from numpy.typing import ArrayLike

from hushstream.client.client import Client
from hushstream.client.decisions import Decision
from hushstream.client.items import Item
from hushstream.schemas.errors import HushstreamError

Result = TypeVar("Result")


class SyncClient:
    """Blocking calls over a `Client`; safe to use from several threads.

    Example:
        with SyncClient(connect("127.0.0.1:9092", "shop")) as client:
            decision = client.decide("order-1", "user-7", [0.2, 0.8])
    """

    def __init__(self, client: Client) -> None:
        """Wrap a client that has not been started."""
        self._client = client
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hushstream-client", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread and connect."""
        self._thread.start()
        try:
            self._run(self._client.__aenter__())
        except BaseException:
            self._stop_loop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush, close, and end the thread."""
        try:
            self._run(self._client.__aexit__(kind, error, trace))
        finally:
            self._stop_loop()

    def decide(
        self,
        event_id: str,
        user: str,
        context: ArrayLike | Mapping[str, Any],
        eligible: Sequence[int] | Sequence[str] | None = None,
        baseline: int | str | None = None,
        timeout: float | None = 5.0,
        track: str | None = None,
    ) -> Decision:
        """See `Client.decide`."""
        return self._run(self._client.decide(event_id, user, context, eligible, baseline, timeout, track))

    def rank(
        self,
        event_id: str,
        user: str,
        context: ArrayLike | Mapping[str, Any],
        positions: int,
        eligible: Sequence[int] | Sequence[str] | None = None,
        baseline: Sequence[int] | Sequence[str] = (),
        timeout: float | None = 5.0,
        track: str | None = None,
    ) -> list[Decision]:
        """See `Client.rank`."""
        return self._run(self._client.rank(event_id, user, context, positions, eligible, baseline, timeout, track))

    def shown(self, event_id: str, user: str, arm: int | str) -> None:
        """See `Client.shown`."""
        self._run(self._client.shown(event_id, user, arm))

    def reward(self, event_id: str, user: str, arm: int | str, reward: float) -> None:
        """See `Client.reward`."""
        self._run(self._client.reward(event_id, user, arm, reward))

    def harm(self, event_id: str, user: str, harm: float) -> None:
        """See `Client.harm`."""
        self._run(self._client.harm(event_id, user, harm))

    def end_phase(self, phase: int) -> None:
        """See `Client.end_phase`."""
        self._run(self._client.end_phase(phase))

    def list_items(self) -> Sequence[Item]:
        """See `Items.list`."""
        return self._run(self._client.items.list())

    def add_item(self, item: str, title: str = "", features: Mapping[str, Any] | None = None) -> int:
        """See `Items.add`."""
        return self._run(self._client.items.add(item, title, features))

    def retire_item(self, item: str) -> int:
        """See `Items.retire`."""
        return self._run(self._client.items.retire(item))

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        if not self._thread.is_alive():
            coroutine.close()
            raise HushstreamError("client: expected it to be started (use `with`), it is not")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
