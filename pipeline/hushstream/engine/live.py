"""What a live deployment may not release: it exists to reproduce papers, on public data."""

from __future__ import annotations

from hushstream.engine.values import ConfigurationError
from hushstream.privacy.promise import NOT_PRIVATE, Guarantee


def require_private(promise: Guarantee, where: str) -> None:
    """Refuse a release that is not private as stated.

    Args:
        promise: what the deployment's releases promise.
        where: the configuration or deployment, as errors name it.

    Raises:
        ConfigurationError: names the mechanism, and the topics on which content leaves un-noised.
    """
    if promise.private_as_stated:
        return
    topics = ", ".join(promise.unnoised)
    why = f"content leaves un-noised on {topics}" if topics else f"what is claimed for it does not hold; {promise.cost}"
    raise ConfigurationError(
        f"{where}: release: expected one that is private as stated, got {promise.mechanism.partition(':')[0]}, which "
        f"is {NOT_PRIVATE}: {why}; that is for replays of public datasets"
    )
