"""What the machines of a poll work from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hushstream.engine.system import Core
from hushstream.privacy.mechanisms.noise import NoiseAddress, laplace_scale
from hushstream_poll.configuration import PollConfig, poll_digest
from hushstream_poll.promise import MECHANISM, priced


@dataclass(frozen=True, eq=False)
class PollSystem(Core[PollConfig]):
    """A configuration with the options of the question.

    Attributes:
        options: in words, in their order.
    """

    options: tuple[str, ...]

    @classmethod
    def of(cls, config: PollConfig, options: tuple[str, ...], public_dataset: bool) -> PollSystem:
        """A deployment."""
        digest = poll_digest(config, options, public_dataset)
        return cls(config, digest, priced(config), options, public_dataset=public_dataset)

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of partitions."""
        return {"ballots": self.config.homes, "tracks": 1}

    @property
    def scale(self) -> tuple[int, int]:
        """Of the noise of a count."""
        return laplace_scale(self.config.epsilon, 1)

    @property
    def parameters(self) -> Mapping[str, int]:
        """Every parameter that the noise depends on."""
        numerator, denominator = self.scale
        return {"options": len(self.options), "scale_numerator": numerator, "scale_denominator": denominator}

    def address(self, nonce: bytes, epoch: int, partition: int, window: int, content: bytes) -> NoiseAddress:
        """What names the noise of a window."""
        purpose, parameters = "release-noise", self.parameters
        return self.noise_address(purpose, MECHANISM, parameters, nonce, epoch, partition, window, content)
