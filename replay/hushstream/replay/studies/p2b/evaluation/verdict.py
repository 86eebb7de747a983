"""Writes the verdict of an evaluation: whether a policy beats the logged one, and the cost of privacy."""

from __future__ import annotations

from hushstream.replay.logged.evaluate import FEW_REWARDS, SMALL_SAMPLE
from hushstream.replay.logged.gains import Gain, Gains
from hushstream.replay.report.payoff import reached
from hushstream.replay.report.results import StatedGuarantee
from hushstream.replay.studies.p2b.report.results import WARM_NONPRIVATE, WARM_PRIVATE
from hushstream.replay.studies.p2b.report.wording import policy_name

OF_EXACT = (WARM_NONPRIVATE, "non-private")
"""The policies with which the private start is compared.

They are a start from contributors' exact interactions, or a model of their exact rewards: with declared features no
deployment has such a start.
"""


def verdict(found: Gains, privacy: StatedGuarantee) -> str:
    """Say the reward, guarantee and gain of the private start, then the best policy; or that there are too few rows.

    If the private start was requested but has too few rows, the verdict says so first, because the page is about it.
    """
    if not found.evaluated:
        return _no_verdict(found)
    best, private = found.evaluated[0], _private(found)
    sentences = _unknown(found) if private is None else _of_private(private, found, privacy)
    if best is not private:
        many = (
            f"The best of {len(found.evaluated)} policies is" if len(found.evaluated) > 1 else "The evaluated policy is"
        )
        sentences.append(f"{many} {_named(best.policy)}: {best.value:.4f} a decision, {_against(best, found.logged)}.")
    elif len(found.evaluated) > 1:
        sentences.append(f"The private start is the best of {len(found.evaluated)} policies.")
    return " ".join([*sentences, *_left_out(found)])


def relative_gain(found: Gains) -> str:
    """The private start's gain in percent of the logged reward, or the best policy's if that start was not played.

    Empty where there is no verdict, that start has too few rows, or no reward was logged.
    """
    if not found.evaluated or found.logged <= 0.0 or WARM_PRIVATE in found.left_out:
        return ""
    return f"{100 * (_private(found) or found.evaluated[0]).gain / found.logged:+.0f} %"


def _no_verdict(found: Gains) -> str:
    return (
        f"No verdict: too few of the {found.rows:,} rows show whether another policy is better than the logged "
        f"one. Needed are {SMALL_SAMPLE} effective rows, {FEW_REWARDS} rewarded ones and several users. There "
        f"are: {_too_few(found)}."
    )


def _against(one: Gain, logged: float) -> str:
    share = f" ({_share(abs(one.gain) / logged)})" if logged > 0.0 else ""
    more = "more" if one.gain >= 0.0 else "less"
    return f"{abs(one.gain):.4f}{share} {more} than the logged policy's {logged:.4f}; {_within(one)}"


def _within(one: Gain) -> str:
    low, high = one.interval
    said = "all of it a gain" if one.certain else "all of it a loss" if high < 0.0 else "there may be no gain"
    return f"95 % interval {low:+.4f} to {high:+.4f}, {said}"


def _private(found: Gains) -> Gain | None:
    """The gain of the private start, if it was evaluated."""
    return next((one for one in found.evaluated if one.policy == WARM_PRIVATE), None)


def _unknown(found: Gains) -> list[str]:
    """A sentence if too few rows show what the private start earns; empty where it was not played."""
    if WARM_PRIVATE not in found.left_out:
        return []
    effective, rewarded = found.left_out[WARM_PRIVATE]
    return [
        f"The reward of the private start is not known: of {found.rows:,} rows it has {effective:,.0f} "
        f"effective ones, {rewarded} of them rewarded; needed are {SMALL_SAMPLE} and {FEW_REWARDS}."
    ]


def _of_private(own: Gain, found: Gains, privacy: StatedGuarantee) -> list[str]:
    first = reached(f"The private start, {_named(WARM_PRIVATE)}, earns {own.value:.4f} a decision", privacy)
    said = f"That is {_against(own, found.logged)}"
    if found.kept is None:
        return [first, f"{said}."]
    share, interval = found.kept
    within = f"{_share(interval.low)} to {_share(interval.high)}"
    exact = next(name for name in OF_EXACT if any(one.policy == name for one in found.evaluated))
    kept = f"it keeps {_share(share)} (95 % interval {within}) of the reward of {_named(exact)}"
    return [first, f"{said}; {kept}."]


def _share(share: float) -> str:
    return f"{100 * share:.0f} %"


def _left_out(found: Gains) -> list[str]:
    """A sentence with the names of policies that have too few rows; the table below shows how many."""
    names = ", ".join(_named(name) for name in found.left_out)
    return [f"Too few rows for {names}."] if names else []


def _too_few(found: Gains) -> str:
    return "; ".join(
        f"{_named(name)} {effective:,.0f} effective rows, {rewarded} rewarded"
        for name, (effective, rewarded) in found.left_out.items()
    )


def _named(policy: str) -> str:
    return f"“{policy_name(policy)}”"
