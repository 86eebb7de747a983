"""What a live deployment must not release, and what it may release only if its configuration says so."""

from __future__ import annotations

from hushstream.engine.system import DeploymentValues
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.promises.promise import NOT_PRIVATE, Guarantee, Promises
from hushstream.privacy.promises.sentence import NOTHING, left_alone, noun


def require_private(promises: Promises, where: str) -> None:
    """Refuse a release that is not private as stated, and one that promises a single unit nothing (delta 1).

    Args:
        promises: what the deployment's releases promise.
        where: the configuration or deployment, as errors name it.

    Raises:
        ConfigurationError: names the mechanism, and the topics on which content leaves un-noised or the price.
    """
    for promise in promises.each:
        _require_as_stated(promise, where)
        if promise.unit_prices.weak == NOTHING:
            raise ConfigurationError(
                f"{where}: release: expected one that promises a unit something, got {_name(promise)}: {promise.unit} "
                f"pays {promise.cost} ({promise.replace_one} for one content against another), which promises nothing; "
                f"lower {'holdout' if promise is promises.lift else 'privacy'}.epsilon"
            )


def require_person_told(config: DeploymentValues, promises: Promises, where: str) -> None:
    """Refuse to prepare what promises nothing to a person as a whole, unless its configuration says so in words.

    A number of units that nobody holds a person to opens no gate, however small it is: who has more of them is promised
    less, and the worst over all persons is what a promise to each of them is. pdap's ``units_per_person`` is such a
    number. To hold a person to it, the learner would have to count each user's outcomes for life, in its state, past
    erasures and new journals, or an allowance comes back; and a person has an account with each vendor, whose learners
    share no key, by design, so nobody could add those counts up. A cap of each vendor's own would then bound a person
    of v accounts by v times the number, which only the persons know: the figure would be a supposition still. So it
    prices a life that is supposed, and says so wherever that price stands.

    Raises:
        ConfigurationError: names the price, and the ways out.
    """
    together = promises.together
    releases = promises.releases
    if config.privacy.person == "unprotected" or (together.weak != NOTHING and releases.lifetime.counted):
        return
    left = left_alone(releases.unit, releases.unit_prices)
    none = f"{where}: privacy: expected a promise to each person, got none"
    if not releases.lifetime.counted:
        raise ConfigurationError(
            f"{none}: nobody counts a person's {noun(releases.unit)}s ({releases.lifetime.units} together would cost "
            f"{together.which}), {left}. Say in the configuration that it is so: privacy: {{person: unprotected}}"
        )
    cap = releases.lifetime.cap
    first = "lower privacy.epsilon" if cap is None else f"set {cap.setting} to {cap.most} or less"
    raise ConfigurationError(
        f"{none}: {releases.units_in_life} together cost {together.which}, {left}. Either {first}, or say in the "
        f"configuration that it is so: privacy: {{person: unprotected}}"
    )


def _require_as_stated(promise: Guarantee, where: str) -> None:
    if promise.private_as_stated:
        return
    topics = ", ".join(promise.unnoised)
    why = f"content leaves un-noised on {topics}" if topics else f"what is claimed for it does not hold; {promise.cost}"
    raise ConfigurationError(
        f"{where}: release: expected one that is private as stated, got {_name(promise)}, which is {NOT_PRIVATE}: "
        f"{why}; that is for replays of public datasets"
    )


def _name(promise: Guarantee) -> str:
    return promise.mechanism.partition(":")[0]
