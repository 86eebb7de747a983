"""What workers write to disk and to the state topic is sealed: no content of any role can be read there."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.recovery.snapshots import SnapshotStore
from hushstream.agents.recovery.user_store import UserDatabase
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.roles import role_work
from hushstream.engine.state.packed import StorageSeal
from hushstream.schemas import codec
from hushstream.schemas.topics import common_name
from hushstream.systems.catalogue import kinds

ROLES = sorted({(name, role.name) for name, kind in kinds().items() for role in kind.roles})
CHUNK_BYTES = 16
CHUNKS = 400
NAME_BYTES = 6
"""A shorter name may be met by chance: among 10 MB one of 6 bytes is, with a chance of 4e-8."""


def chunks(content: bytes) -> set[bytes]:
    """Pieces of a state from all over it: among 10 MB, 16 bytes are met by chance with one of 3e-32."""
    step = max(1, len(content) // CHUNKS)
    found = (content[place : place + CHUNK_BYTES] for place in range(0, len(content) - CHUNK_BYTES, step))
    return {one for one in found if len(set(one)) > CHUNK_BYTES // 2}


def names(value: Any) -> Iterator[bytes]:
    """All texts and bytes of a decoded record."""
    if isinstance(value, dict):
        for field, inner in value.items():
            if field not in ("config_digest", "deployment", "system"):
                yield from names(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from names(inner)
    elif isinstance(value, (str, bytes)):
        content = value.encode() if isinstance(value, str) else value
        if len(content) >= NAME_BYTES and len(set(content)) > 3:
            yield content


class Disk:
    """What one role of a played deployment has left, opened and as it lies there."""

    def __init__(self, played: Any, name: str) -> None:
        # Where each party runs one of its own, the first party's.
        self.role = next(role for role in played.system.roles if common_name(role.name) == name)
        name, self.folder = self.role.name, played.disks[self.role.name]
        make = role_work(name, played.system, played.keys).make_machine
        settings = WorkerSettings(
            bootstrap="127.0.0.1:1", role=name, group="g", deployment=played.system.config.deployment,
            datadir=self.folder,
        )  # fmt: skip
        store, self.opened = SnapshotStore(settings, make), b""
        self.homes = [home for journal, home in played.stood if journal == self.role.journal]
        for home in self.homes:
            place = store.path(home).with_suffix(".users")
            if place.exists():
                seal = StorageSeal(settings.deployment, name, home, make.state_keys())
                with closing(UserDatabase(place, seal)) as users:
                    content = users.snapshot()
                    assert content is not None
                    self.opened += content + b"".join(user.value for user in users.saved_with(content))
            else:
                snapshot = store.load(home)
                assert snapshot is not None
                self.opened += snapshot.state
        self.files = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        state = played.logs.of_topic(self.role.state.name)
        self.published = [record.value for _, part in state for record in part.records]
        inputs = [part for topic in self.role.inputs for _, part in played.logs.of_topic(topic)]
        self.content = {one for part in inputs for record in part.records for one in _names(record.value)}
        # The name of a party is public: that of its topics and roles.
        self.content -= {self.role.party.encode()}


def _names(value: bytes) -> Iterator[bytes]:
    try:
        _, fields = codec.decode(value)
    except codec.CodecError:
        return
    yield from names(fields)


def shown(secrets: set[bytes], places: list[bytes]) -> list[bytes]:
    """Which of them can be read."""
    return [secret for secret in secrets if any(secret in place for place in places)]


@pytest.fixture(params=ROLES, ids=lambda one: "-".join(one))
def disk(request: pytest.FixtureRequest, playing: Callable[[str], Any]) -> Disk:
    system, role = request.param
    return Disk(playing(system), role)


def test_no_byte_on_disk_or_on_the_state_topic_tells_what_a_role_holds(disk):
    secrets = chunks(disk.opened) | disk.content
    assert disk.homes, "it has left a state"
    assert len(chunks(disk.opened)) > 3, "which holds something"
    assert shown(secrets, [disk.opened]), "that could be read if it were in clear"
    assert disk.files
    assert disk.published
    assert shown(secrets, list(disk.files.values())) == []
    assert shown(secrets, disk.published) == []


def test_no_other_user_may_read_its_files(disk):
    assert {stat.S_IMODE(path.stat().st_mode) for path in disk.files} == {0o600}


def test_the_users_of_a_learner_are_among_them(playing):
    """The one role that spills: its users' states lie beside the snapshot."""
    disk = Disk(playing("p2b"), "learner")
    assert any(Path(path).suffix == ".users" for path in disk.files)
    clicks = {one for one in disk.content if one in disk.opened}
    assert clicks
