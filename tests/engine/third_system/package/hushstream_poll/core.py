"""What the machines of a poll work from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hushstream.engine.noise.budget import SpendingTerms
from hushstream.privacy.mechanisms.noise import NoiseAddress, laplace_scale
from hushstream.privacy.promises.promise import Guarantee
from hushstream_poll.configuration import NAME, PollConfig
from hushstream_poll.promise import MECHANISM, guarantee_of, terms_of


@dataclass(frozen=True, slots=True)
class PollSystem:
    """A configuration with the options of the question.

    Attributes:
        config: as given.
        options: in words, in their order.
        digest: of both.
        public_dataset: whether a public dataset is replayed.
    """

    config: PollConfig
    options: tuple[str, ...]
    digest: bytes
    public_dataset: bool = False

    @property
    def guarantee(self) -> Guarantee:
        """What is promised."""
        return guarantee_of(self.config)

    @property
    def terms(self) -> SpendingTerms:
        """What windows cost."""
        return terms_of(self.config)

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
        return NoiseAddress(
            purpose="release-noise",
            deployment=self.config.deployment,
            genesis_nonce=nonce,
            system=NAME,
            mechanism=MECHANISM,
            parameters=self.parameters,
            config_digest=self.digest,
            epoch=epoch,
            window=window,
            partition=partition,
            content=content,
        )
