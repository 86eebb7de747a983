"""A small deployment of P-DAP, and random outcomes for it."""

import numpy as np

from hushstream.engine.configuration import config_digest
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.systems.pdap.algorithm.aggregate import Aggregate, Outcomes
from hushstream.systems.pdap.algorithm.blocks import KeyedBlockNoise, block_scales
from hushstream.systems.pdap.algorithm.serving import Serving
from hushstream.systems.pdap.configuration import BlockConfig, CellConfig, PdapConfig, VendorConfig
from hushstream.systems.pdap.counter import Counter

KEY = seeded_key(3, "counter")


def config(vendors=2, arms=10, dimension=2, cells=None, **release):
    names = tuple(VendorConfig(f"v{number}", arms) for number in range(vendors))
    return PdapConfig(
        "test", names, dimension, cells=cells or CellConfig(split_at=60.0), release=BlockConfig(**release)
    )


def address(settings):
    return NoiseAddress(
        "release-noise", settings.deployment, bytes(32), "pdap", "blocks", {}, config_digest(settings), epoch=0
    )


def keyed(settings, key=KEY):
    return KeyedBlockNoise(key, address(settings), block_scales(settings))


def names(first, count):
    """Public names of events, by number."""
    return np.array([list(number.to_bytes(16, "big")) for number in range(first, first + count)], dtype=np.uint8)


class Deployment:
    """Counter, aggregator and serving in a closed loop; clicks follow the arm's number alone."""

    def __init__(self, settings, noise=None, seed=0):
        self.config = settings
        self.counter = Counter(settings, noise or keyed(settings))
        self.aggregate = Aggregate(settings)
        self.serving = Serving(settings.grid, KEY)
        self.updates, self.releases, self.answers = [], [], []
        self.draws = np.random.default_rng(seed)
        self.publish()

    def publish(self):
        self.updates.append(self.aggregate.publish())
        self.serving.apply(self.updates[-1])

    def answer(self, count):
        contexts = self.draws.random((count, self.config.dimension)).astype(np.float32)
        users = [place.to_bytes(4, "little") for place in range(count)]
        found = self.serving.choose(contexts, users, [b"%d" % len(self.answers)] * count)
        self.answers.append(found)
        return found

    def window(self, change=None):
        """Fill and close a window; ``change`` may alter its clicks, which are drawn before it is asked."""
        found = self.answer(self.counter.capacity_left)
        chances = 0.1 + 0.8 * found.arms / self.config.arms
        clicks = (self.draws.random(len(chances)) < chances).astype(np.int64)
        clicks = clicks if change is None else change(clicks)
        self.counter.take(
            Outcomes(found.cells, found.arrivals, found.arms, clicks, names(self.counter.taken, len(clicks)))
        )
        self.releases.append(self.counter.close(self.counter.window))
        self.aggregate.fold(self.releases[-1])
        self.publish()
