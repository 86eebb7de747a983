"""What the visitors of the shop like: by country and by age, so that each kind of visitor has one favourite."""

from __future__ import annotations

import random
from dataclasses import dataclass

GOODS = ("Beret", "Novel", "Beer mug", "Clock", "Ski wax", "Wool blanket")
"""What the shop sells, from item 0."""
COUNTRIES = ("fr", "de", "se")
AGES = ("young", "old")

_SELDOM, _LIKED = 0.05, 0.35


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who comes some times."""

    name: str
    country: str
    age: str

    @property
    def context(self) -> dict[str, str]:
        """What the shop knows of a visit."""
        return {"country": self.country, "age": self.age}

    def chance(self, item: int) -> float:
        """With which probability an item is bought when it is shown."""
        of_country = item // len(AGES) == COUNTRIES.index(self.country)
        of_age = item % len(AGES) == AGES.index(self.age)
        return _SELDOM + _LIKED * (of_country + of_age)


def visitors(count: int, draws: random.Random) -> list[Visitor]:
    """So many visitors of all kinds."""
    return [Visitor(f"visitor-{number}", draws.choice(COUNTRIES), draws.choice(AGES)) for number in range(count)]


def mean_chance() -> float:
    """How often an item that is picked blindly is bought."""
    kinds = [Visitor("", country, age) for country in COUNTRIES for age in AGES]
    return sum(kind.chance(item) for kind in kinds for item in range(len(GOODS))) / (len(kinds) * len(GOODS))


BEST_CHANCE = _SELDOM + 2 * _LIKED
"""How often everybody's favourite is bought."""
