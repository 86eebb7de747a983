"""Spilled users: a machine that knows very many keeps most of them as bytes in a store that its driver gives it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

NEVER_MS = 1 << 62
"""In place of when a user was seen, for what must not expire."""


class StoredUser(NamedTuple):
    """One spilled user.

    Attributes:
        key: a keyed digest of their name (16 bytes): the store names nobody.
        seen_ms: log time of their last context, or `NEVER_MS`.
        value: their packed state, or what stays of them.
    """

    key: bytes
    seen_ms: int
    value: bytes


class UserStore(Protocol):
    """Where spilled users lie, by key. Every call sees the calls before it.

    Attributes:
        durable: whether it keeps, with each snapshot, what it held when that was taken.
    """

    durable: bool

    def get(self, key: bytes) -> bytes | None:
        """The value of a user, or None."""

    def put(self, users: Iterable[StoredUser]) -> bool:
        """Add or replace users; False when there is no room for them, and then none was taken."""

    def cut(self) -> None:
        """The next snapshot holds what was put until now, and what it is completed with; nothing that is put later."""

    def complete(self, users: Iterable[StoredUser]) -> bool:
        """Add users as they were at the last cut; False when it can keep none of them, and then none was taken."""

    def unseen_since(self, seen_ms: int) -> Iterator[StoredUser]:
        """The users last seen before a log time, as it is now: those may be put while they are gone through."""


class MemoryUserStore:
    """Spilled users in memory: what a machine has when nobody gives it another store."""

    durable = False

    def __init__(self, users: Iterable[StoredUser] = ()) -> None:
        """Begin with these."""
        self._users = {user.key: user for user in users}

    def get(self, key: bytes) -> bytes | None:
        user = self._users.get(key)
        return None if user is None else user.value

    def put(self, users: Iterable[StoredUser]) -> bool:
        self._users.update((user.key, user) for user in users)
        return True

    def cut(self) -> None:
        """See `UserStore.cut`: it is in no snapshot."""

    def complete(self, users: Iterable[StoredUser]) -> bool:
        """See `UserStore.complete`: it keeps nothing."""
        return False

    def unseen_since(self, seen_ms: int) -> Iterator[StoredUser]:
        return iter([user for user in self.all() if user.seen_ms < seen_ms])

    def all(self) -> list[StoredUser]:
        """Everybody, by key."""
        return [self._users[key] for key in sorted(self._users)]


class KeptUsers(MemoryUserStore):
    """Users who lay beside a state, in memory: for who recomputes what followed, and takes no snapshot."""

    durable = True

    def complete(self, users: Iterable[StoredUser]) -> bool:
        return self.put(users)
