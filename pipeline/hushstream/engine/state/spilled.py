"""Spilled users: a machine with very many users keeps most of them as bytes in a store of its driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

NEVER_MS = 1 << 62
"""Value in place of the log time of a user's last context, if the record must not expire."""


class StoredUser(NamedTuple):
    """One spilled user.

    Attributes:
        key: a keyed digest of their name (16 bytes); the store has no names.
        seen_ms: log time of their last context, or `NEVER_MS`.
        value: their packed state, or what stays after an erasure.
    """

    key: bytes
    seen_ms: int
    value: bytes


class UserStore(Protocol):
    """A store of spilled users, by key. Every call sees the effects of earlier calls.

    Attributes:
        durable: whether it keeps its content at each snapshot together with the snapshot.
    """

    durable: bool

    def get(self, key: bytes) -> bytes | None:
        """The value of a user, or None."""

    def put(self, users: Iterable[StoredUser]) -> bool:
        """Add or replace users. If the store is full, it adds none and returns False."""

    def cut(self) -> None:
        """Fix the content of the next snapshot: all users put so far, and those that `complete` adds."""

    def complete(self, users: Iterable[StoredUser]) -> bool:
        """Add users to the snapshot, as they were at the last cut.

        If the store cannot keep them, it adds none and returns False.
        """

    def unseen_since(self, seen_ms: int) -> Iterator[StoredUser]:
        """The users last seen before a log time, at present; the caller may put users during the iteration."""


class MemoryUserStore:
    """Spilled users in memory: the default store of a machine."""

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
        """See `UserStore.cut`: this store is in no snapshot."""

    def complete(self, users: Iterable[StoredUser]) -> bool:
        """See `UserStore.complete`: this store keeps nothing for snapshots."""
        return False

    def unseen_since(self, seen_ms: int) -> Iterator[StoredUser]:
        return iter([user for user in self.all() if user.seen_ms < seen_ms])

    def all(self) -> list[StoredUser]:
        """All users, by key."""
        return [self._users[key] for key in sorted(self._users)]


class KeptUsers(MemoryUserStore):
    """Spilled users of a stored state, in memory, for a check that recomputes later records and takes no snapshots."""

    durable = True

    def complete(self, users: Iterable[StoredUser]) -> bool:
        return self.put(users)
