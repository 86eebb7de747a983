"""Common parts of the results of all systems: the guarantee, and the result of `verify`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hushstream.privacy.amounts import delta_text, epsilon_text
from hushstream.privacy.promises.page import fact_lines
from hushstream.privacy.promises.promise import NOT_PRIVATE, REPRODUCIBLE, Guarantee, Promises
from hushstream.privacy.promises.sentence import Odds
from hushstream.replay.report.values import require, whole


@dataclass(frozen=True, slots=True)
class RoleCheck:
    """What `verify` found when it computed a role's published records again.

    Attributes:
        equal: records with the same bytes.
        ties: records that differ in a decision only, between scores that are equal within the stated margin.
        changed: records that differ.
        uncheckable: records whose inputs retention has deleted.
    """

    equal: int
    ties: int = 0
    changed: int = 0
    uncheckable: int = 0

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        for name in ("equal", "ties", "changed", "uncheckable"):
            whole(f"verify.{name}", getattr(self, name))

    def __add__(self, other: RoleCheck) -> RoleCheck:
        """Add the counts of two checks."""
        return RoleCheck(
            self.equal + other.equal,
            self.ties + other.ties,
            self.changed + other.changed,
            self.uncheckable + other.uncheckable,
        )

    @property
    def status(self) -> Literal["equal", "float tie", "changed", "uncheckable"]:
        """The worst finding."""
        if self.changed:
            return "changed"
        if self.uncheckable or not self.equal + self.ties:
            return "uncheckable"
        return "float tie" if self.ties else "equal"


def verify_json(verify: Mapping[str, RoleCheck] | None) -> dict[str, Any] | None:
    """The findings of `verify` for ``results.json``, the worst status first; None where `verify` did not run."""
    return None if verify is None else {role: {"status": one.status, **asdict(one)} for role, one in verify.items()}


@dataclass(frozen=True, slots=True)
class StatedGuarantee:
    """A guarantee as it is shown: its plain values and its text, both from the `Guarantee` object.

    Attributes:
        values: `Guarantee.as_json`.
        lines: `Guarantee.sentence`, its marks, and the facts of its page, one a line.
    """

    values: Mapping[str, Any]
    lines: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse values without a key that every report needs."""
        needed = ("epsilon_micro", "delta_units", "replace_one", "relation", "unit", "lifetime", "deployment")
        verdicts = ("reproducible", "private_as_stated", "public_participation")
        missing = [name for name in (*needed, *verdicts) if name not in self.values]
        require(not missing, "privacy", "the values of a guarantee", f"values without {', '.join(missing)}")
        require(bool(self.lines), "privacy.text", "at least one line", self.lines)

    @classmethod
    def of(cls, guarantee: Guarantee) -> StatedGuarantee:
        """Make the shown form of ``guarantee``."""
        lines = (guarantee.sentence(), *guarantee.marks, *fact_lines(Promises(guarantee)))
        return cls({**guarantee.as_json(), "odds": [list(one) for one in guarantee.odds()]}, lines)

    @property
    def sentence(self) -> str:
        """The guarantee for one person, as a sentence."""
        return self.lines[0]

    @property
    def odds(self) -> list[Odds]:
        """`Guarantee.odds`."""
        return [Odds(*one) for one in self.values.get("odds", ())]

    @property
    def phrase(self) -> str:
        """The guarantee for one person in a few words, to follow a figure of a result."""
        return str(self.values["phrase"])

    @property
    def epsilon_text(self) -> str:
        """Epsilon for one unit, an exact decimal."""
        return epsilon_text(int(self.values["epsilon_micro"]))

    @property
    def delta_text(self) -> str:
        """Delta for one unit, rounded up."""
        return delta_text(int(self.values["delta_units"]))

    @property
    def lifetime_text(self) -> str:
        """The price of all units of one person, for both relations, the larger price first."""
        lifetime = self.values["lifetime"]
        return self._both(lifetime["exchange"], lifetime)

    @property
    def relation_name(self) -> str:
        """The short name of the neighbour relation, for captions; the text gives the full sentence."""
        return str(self.values["relation"]).partition(":")[0]

    @property
    def marks(self) -> tuple[str, ...]:
        """The warnings that every output of a result under this guarantee carries."""
        marks = () if self.values["private_as_stated"] else (NOT_PRIVATE,)
        return (*marks, REPRODUCIBLE) if self.values["reproducible"] else marks

    @property
    def summary(self) -> str:
        """One phrase for captions and tables; it names the lifetime price where this is higher than one unit's."""
        one = self._both(self.values["replace_one"], self.values)
        unit = f"{one}, {self.relation_name}, for {self.values['unit']}"
        lifetime = self.values["lifetime"]
        alike = all(lifetime[name] == self.values[name] for name in ("epsilon_micro", "delta_units"))
        return unit if alike else f"{unit}; lifetime {self.lifetime_text}"

    def _both(self, which: Mapping[str, Any], took_part: Mapping[str, Any]) -> str:
        if self.values["public_participation"]:
            return _price(which)
        return f"{_price(which)} (which of two it was) and {_price(took_part)} (whether it was there)"


def _price(amounts: Mapping[str, Any]) -> str:
    return f"epsilon {epsilon_text(int(amounts['epsilon_micro']))}, delta {delta_text(int(amounts['delta_units']))}"
