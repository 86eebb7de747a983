"""Each zone seals its states under a storage key of its own, which turns and ends by itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import MachineMaker
from hushstream.engine.declare.declaration import System, role_of
from hushstream.engine.state.published import PUBLIC_RING, StateSeal, StateUnreadable
from hushstream.engine.state.sealed import SALT_BYTES, SealBroken, StorageSeal
from hushstream.privacy.errors import RetiredKey
from hushstream.privacy.key_files import KeyRing, StorageRing, check, load_ring, retire, rotate, storage_zone
from hushstream.privacy.keys import generate_keys, key_path
from hushstream.systems.p2b.configuration import ContextConfig, EncoderConfig, P2BConfig, ReleaseConfig
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.system import declare

ZONE, STORAGE = "edge", "storage-edge"
CONTENT = b"what ann likes"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Key files of an earlier release: none of storage."""
    generate_keys(tmp_path, [ZONE])
    return tmp_path


@pytest.fixture(scope="module")
def shop() -> System:
    config = P2BConfig(
        "shop", 4, ContextConfig(3), 32, encoder=EncoderConfig(codes=4), release=ReleaseConfig(window_slots=8)
    )
    return declare(P2BSystem.fitted(config))


def seal(folder: Path) -> StorageSeal:
    """As a worker that is started now seals: it reads the key files."""
    return StorageSeal("shop", "learner", 0, ring(folder))


def ring(folder: Path) -> KeyRing:
    before, storage = load_ring(key_path(folder, ZONE)), KeySource(folder).storage(STORAGE)
    return before if storage is None else StorageRing.of_zone(storage, before)


def sealed(by: StorageSeal) -> bytes:
    return b"".join(by.pack_file(os.urandom(SALT_BYTES), CONTENT))


def test_the_storage_key_is_none_of_noise_and_follows_from_no_key_of_noise(folder: Path) -> None:
    generate_keys(folder, [STORAGE])
    noise, storage = load_ring(key_path(folder, ZONE)), load_ring(key_path(folder, STORAGE))
    assert storage.key.key_id not in {key.key_id for key in noise.kept()}
    assert [one.problem for one in check(folder, [ZONE, STORAGE])] == [None, None]
    key_path(folder, STORAGE).unlink()
    generate_keys(folder, [STORAGE])
    assert load_ring(key_path(folder, STORAGE)).key.key_id != storage.key.key_id, "from the same zone's key another one"


def test_key_files_of_an_earlier_release_go_on_and_what_they_sealed_opens_under_a_storage_key(folder: Path) -> None:
    old = sealed(seal(folder))
    assert seal(folder).unpack_file(old) == CONTENT
    generate_keys(folder, [STORAGE])
    now = seal(folder)
    assert now.unpack_file(old) == CONTENT
    assert now.is_other_key(old), "so it is sealed anew when the partition is taken up"
    assert not now.is_other_key(sealed(now))


def test_a_key_of_noise_that_is_destroyed_takes_no_state_with_it(folder: Path) -> None:
    generate_keys(folder, [STORAGE])
    kept, published = sealed(seal(folder)), StateSeal("shop", "learner", 0, ring(folder)).pack(bytes(16), 0, CONTENT)
    rotate(key_path(folder, ZONE))
    retire(key_path(folder, ZONE), 0)
    assert seal(folder).unpack_file(kept) == CONTENT
    assert StateSeal("shop", "learner", 0, ring(folder)).unpack(published).content == CONTENT


def test_a_state_under_a_destroyed_storage_key_is_readable_by_nobody_nor_is_one_of_before(folder: Path) -> None:
    before = sealed(seal(folder))
    generate_keys(folder, [STORAGE])
    first = sealed(seal(folder))
    rotate(key_path(folder, STORAGE))
    second = sealed(seal(folder))
    assert [seal(folder).unpack_file(one) for one in (before, first, second)] == [CONTENT] * 3
    retire(key_path(folder, STORAGE), 0)
    assert seal(folder).unpack_file(second) == CONTENT
    for gone in (before, first):
        with pytest.raises(SealBroken, match="under a key of this zone's key file"):
            seal(folder).unpack_file(gone)
    with pytest.raises(RetiredKey):
        load_ring(key_path(folder, STORAGE)).of(0)


@pytest.mark.parametrize("name", ["learner", "shuffler", "aggregator"])
def test_every_role_seals_under_the_storage_key_of_its_zone_and_an_aggregator_has_that_key_alone(
    name: str, shop: System, tmp_path: Path
) -> None:
    role = role_of(shop, name)
    generate_keys(tmp_path, role.key_zones)
    maker = MachineMaker(role, shop, KeySource(tmp_path))
    before = PUBLIC_RING if role.key_zone is None else load_ring(key_path(tmp_path, role.key_zone))
    assert maker.state_keys() == before
    generate_keys(tmp_path, [role.storage_zone])
    storage = load_ring(key_path(tmp_path, role.storage_zone))
    keys = maker.state_keys()
    assert keys.of(keys.current) == storage.of(storage.current)
    assert role.storage_zone == storage_zone(role.key_zone or role.zone)
    old = StateSeal("shop", name, 0, before).pack(bytes(16), 0, CONTENT)
    assert StateSeal("shop", name, 0, keys).unpack(old).content == CONTENT
    rotate(key_path(tmp_path, role.storage_zone))
    retire(key_path(tmp_path, role.storage_zone), 0)
    with pytest.raises(StateUnreadable):
        StateSeal("shop", name, 0, maker.state_keys()).unpack(old)


def test_seeds_give_storage_keys_too() -> None:
    one, other = KeySource(seed=7).storage(STORAGE), KeySource(seed=7).key(ZONE)
    assert one is not None
    assert one.key.key_id != other.key_id
