"""Computes the statement of a deployment for a data-protection officer, from its configuration only.

Its parts follow the questions of NIST SP 800-226 (Guidelines for Evaluating Differential Privacy Guarantees): the
parameters and the unit, the algorithm, the trust model, security and access, and what is not protected. It also has the
fields of public registries of differentially private deployments. The operator may add facts that only they know (who
they are, the purpose); otherwise the statement says that these were not stated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import ROUND_CEILING, Decimal
from typing import Any

from hushstream.engine.declare.declaration import System, beside_workers, readers, writers
from hushstream.engine.state.published import SLOTS
from hushstream.ops.logs.losses import AcceptedLosses
from hushstream.privacy.amounts import Cost, count_text, delta_text, epsilon_text
from hushstream.privacy.promises.page import groups_of, page_json
from hushstream.privacy.promises.promise import Guarantee, plain
from hushstream.privacy.promises.sentence import (
    NOTHING,
    UNIT,
    Odds,
    Prices,
    even_odds,
    larger_units,
    noun,
    told,
    weakness,
)
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import DAY_MS, PUBLISHED, Topic, common_name

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
        guarantee: its plain values, as `hushstream guarantee --json` has them.
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
            "sentence": self.sentence, "odds": [one._asdict() for one in self.odds], "verdict": self.verdict,
            "deployment": self.deployment, "config_digest": self.config_digest, "marks": list(self.marks),
            "warning": self.warning, "sections": {section.title: dict(section.facts) for section in self.sections},
            "registry": dict(self.registry), "guarantee": dict(self.guarantee),
            "accepted_losses": self.accepted_losses,
        }  # fmt: skip


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
    # The noise of a replay of a public dataset always comes from a seed.
    promise = system.guarantee().under_key(system.public_dataset)
    return Statement(
        deployment=system.config.deployment,
        config_digest=system.digest.hex(),
        sentence=promise.sentence(),
        odds=promise.odds(),
        verdict=verdict(promise),
        marks=promise.marks,
        warning=promise.warning,
        sections=(
            _summary(system, promise),
            _who(system, operator),
            _parameters(system, promise),
            Section("What that means, by an example", tuple(_worked_example(system, promise))),
            Section("Where content of persons stands", tuple(_content_facts(system, promise))),
            _algorithm(system, promise),
            *_lift(system, promise.lift),
            *_before(system),
            _trust(system, promise),
            _keys(system),
            Section("Retention and erasure", tuple(_retention_facts(system))),
            _not_protected(promise),
            _losses(losses),
            _checks(system),
        ),
        registry=_registry(system, operator, promise),
        guarantee=page_json(promise),
        accepted_losses=None if losses is None else plain(losses),
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


def _summary(system: System, promise: Guarantee) -> Section:
    """One page for readers who read no further: one line for each fact, with details in later sections."""
    published = [f"{content.what} ({content.topic})" for content in promise.contents if content.zone == PUBLISHED]
    open_facts = len({fact for one in promise.each for fact in one.not_protected})
    apart = "" if promise.lift is None else ", those of the lift in its section"
    conditions = len({fact for one in promise.each for fact in one.conditions})
    return Section(
        "In short",
        (
            ("one person in a whole life", f"{told(promise.together, promise.person)} ({promise.units_in_life})"),
            ("one unit by itself", f"{promise.unit}, {told(promise.unit_prices, UNIT)}"),
            ("what is published", "; ".join(published) or "nothing that was made of persons' data"),
            ("who sees it before the noise", system.words.trust),
            (
                "what it rests on",
                f"{count_text(conditions, 'condition')}, listed below" if conditions else "no further condition",
            ),
            (
                "what it leaves open",
                f"{count_text(open_facts, 'fact')}, listed below as not protected{apart}",
            ),
            ("what an erasure does", system.words.erasure),
            ("how it can be checked", "hushstream verify, budget, audit and topics check, each described below"),
        ),
    )


def _parameters(system: System, promise: Guarantee) -> Section:
    """The parameters for the person, the unit and the lift; then the limits, and how to read them."""
    groups = {group.key: group for group in groups_of(promise)}
    lines = (line for key in ("person", "unit") for line in groups[key].lines)
    facts = [(f"{line.name[:1].lower()}{line.name[1:]}", line.text) for line in lines]
    if promise.lift is not None:
        lift = f"{promise.lift.unit}, {told(promise.lift.unit_prices, UNIT)}"
        facts.append(("of that, the lift", lift))
    facts += [(f"budget: {budget.counted}", budget.as_text()) for budget in system.budgets]
    return Section("Parameters and unit of privacy", (*facts, ("strength", promise.computational)))


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
            ("inaccuracy of the noise, counted in delta", delta_text(promise.truncation_units)),
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
    facts = [
        ("what it is", "noised running counts of rewards and of what is missing to them, by what was shown"),
        ("unit of the lift", promise.unit),
        ("replace-one in the lift", str(promise.replace_one)),
        ("zero-out in the lift", str(promise.cost)),
        ("neighbours in the lift", promise.relation),
        ("mechanism of the lift", promise.mechanism),
        *_words(promise),
        ("sensitivity of the lift", f"{promise.sensitivity}, {promise.norm}"),
        ("adds the lift's noise", _adds_noise(system, promise)),
        *_open_facts(promise),
    ]
    return (Section("The lift, beside it", tuple(facts)),)


def _before(system: System) -> tuple[Section, ...]:
    """What was paid elsewhere for the model with which the deployment began; empty if it began without one."""
    facts = tuple((f"carried over, {number}", fact.text) for number, fact in enumerate(system.before, 1))
    return (Section("What was charged before", facts),) if facts else ()


def _trust(system: System, promise: Guarantee) -> Section:
    return Section(
        "Who can read raw data",
        (
            ("model of trust", system.words.trust),
            ("adds the noise", _adds_noise(system, promise)),
            *_reader_facts(system),
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
    if system.device_service is not None:
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


def _registry(system: System, operator: OperatorFacts, promise: Guarantee) -> dict[str, str]:
    each = promise.each
    pure = all(one.delta_units == one.truncation_units for one in each)
    budgets = system.budgets
    together = f"{told(promise.together, promise.person)}{'' if promise.lift is None else ', with the lift'}"
    return {
        "deployment name": system.config.deployment, "data curator": operator.operator,
        "intended use": operator.purpose, "data product": system.words.result.product,
        "release type": system.words.result.release, "model of differential privacy": system.words.trust,
        "verdict": verdict(promise), "content that leaves un-noised": ", ".join(promise.unnoised) or "none",
        "content held to be public": ", ".join(promise.held_public) or "none",
        "flavour": "pure epsilon with a stated truncation error" if pure else "(epsilon, delta)",
        "privacy unit": _joined(one.unit for one in each),
        "neighbouring relation": _joined(one.relation for one in each),
        "epsilon": _of_each(promise, lambda cost: epsilon_text(cost.epsilon_micro)),
        "delta": _of_each(promise, lambda cost: delta_text(cost.delta_units)),
        "lifetime": _joined(filter(None, (together, promise.warning))),
        "mechanisms": _joined(one.mechanism for one in each),
        "budget": _joined(dict.fromkeys(f"{budget.limit} for {budget.unit}" for budget in budgets)),
        "accounting": f"{_COMPOSITIONS[budgets[0].filter]}, in whole millionths (delta: 2^-80), always rounded up",
        "implementation": "hushstream", "justification": operator.why_this_epsilon, "contact": operator.contact,
    }  # fmt: skip


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(texts)


def _of_each(promise: Guarantee, amount: Callable[[Cost], str]) -> str:
    """The amount of each guarantee, for both questions if there are two; none if content leaves un-noised."""
    if promise.unnoised:
        return "none: content leaves un-noised"
    texts = [_of_both(one.unit_prices, amount) for one in promise.each]
    return texts[0] if promise.lift is None else f"for one unit of the releases: {texts[0]}; for the lift: {texts[1]}"


def _of_both(prices: Prices, amount: Callable[[Cost], str]) -> str:
    which = amount(prices.which)
    if prices.zero_out is None:
        return which
    return f"{which} ({UNIT.which}), {amount(prices.zero_out)} ({UNIT.zero_out})"


_Fact = tuple[str, str]
_WHOSE = "each party's"


def _content_facts(system: System, promise: Guarantee) -> list[_Fact]:
    """One fact for each topic with content of persons, and its form; one fact for all other topics."""
    contents = promise.contents
    facts = []
    for content in contents:
        leaves = "; LEAVES UN-NOISED: no figure of this statement speaks of it" if content.leaves_unnoised else ""
        spec = next(spec for spec in system.topics if common_name(spec.name) == content.topic)
        whose = f"{_WHOSE} own " if spec.party and spec.zone != PUBLISHED else ""
        readable = f"{whose}{content.zone} zone{leaves}; {_kept(spec)}"
        facts.append((f"{content.topic}, {content.form}: {content.what}", readable))
    states = [topic for topic in system.topics if topic.holds_state]
    facts += [
        (
            f"{topic.name}, sealed: what workers of the role hold in memory",
            f"{topic.zone} zone, {_sealed_under(topic, system)}; {_kept(topic)}",
        )
        for topic in states
    ]
    held = {content.topic for content in contents}
    others = [spec.name for spec in system.topics if not spec.holds_state and common_name(spec.name) not in held]
    reason = "no content of persons: privacy costs, positions, keyed digests and reasons of refusal"
    return [*facts, (f"on {', '.join(others)}", reason)]


def _reader_facts(system: System) -> list[_Fact]:
    """Who may read and write the topics of the private zones, and which topics are published."""
    private = [topic for topic in system.topics if topic.zone in {role.key_zone for role in system.roles}]
    facts = [
        (
            f"topic {topic.name}",
            f"readable by {_names(system, topic, readers(topic, system.roles), 'Read')}; "
            f"written by {_names(system, topic, writers(topic, system.roles), 'Write')}",
        )
        for topic in private
    ]
    published = ", ".join(topic.name for topic in system.topics if topic.zone == PUBLISHED)
    return [*facts, ("published topics", published)]


def _retention_facts(system: System) -> list[_Fact]:
    """How long each topic is kept, and what an erasure does."""
    facts = [(f"topic {spec.name}", f"{_kept(spec)}; zone: {spec.zone}") for spec in system.topics]
    return [
        *facts,
        ("erasure of a user", system.words.erasure),
        ("another retention", "set on the broker is reported by hushstream topics check"),
    ]


def _kept(spec: Topic) -> str:
    """How long a topic keeps its records."""
    if spec.replaced_ms is not None:
        days = 1 + SLOTS + spec.replaced_ms // DAY_MS
        return (
            f"the newest {SLOTS} are kept; replaced at least daily while a worker runs, and gone within "
            f"{count_text(days, 'day')}"
        )
    if spec.retention_ms is None:
        return "kept for the life of the deployment"
    return f"deleted after {count_text(spec.retention_ms // DAY_MS, 'day')}"


def _sealed_under(topic: Topic, system: System) -> str:
    (role,) = (role for role in system.roles if role.state.name == topic.name)
    if role.key_zone is None:
        return "public values alone, closed with a key that anybody can make"
    return f"under a key of the {role.key_zone} zone"


def _names(system: System, topic: Topic, named: Sequence[str], right: str) -> str:
    """Who reads or writes a topic; first the gateway for users' devices."""
    through = system.device_service is not None and system.devices.get(topic.name) == right
    gateway = ["the gateway for users' devices"] if through else []
    told = [name for name in named if name in system.role_names or name in beside_workers(system)]
    return ", ".join([*gateway, *told])


