"""The shared models of a process: the newest one of every track, and older ones that users still need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hushstream.schemas.errors import HushstreamError

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class SharedModel(Generic[State]):
    """A published model, ready to score with: its version (0: nothing learned yet) and its state."""

    version: int
    state: State


class SharedModels(Generic[State]):
    """Shared models by track and version.

    A user's state consists of the model that they started from and of what they learned since. Its bytes only name the
    version of the model. So a version is kept as long as some user, in memory or not, started from it.
    """

    __slots__ = ("_newest", "_retained", "_users")

    def __init__(self, tracks: Iterable[str], cold: State) -> None:
        """Start every track with the state of a model that has seen nothing."""
        model = SharedModel(0, cold)
        self._newest: dict[str, SharedModel[State]] = dict.fromkeys(tracks, model)
        self._retained: dict[tuple[str, int], State] = {}
        self._users: dict[tuple[str, int], int] = {}

    @property
    def tracks(self) -> tuple[str, ...]:
        """The names of the tracks."""
        return tuple(self._newest)

    def newest(self, track: str) -> SharedModel[State]:
        """The newest model of a track."""
        return self._newest[track]

    def adopt(self, track: str, version: int, state: State) -> None:
        """Make a model the newest of its track.

        Raises:
            HushstreamError: there is no such track.
        """
        if track not in self._newest:
            raise HushstreamError(f"model track: expected one of {sorted(self._newest)}, got {track!r}")
        self._newest[track] = SharedModel(version, state)

    def retain(self, track: str) -> SharedModel[State]:
        """The newest model of a track; from now on one more user needs it."""
        model = self._newest[track]
        place = (track, model.version)
        self._retained[place] = model.state
        self._users[place] = self._users.get(place, 0) + 1
        return model

    def retained(self, track: str, version: int) -> State:
        """A model that some user started from.

        Raises:
            HushstreamError: no user started from it.
        """
        state = self._retained.get((track, version))
        if state is None:
            raise HushstreamError(f"model: expected a version of {track!r} that a user started from, got {version}")
        return state

    def drop(self, track: str, version: int) -> None:
        """Note that one user fewer needs a model, and drop it after the last one."""
        place = (track, version)
        self._users[place] -= 1
        if not self._users[place]:
            del self._users[place], self._retained[place]

    def models(self) -> list[SharedModel[State]]:
        """Every model that may still be scored with, each state once."""
        retained = [SharedModel(version, state) for (_, version), state in self._retained.items()]
        return list({id(model.state): model for model in [*self._newest.values(), *retained]}.values())

    def dump(self, pack: Callable[[State], bytes]) -> list[dict[str, Any]]:
        """All models as plain values, for a snapshot."""
        return [*self._entries(pack)]

    def restore(self, dumped: Iterable[Mapping[str, Any]], unpack: Callable[[bytes], State]) -> None:
        """Replace everything by what `dump` gave.

        Raises:
            HushstreamError: it names a track that does not exist here.
        """
        self._retained, self._users = {}, {}
        for item in dumped:
            place, state = (item["line"], item["version"]), unpack(item["state"])
            if item["newest"]:
                self.adopt(*place, state)
            if item["users"]:
                self._retained[place] = state
                self._users[place] = item["users"]

    def _entries(self, pack: Callable[[State], bytes]) -> Iterator[dict[str, Any]]:
        states = {(track, model.version): model.state for track, model in self._newest.items()} | self._retained
        for track, version in sorted(states):
            yield {
                "line": track,
                "version": version,
                "users": self._users.get((track, version), 0),
                "newest": self._newest[track].version == version,
                "state": pack(states[track, version]),
            }
