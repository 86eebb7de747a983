"""Checks of a live deployment: which releases are refused, and which ones need the operator's word."""

from __future__ import annotations

from hushstream.engine.system import DeploymentValues
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.promises.promise import NOT_PRIVATE, Guarantee, Promises
from hushstream.privacy.promises.sentence import NOTHING, left_alone, noun


def require_private(promises: Promises, where: str) -> None:
    """Refuse a release that is not private as stated, and one with delta 1, which protects no unit.

    Args:
        promises: what the deployment's releases promise.
        where: name of the configuration or deployment in errors.

    Raises:
        ConfigurationError: names the mechanism, and the topics with content without noise, or the price.
    """
    for promise in promises.each:
        _require_as_stated(promise, where)
        if promise.unit_prices.weak == NOTHING:
            raise ConfigurationError(
                f"{where}: release: expected one that promises a unit something, got {_name(promise)}: {promise.unit} "
                f"pays {promise.cost} ({promise.replace_one} for one content against another), which promises nothing; "
                f"lower {'holdout' if promise is promises.lift else 'privacy'}.epsilon"
            )


def require_person_promised(config: DeploymentValues, promises: Promises, where: str) -> None:
    """Refuse a deployment without a promise to a whole person, unless its configuration states this.

    A supposed number of units per person, such as pdap's ``units_per_person``, is no promise to a person, because
    nothing enforces it. A person with more units is promised less, and a promise to each person is the worst over all
    persons. To enforce the number, a learner would have to count each user's outcomes for life: in its state, and also
    after erasures and in new journals. Besides, a person has an account with each vendor, and learners of different
    vendors share no key on purpose, so nobody could add up these counts. A cap for each vendor would bound a person
    with v accounts by v times the cap, and only the person knows v. So the number gives the price of a supposed life,
    and every page that shows this price says so.

    Raises:
        ConfigurationError: names the price, and what the operator can do.
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
            f"{together.which}), {left}. State this in the configuration: privacy: {{person: unprotected}}"
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
