"""Computes the statement of a deployment for a data-protection officer, from its configuration only.

Its parts follow the questions of NIST SP 800-226 (Guidelines for Evaluating Differential Privacy Guarantees): the
parameters and the unit, the algorithm, the trust model, security and access, and what is not protected. It also has the
fields of public registries of differentially private deployments. The operator may add facts that only they know (who
they are, the purpose); otherwise the statement says that these were not stated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from hushstream.engine.declare.declaration import System
from hushstream.ops.losses import AcceptedLosses
from hushstream.ops.statement.topics import content_facts, reader_facts, retention_facts
from hushstream.ops.statement.words import UNIT_SUBJECT, how_to_read, told, verdict, worked_example
from hushstream.privacy.amounts import Cost, count_text, delta_text, epsilon_text
from hushstream.privacy.promises.page import groups_of
from hushstream.privacy.promises.promise import Guarantee, Promises
from hushstream.privacy.promises.sentence import Odds, Prices
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import PUBLISHED

NOT_STATED = "not stated by the operator"
_COMPOSITIONS = {
    "basic": "basic composition of epsilon and delta",
    "zcdp": "zero-concentrated differential privacy",
    "renyi": "Renyi differential privacy at one order",
}


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """Facts that only the operator knows."""

    operator: str = NOT_STATED
    contact: str = NOT_STATED
    purpose: str = NOT_STATED
    legal_basis: str = NOT_STATED
    why_this_epsilon: str = NOT_STATED

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> OperatorFacts:
        """From plain values.

        Raises:
            HushstreamError: a name is unknown, or a value is not text.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise HushstreamError(f"statement: expected facts among {', '.join(sorted(known))}, got {unknown[0]!r}")
        wrong = [name for name, value in values.items() if not isinstance(value, str) or not value.strip()]
        if wrong:
            raise HushstreamError(f"statement: expected text for {wrong[0]}, got something else")
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Section:
    """One heading of the statement, and facts under it: (name, text)."""

    title: str
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """The whole statement.

    Attributes:
        deployment: the name of the deployment.
        config_digest: 32 hexadecimal digits.
        sentence: the first line: what the guarantee means for one person.
        odds: what an onlooker may come to believe about a person, as label and probability, for the picture beside it.
        verdict: one line: whether the deployment is private as stated, and at which price.
        marks: warnings, which come next.
        warning: what a reader of the figures of a whole life must know, or None; it is printed at the top, too.
        sections: the sections in reading order.
        registry: the fields of a public registry, by name.
        guarantee: the plain values of three guarantees: that of the releases, that of the lift, and that of both
            together.
        accepted_losses: those of the running deployment in plain values; None if its logs were not read.
    """

    deployment: str
    config_digest: str
    sentence: str
    odds: tuple[Odds, ...]
    verdict: str
    marks: tuple[str, ...]
    warning: str | None
    sections: tuple[Section, ...]
    registry: Mapping[str, str]
    guarantee: Mapping[str, Any]
    accepted_losses: Mapping[str, Any] | None

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "sentence": self.sentence,
            "odds": [one._asdict() for one in self.odds],
            "verdict": self.verdict,
            "deployment": self.deployment,
            "config_digest": self.config_digest,
            "marks": list(self.marks),
            "warning": self.warning,
            "sections": {section.title: dict(section.facts) for section in self.sections},
            "registry": dict(self.registry),
            "guarantee": dict(self.guarantee),
            "accepted_losses": self.accepted_losses,
        }


def statement_of(
    system: System, operator: OperatorFacts | None = None, losses: AcceptedLosses | None = None
) -> Statement:
    """Compute the statement, which the data-protection officer passes on to the users.

    Args:
        system: the deployment.
        operator: facts that only the operator knows.
        losses: the losses that operators have accepted; None if the deployment's logs were not read.
    """
    operator = operator or OperatorFacts()
    promises = system.promises
    # The noise of a replay of a public dataset always comes from a seed.
    promises = replace(promises, releases=promises.releases.under_key(system.public_dataset))
    promise = promises.releases
    return Statement(
        deployment=system.config.deployment,
        config_digest=system.digest.hex(),
        sentence=promises.sentence(),
        odds=promises.odds(),
        verdict=verdict(promises),
        marks=promise.marks,
        warning=promises.warning,
        sections=(
            _summary(system, promises),
            _who(system, operator),
            _parameters(system, promises),
            Section("What that means, by an example", tuple(worked_example(system, promises))),
            Section("Where content of persons stands", tuple(content_facts(system, promises))),
            _algorithm(system, promise),
            *_lift(system, promises.lift),
            *_before(system),
            _trust(system, promise),
            _keys(system),
            Section("Retention and erasure", tuple(retention_facts(system))),
            _not_protected(promise),
            _losses(losses),
            _checks(system),
        ),
        registry=_registry(system, operator, promises),
        guarantee=promises.as_json(),
        accepted_losses=None if losses is None else losses.as_json(),
    )