def verdict(promise: Guarantee) -> str:
    """Say in one line what is guaranteed: first for one person, then for one unit; or that nothing is."""
    if promise.unnoised:
        return f"Not private as stated: content of persons leaves un-noised on {', '.join(promise.unnoised)}"
    if promise.tainted:
        return f"Not private as stated: it is derived from {', '.join(promise.tainted)}, which is not private"
    if not promise.private_as_stated:
        return f"Not private as stated: the claim that is reproduced does not hold; true privacy cost {promise.cost}"
    if promise.reproducible:
        return "Not private: the noise comes from a seed, and whoever knows it can take the noise off"
    unit = f"{promise.unit}, {told(promise.unit_prices, UNIT)}"
    if promise.warning is None and promise.person.assumed:
        counted = noun(promise.unit)
        return f"Private as stated for each {counted}, not for one person, whose {counted}s nobody counts: {unit}"
    if promise.warning is None:
        weakly = ", but weakly" if promise.together.mark else ""
        return f"Private as stated for one person{weakly}: {told(promise.together, promise.person)}; {unit}"
    warning, zero_out = f"{promise.warning[:1].upper()}{promise.warning[1:]}", promise.together.zero_out
    if promise.unit_prices.weak is None:
        return f"{warning}; private as stated for single units alone: {unit}"
    if zero_out is not None and weakness(zero_out) is None:
        return f"{warning}; private as stated under zero-out alone: {told(promise.together, promise.person)}"
    return f"Not private: {promise.warning}"


