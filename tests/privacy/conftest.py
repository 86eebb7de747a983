from collections.abc import Callable

import pytest

from hushstream.privacy.keys import Key, seeded_key
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress


@pytest.fixture
def key() -> Key:
    return seeded_key(7, "shuffler")


@pytest.fixture
def address() -> NoiseAddress:
    return NoiseAddress(
        purpose="release-noise",
        deployment="tests",
        genesis_nonce=bytes(range(32)),
        system="p2b",
        mechanism="slot-sums",
        parameters={"epsilon_micro": 1_000_000, "levels": 1},
        config_digest=b"configuration-16",
        epoch=0,
        window=3,
    )


@pytest.fixture
def stream(key: Key, address: NoiseAddress) -> Callable[[], KeyedStream]:
    """Begin the same stream as often as it is called."""
    return lambda: KeyedStream(key, address)