def _losses(losses: AcceptedLosses | None) -> Section:
    if losses is None:
        lines = ["not read: `hushstream statement --bootstrap HOST:PORT` reads them from the running deployment"]
    else:
        lines = losses.as_lines()
    facts = ((f"accepted loss, {number}", line) for number, line in enumerate(lines, 1))
    return Section("What operators have accepted to lose", tuple(facts))


def _who(system: System, operator: OperatorFacts) -> Section:
    return Section(
        "Who, and what for",
        (
            ("operator", operator.operator),
            ("contact", operator.contact),
            ("purpose", operator.purpose),
            ("legal basis", operator.legal_basis),
            ("deployment", f"{system.config.deployment} (configuration {system.digest.hex()})"),
            ("data", "public" if system.public_dataset else f"personal: {system.words.result.data}"),
            ("what the result is", system.words.result.what),
        ),
    )


def _summary(system: System, promises: Promises) -> Section:
    """One page for readers who read no further: one line for each fact, with details in later sections."""
    promise = promises.releases
    published = [f"{content.what} ({content.topic})" for content in promise.contents if content.zone == PUBLISHED]
    open_facts = len({fact for one in promises.each for fact in one.not_protected})
    conditions = len({fact for one in promises.each for fact in one.conditions})
    counted = f"{promise.units_in_life}{'' if promises.lift is None else ', and the lift'}"
    return Section(
        "In short",
        (
            ("one person in a whole life", f"{told(promises.together, promise.person)} ({counted})"),
            ("one unit by itself", f"{promise.unit}: {told(promise.unit_prices, UNIT_SUBJECT)}"),
            ("what is published", "; ".join(published) or "nothing that was made of persons' data"),
            ("who sees it before the noise", system.words.trust),
            (
                "what it rests on",
                f"{count_text(conditions, 'condition')}, listed below" if conditions else "no further condition",
            ),
            ("what it leaves open", f"{count_text(open_facts, 'fact')}, listed below under what is not protected"),
            ("what an erasure does", system.words.erasure),
            ("how it can be checked", "hushstream verify, budget, audit and topics check, each described below"),
        ),
    )


def _parameters(system: System, promises: Promises) -> Section:
    """The parameters for the person, the unit and the lift; then the limits, and how to read them."""
    groups = {group.key: group for group in groups_of(promises)}
    facts = [(_small(line.name), line.text) for key in ("person", "unit") for line in groups[key].lines]
    if promises.lift is not None:
        lift = f"{promises.lift.unit}: {told(promises.lift.unit_prices, UNIT_SUBJECT)}"
        facts.append(("of that, the lift", lift))
    facts += [(f"budget: {budget.counted}", budget.as_text()) for budget in system.budgets]
    facts += [("strength", promises.releases.computational), ("how to read epsilon", how_to_read(promises))]
    return Section("Parameters and unit of privacy", tuple(facts))


def _small(name: str) -> str:
    return f"{name[:1].lower()}{name[1:]}"


def _algorithm(system: System, promise: Guarantee) -> Section:
    return Section(
        "Mechanism and its implementation",
        (
            ("mechanism", promise.mechanism),
            *_words(promise),
            ("sensitivity", f"{promise.sensitivity}, {promise.norm}"),
            ("arithmetic", "whole numbers: bounded, rounded toward zero, summed with overflow checks, then noised"),
            (
                "noise",
                "drawn from a secret key and the log's random first record; a restart gives the same noise again",
            ),
            ("inaccuracy of the noise, counted in delta", delta_text(promise.residue_units)),
            (
                "composition",
                "every release asks the ledger first and is debited before it is made; once the budget is spent nothing"
                " more is released, and the rest goes on",
            ),
            ("accuracy", "the variance of the noise is published with each release"),
            (
                "bias",
                "who gives few or rare interactions is served less by a private model than others are; compare groups "
                "before relying on it",
            ),
            ("system", system.kind),
        ),
    )


def _words(promise: Guarantee) -> tuple[tuple[str, str], ...]:
    """The meaning of a counter's words, if the deployment has one."""
    if "leaves" not in promise.mechanism:
        return ()
    means = "a leaf is what one release adds to the sums; a node is a sum of leaves that has noise of its own"
    return (("leaves and nodes", means),)


def _lift(system: System, promise: Guarantee | None) -> tuple[Section, ...]:
    """The lift's own guarantee; empty if no lift is released."""
    if promise is None:
        return ()
    over = "of a hold-out and of all others" if system.shadow is None else _IN_SHADOW
    facts = [
        ("what it is", f"noised running counts of what was shown and rewarded, {over}"),
        ("unit of the lift", promise.unit),
        ("which of two it was in the lift", str(promise.replace_one)),
        ("whether it was there at all in the lift", str(promise.cost)),
        ("neighbours in the lift", promise.relation),
        ("mechanism of the lift", promise.mechanism),
        *_words(promise),
        ("sensitivity of the lift", f"{promise.sensitivity}, {promise.norm}"),
        ("adds the lift's noise", _adds_noise(system, promise)),
        *_open_facts(promise),
    ]
    where = "over a hold-out" if system.shadow is None else "in the shadow"
    return (Section(f"The lift {where}, beside it", tuple(facts)),)


