import numpy as np
import pytest

from hushstream.counting import (
    BinaryTree,
    BufferedToeplitz,
    Concentrated,
    Counter,
    NegativeDigitTree,
    Plan,
    PureEpsilon,
    PureLength,
)
from hushstream.privacy.keys import Key, seeded_key
from hushstream.privacy.mechanisms.noise import NoiseAddress

PURE = PureEpsilon(1)
LENGTH = PureLength(1)
ZCDP = Concentrated(0.5, 1e-6)

PLANS: dict[str, Plan] = {
    "binary-laplace": BinaryTree(budget=PURE, dimension=3, sensitivity=5, horizon=100),
    "binary-gaussian": BinaryTree(budget=ZCDP, dimension=3, sensitivity=5, horizon=100),
    "binary-laplace-scalar": BinaryTree(budget=PURE, horizon=100),
    "negative-laplace": NegativeDigitTree(budget=PURE, dimension=3, sensitivity=5, horizon=100, base=5),
    "negative-gaussian": NegativeDigitTree(budget=ZCDP, dimension=3, sensitivity=5, horizon=100, base=4),
    "negative-laplace-scalar": NegativeDigitTree(budget=PURE, horizon=100),
    "binary-k-norm": BinaryTree(budget=LENGTH, dimension=16, sensitivity=5, horizon=100),
    "negative-k-norm": NegativeDigitTree(budget=LENGTH, dimension=16, sensitivity=5, horizon=100, base=5),
    "blt": BufferedToeplitz(budget=ZCDP, dimension=3, sensitivity=5, horizon=100),
    "negative-small-blocks": NegativeDigitTree(
        budget=ZCDP, dimension=3, sensitivity=5, horizon=100, base=4, nodes_per_block=3
    ),
    "blt-scalar": BufferedToeplitz(budget=ZCDP, horizon=100),
}


@pytest.fixture(params=list(PLANS))
def plan(request: pytest.FixtureRequest) -> Plan:
    """Every kind of counter, with every law, scalar and vector."""
    return PLANS[request.param]


@pytest.fixture
def key() -> Key:
    return seeded_key(7, "counter")


@pytest.fixture
def address() -> NoiseAddress:
    return NoiseAddress(
        purpose="release-noise",
        deployment="tests",
        genesis_nonce=bytes(range(32)),
        system="colin",
        mechanism="counter",
        parameters={"counter": "rewards"},
        config_digest=b"configuration-16",
        epoch=0,
    )


def released(counter: Counter, leaves: np.ndarray, origin: bytes = b"") -> np.ndarray:
    """Take leaves one at a time; what is released after each."""
    releases = np.empty_like(leaves)
    for row, leaf in enumerate(leaves):
        counter.add(leaf[None], origin)
        releases[row] = counter.release().values
    return releases
