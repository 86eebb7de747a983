"""What a machine answers that draws no noise, spends nothing, waits for no record and holds everybody in memory.

A role overrides what it does: whoever drives it asks, and never looks at which class it is.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import ClassVar, Protocol

from hushstream.engine.records import Awaited, FollowsModels, InputSlice, Step
from hushstream.engine.state.spilled import UserStore
from hushstream.privacy.amounts import Cost
from hushstream.privacy.ledger import Exhausted


class _Packs(Protocol):
    def snapshot(self) -> bytes: ...


class PlainMachine:
    """The part of `Machine` that only some roles need."""

    keeps_users: ClassVar[bool] = False

    def snapshot_portions(self: _Packs) -> Generator[None, None, bytes]:
        """See `Machine.snapshot_portions`: in one go, for a state that is small."""
        packed = self.snapshot()
        yield
        return packed

    def keep_users(self, store: UserStore, resident: int) -> None:
        """See `Machine.keep_users`: not asked of those who keep none there."""

    @property
    def awaited(self) -> Awaited | None:
        return None

    def ends_at(self, before: int, end: int) -> None:
        """See `Machine.ends_at`: nothing waits."""

    @property
    def readers(self) -> Sequence[FollowsModels]:
        return ()

    @property
    def charged(self) -> Cost | None:
        return None

    @property
    def refused(self) -> Exhausted | None:
        return None

    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step | None:
        return None

    def answers(self, sequence: int) -> bool:
        return True

    def distrust(self, nonce: bytes, forked: bool = False, lives: int = 0) -> bool:
        return False