def _before(system: System) -> tuple[Section, ...]:
    """What was paid elsewhere for the model with which the deployment began; empty if it began without one."""
    facts = tuple((f"carried over, {number}", fact.text) for number, fact in enumerate(system.before, 1))
    return (Section("What was paid before", facts),) if facts else ()


_IN_SHADOW = "by the item that was answered, where it was shown and where another one was"


def _trust(system: System, promise: Guarantee) -> Section:
    return Section(
        "Who can read raw data",
        (
            ("model of trust", system.words.trust),
            ("adds the noise", _adds_noise(system, promise)),
            *reader_facts(system),
        ),
    )


def _adds_noise(system: System, promise: Guarantee) -> str:
    """The zone that adds the noise, and its workers, if they see what users do."""
    written = {topic.name for topic in system.topics if topic.client == "writes"}
    workers = [role.name for role in system.roles if role.key_zone == promise.zone and written & set(role.inputs)]
    named = f": the operator's {' and '.join(workers)} workers" if workers else ""
    return f"the {promise.zone} zone{named}"


def _keys(system: System) -> Section:
    zones = [role.key_zone for role in system.roles if role.key_zone is not None]
    keyless = [role.name for role in system.roles if role.key_zone is None]
    facts = [
        (f"key of the {zone} zone", "a file or mounted secret that this zone alone may read (mode 600 or refused)")
        for zone in dict.fromkeys(zones)
    ]
    if system.outside:
        facts.append(
            ("key of each user", "on the user's device, made there; the deployment has no key of the edge zone")
        )
    facts += [
        ("without a key", " and ".join((*(f"the {name}" for name in keyless), "whoever reads published topics"))),
        ("whoever holds a zone's key", "can take its noise away again: a key is as sensitive as the data"),
        (
            "end of an epoch",
            "keys are rotated by a one-way ratchet; a retired key is destroyed, and its noise is final",
        ),
    ]
    return Section("Custody of keys", tuple(facts))


def _not_protected(promise: Guarantee) -> Section:
    status = "what is published is still derived from personal data: judge it as noised, not as free of persons"
    return Section("What is not protected", (*_open_facts(promise), ("status of the data", status)))


def _open_facts(promise: Guarantee) -> list[tuple[str, str]]:
    facts = [(f"not protected, {n}", fact) for n, fact in enumerate(promise.not_protected, 1)]
    return facts + [(f"holds only if, {n}", fact) for n, fact in enumerate(promise.conditions, 1)]


def _checks(system: System) -> Section:
    return Section(
        "How it can be checked",
        (
            ("recompute everything published", "hushstream verify (each zone with its own key)"),
            ("what was spent", "hushstream budget"),
            ("attack the noise", "hushstream audit --all"),
            ("who may read what", "hushstream topics check"),
            ("roles", ", ".join(system.role_names)),
        ),
    )


def _registry(system: System, operator: OperatorFacts, promises: Promises) -> dict[str, str]:
    each = promises.each
    pure = all(promise.delta_units == promise.residue_units for promise in each)
    budgets = system.budgets
    together = (
        f"{told(promises.together, promises.releases.person)}{'' if promises.lift is None else ', with the lift'}"
    )
    return {
        "deployment name": system.config.deployment,
        "data curator": operator.operator,
        "intended use": operator.purpose,
        "data product": system.words.result.product,
        "release type": system.words.result.release,
        "model of differential privacy": system.words.trust,
        "verdict": verdict(promises),
        "content that leaves un-noised": ", ".join(promises.releases.unnoised) or "none",
        "flavour": "pure epsilon with a stated residue" if pure else "(epsilon, delta)",
        "privacy unit": _joined(promise.unit for promise in each),
        "neighbouring relation": _joined(promise.relation for promise in each),
        "epsilon": _of_each(promises, lambda cost: epsilon_text(cost.epsilon_micro)),
        "delta": _of_each(promises, lambda cost: delta_text(cost.delta_units)),
        "lifetime": _joined(filter(None, (together, promises.warning))),
        "mechanisms": _joined(promise.mechanism for promise in each),
        "budget": _joined(dict.fromkeys(f"{budget.limit} for {budget.unit}" for budget in budgets)),
        "accounting": f"{_COMPOSITIONS[budgets[0].filter]}, in whole millionths, always rounded up",
        "implementation": "hushstream",
        "justification": operator.why_this_epsilon,
        "contact": operator.contact,
    }


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(texts)


def _of_each(promises: Promises, amount: Callable[[Cost], str]) -> str:
    """The amount of each guarantee, for both questions if there are two; none if content leaves un-noised."""
    if promises.releases.unnoised:
        return "none: content leaves un-noised"
    texts = [_of_both(promise.unit_prices, amount) for promise in promises.each]
    return texts[0] if promises.lift is None else f"for one unit of the releases: {texts[0]}; for the lift: {texts[1]}"


def _of_both(prices: Prices, amount: Callable[[Cost], str]) -> str:
    which = amount(prices.which)
    if prices.took_part is None:
        return which
    return f"{which} ({UNIT_SUBJECT.which}), {amount(prices.took_part)} ({UNIT_SUBJECT.took_part})"