def _worked_example(system: System, promise: Guarantee) -> list[tuple[str, str]]:
    """Show by an example what an onlooker may learn about a person, starting from even odds."""
    fact = system.words.example
    if promise.unnoised:
        told_there = f"whoever reads {', '.join(promise.unnoised)} reads it there: no figure bounds what they learn"
        return [("example", f"an observer asks whether {fact}: {told_there}")]
    one, life = promise.unit_prices, promise.together
    lines = [
        (
            "example",
            f"an observer assigns probability 50 % to this: {fact}; and 50 % to something else in its place. They read "
            f"everything that is ever published and know everything about everybody else. {_after(one.which)}",
        )
    ]
    if one.zero_out is not None:
        lines.append(("the same, had there been nothing in its place (zero-out)", _after(one.zero_out)))
    data = "data" if life.zero_out is not None else f"{noun(promise.unit)}s"
    given = f", if there are no more than {promise.person.assumed}" if promise.person.assumed else ""
    what = (
        f"an observer assigns 50 % to each of two things that all of Ann's {data} may be{given}. {_after(life.which)}"
    )
    lines.append(("the same for one person's whole life", what))
    if life.zero_out is not None:
        asked = f"an observer assigns 50 % to this: what Ann gave held something{given}; and 50 % to the contrary"
        lines.append(("and under zero-out", f"{asked}. {_after(life.zero_out)}"))
    lines.append(("public", f"{promise.person.public}: whoever knows all others can tell it for certain"))
    return lines


def _after(cost: Cost) -> str:
    """Say what even odds become under this bound, and the chance of more."""
    if weakness(cost) == NOTHING:
        return "Afterwards they may know for certain: nothing is guaranteed."
    high = (100 * Decimal(even_odds(cost))).quantize(Decimal("0.1"), ROUND_CEILING)
    each = delta_text(larger_units(cost))
    beside = f" (more, or less, each with a chance of at most {each})" if cost.delta_units else ""
    return f"Afterwards they think it at most {high} % and at least {100 - high} % likely{beside}."
