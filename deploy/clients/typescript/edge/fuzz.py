"""Give models, slots and values with errors to the built package and to Python, and compare the answers:
``python deploy/clients/typescript/edge/fuzz.py FOLDER [--cases 100000] [--seed 0]``.

The package must never crash, and must accept nothing that Python refuses. The shuffler must be able to read a slot's
content, a row must have the same bytes as Python's, and a Python device must accept every model that the package
accepts. For ratings the package must make the same slot as Python (factors may differ by one unit of 2^-20, because
they come from a solver), and refuse what Python refuses. Models get errors in their bytes, and in what is signed by
whoever holds the keys.
"""

from __future__ import annotations

import argparse
import base64
import copy
import json
import random
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import golden  # beside this file
import numpy as np
import ratings_golden

from hushstream.engine.devices.envelope import ModelBody, read_model
from hushstream.engine.devices.kept import BadModel
from hushstream.engine.devices.sealing import Recipients
from hushstream.engine.devices.signing import Signer, SigningKeys
from hushstream.features.checks import FeatureError
from hushstream.learners.exploration import LearnerError
from hushstream.privacy.keys import Key
from hushstream.systems.bgt.artefacts import BgtSystem, agreement_of
from hushstream.systems.bgt.configuration import KINDS
from hushstream.systems.bgt.edge.agent import RatingAgent
from hushstream.systems.bgt.edge.device import Agreement as RatingAgreement
from hushstream.systems.bgt.records import BadRatings, Round, first_round, packed_slots, version_of
from hushstream.systems.p2b.edge.device import TRACK, Agreement
from hushstream.systems.p2b.guarantee import layout_of_slots
from hushstream.systems.p2b.models import Statement, arrays_of, content_of
from hushstream.systems.p2b.slots import BadSlot, FeatureLayout, pack_null, unpack_reports

NOW_MS = ratings_golden.NOW_MS
_BATCH = 4000
_ODD = (-1, 0, 1, 2**31, 2**53, 2**63, 1.0, 0.5, 1e308, True, False, None, "", "0", "00", "1", "é", [], {}, "a" * 32)


class World(NamedTuple):
    """The agreement and the keys that sign and vouch; the same for raters, with the rounds that ask for ratings."""

    layout: FeatureLayout
    agreement: Agreement
    text: str
    signing: tuple[Key, Key]
    sealing: tuple[Key, Key]
    raters: BgtSystem
    ratings: RatingAgreement
    rounds: tuple[Round, ...]


class Finding(NamedTuple):
    """A case for which the package gives a wrong answer."""

    case: str
    said: str
    expected: str


def world() -> World:
    """A deployment with keys that follow from seeds."""
    config = golden.config_of({"age": {"kind": "number", "range": [16, 96], "nodes": 3}, **_TAGS}, 3, 2)
    layout = layout_of_slots(config)
    keys = [Key(bytes([number, *range(31)])) for number in range(1, 5)]
    sealing, signing = Recipients.first(keys[0]), SigningKeys.first(keys[2])
    said = golden.agreement(config)
    said["sealing"] = {"public_key": sealing.pinned[:32].hex(), "vouch_key": sealing.pinned[32:].hex()}
    said["signing_key"] = signing.pinned.hex()
    text = json.dumps(said | golden.stamped(said))
    raters = ratings_golden.system_of(ratings_golden.CONFIGS[0])
    rounds = (first_round(raters.config), *ratings_golden.rounds(raters.config))
    ratings = RatingAgreement.read(agreement_of(raters))
    return World(layout, Agreement.read(text), text, (keys[2], keys[3]), (keys[0], keys[1]), raters, ratings, rounds)


_TAGS: dict[str, Any] = {
    "tags": {"kind": "tags", "vocabulary": ["a", "b", "c"], "most": 2},
    "taste": {"kind": "embedding", "dimension": 2},
    "past": {"kind": "histogram", "bins": 2},
    "hour": {"kind": "time_of_day"},
    "day": {"kind": "day_of_week"},
    "bot": {"kind": "boolean"},
    "spend": {"kind": "number", "range": [1, 1000], "scale": "log"},
    "bot-by-day": {"kind": "cross", "of": ["bot", "day"]},
}


def fuzzed(package: Path, cases: int, seed: int) -> tuple[list[Finding], Counter[str]]:
    """The package's wrong answers, and how many verdicts of each kind there were."""
    made, rng = world(), random.Random(seed)
    findings: list[Finding] = []
    counts: Counter[str] = Counter()
    for first in range(0, cases, _BATCH):
        drawn = [rng.choice(_KINDS)(made, rng) for _ in range(min(_BATCH, cases - first))]
        said = _asked(package, made, [case for case, _ in drawn])
        for (case, expected), verdict in zip(drawn, said, strict=True):
            kind = next(iter(json.loads(case)))
            made_of = _BYTES.get(kind) if verdict != "refused" else None
            counts[f"{kind} {made_of or verdict.split()[0]}"] += 1
            # The package may refuse a model that Python accepts, because it accepts only one text of a statement.
            stricter = kind in ("model", "version") and verdict == "refused"
            near = kind == "rated" and _near(verdict, expected, json.loads(case)["round"])
            if verdict != expected and not stricter and not near:
                findings.append(Finding(case, verdict, expected))
    return findings, counts


_BYTES = {"values": "row", "rated": "slot"}
"""What the package makes in cases whose verdict is bytes."""


def _near(said: str, expected: str, number: int) -> bool:
    """Whether two slots of factors differ by at most one unit in every number."""
    if KINDS[number] != "factors" or "refused" in (said, expected) or len(said) != len(expected):
        return False
    one, other = (np.frombuffer(bytes.fromhex(text), "<i4").astype(np.int64) for text in (said, expected))
    return bool((np.abs(one - other) <= 1).all())


def _asked(package: Path, made: World, cases: list[str]) -> list[str]:
    first = {
        "agreement": json.loads(made.text),
        "ratings": json.loads(agreement_of(made.raters)),
        "rounds": [_packed(_version_body(made, number).as_bytes()) for number in range(1, len(made.rounds))],
        "now": NOW_MS,
    }
    given = "\n".join([json.dumps(first), *cases])
    command = ["node", "tests/fuzz.mjs"]
    ran = subprocess.run(command, cwd=package, input=given, capture_output=True, encoding="utf-8", check=False)
    agreed, *said = ran.stdout.splitlines()
    if ran.returncode or agreed != "agreed" or len(said) != len(cases):
        raise SystemExit(f"expected a verdict for each of {len(cases)} cases, got {len(said)}: {ran.stderr[-2000:]}")
    return said


def _slot(made: World, rng: random.Random) -> tuple[str, str]:
    layout, size = made.layout, len(pack_null(made.layout))
    content = bytearray(pack_null(layout))
    if rng.random() < 0.8:
        struct.pack_into("<BHII", content, 1, 1, rng.randrange(4), rng.randrange(4), rng.choice([0, 1, 2**32 - 1]))
        for place in range(layout.places):
            cell, units = rng.randrange(layout.cells + 1), rng.choice([0, 0, rng.randrange(-700, 701)])
            struct.pack_into("<H", content, 12 + 2 * place, cell if rng.random() < 0.3 else cell % layout.cells)
            struct.pack_into("<h", content, 12 + 2 * (layout.places + place), units)
    content = _broken(content, rng) if rng.random() < 0.4 else content
    try:
        found = unpack_reports(layout, [bytes(content)])
    except BadSlot:
        assert len(content) != size
        return json.dumps({"slot": _packed(content)}), "refused"
    fields = (found.arms[0], found.levels[0], found.catalogues[0], *found.cells[0], *found.units[0])
    report = f"report {' '.join(map(str, fields))}"
    return json.dumps({"slot": _packed(content)}), report if found.held[0] else "forged" if found.forged[0] else "null"


def _values(made: World, rng: random.Random) -> tuple[str, str]:
    names = [*made.layout.schema.features, "other"]
    picked = {rng.choice(names): _value(rng) for _ in range(rng.randrange(4))}
    case = json.dumps({"values": picked})
    try:
        return case, made.layout.schema.encode(json.loads(case)["values"]).row.hex()
    except FeatureError:
        return case, "refused"


def _value(rng: random.Random) -> Any:
    plain: tuple[Callable[[], Any], ...] = (
        lambda: rng.choice(
            [None, True, False, "", "a", "b", "z", "mon", "Friday", "7:30", "07:61", "25:00", "x" * 129]
        ),
        lambda: rng.choice([0, 1, 7, 8, -1, 24, 96, 1e300, -1e300, 5e-324, 0.5]),
        lambda: rng.uniform(-10, 1200),
        lambda: rng.randrange(-5, 100),
    )
    if rng.random() < 0.7:
        return rng.choice(plain)()
    return [rng.choice(plain)() for _ in range(rng.choice([0, 1, 2, 2, 2, 3]))]


def _model(made: World, rng: random.Random) -> tuple[str, str]:
    body, now = _body(made, rng), NOW_MS
    case = json.dumps({"model": _packed(body), "now": now})
    try:
        model = read_model(bytes(body))
        made.agreement.require_keys(model, made.agreement.signing, made.agreement.sealing)
        statement = made.agreement.stated(model, now, None)
        arrays = arrays_of(statement, model.content)
        with np.errstate(over="ignore"):
            made.agreement.terms().policy.adopt(TRACK, statement.version, *arrays)
    except (BadModel, LearnerError, ValueError, OverflowError):
        return case, "refused"
    return case, f"taken {statement.version}"


def _body(made: World, rng: random.Random) -> bytearray:
    layout = made.layout
    shape = (layout.arms, layout.cells)
    means = np.full(shape, rng.choice([0.0, 0.1, -1.0]))
    variances = np.full(shape, 0.01)
    if rng.random() < 0.2:
        table = rng.choice([means, variances])
        table[rng.randrange(shape[0]), rng.randrange(shape[1])] = rng.choice(
            [np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0, 1e39, 1e-300, 5e-324]
        )
    content, digest = content_of(means.astype("<f8").tobytes(), variances.astype("<f8").tobytes())
    version = rng.choice([1, 2, 7, 2**40])
    signing, sealing = made.agreement.signing, made.agreement.sealing
    if rng.random() < 0.3:
        signing = signing.followed_by(made.signing[1], rng.choice([1, 5, 2**40]), made.signing)
    if rng.random() < 0.3:
        sealing = sealing.followed_by(made.sealing[1], rng.choice([1, 255, 256, 20000, 2**33]), made.sealing)
    stated = Statement(
        deployment=made.agreement.deployment,
        configuration=made.agreement.configuration.hex(),
        layout=made.agreement.layout.digest.hex(),
        arms=shape[0],
        cells=shape[1],
        version=version,
        issued_ms=NOW_MS - 1,
        expires_ms=NOW_MS + rng.choice([0, 1, -1, 10**9]),
        reward_variance=rng.choice([0.08, 1.0, 1e-7, 1e16]),
        epsilon_micro=rng.choice([1, 1_000_000, 1_000_000, 1_000_001]),
        delta_units="0",
        private_as_stated=True,
        content_sha256=digest,
        content_bytes=len(content),
    )
    said = _odd(json.loads(stated.as_bytes()), rng)
    text = json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
    if rng.random() < 0.1:
        text = rng.choice(
            [text.replace(b",", b", "), b"[]", b"null", b"", b"\xff", text + b" ", b"\xef\xbb\xbf" + text]
        )
    number, signature = Signer(signing, made.signing).sign(version, text)
    number = number if rng.random() < 0.95 else rng.randrange(3)
    body = bytearray(ModelBody(text, number, signature, signing, sealing, content).as_bytes())
    return _broken(body, rng) if rng.random() < 0.3 else body


def _rated(made: World, rng: random.Random) -> tuple[str, str]:
    config = made.raters.config
    count = rng.choice([0, 1, 2, 5, 8, 9, 24])
    items: list[Any] = [rng.randrange(config.items) for _ in range(count)]
    ratings: list[Any] = [rng.choice([1.0, 5.0, 3.0, 4, rng.uniform(1, 5)]) for _ in items]
    if rng.random() < 0.2:
        rng.choice([items, ratings]).append(rng.choice([-1, 24, 0.5, 0.999999, 5.000001, 3, 1e300, -1e300]))
    key, number = rng.randbytes(32), rng.randrange(len(made.rounds))
    case = json.dumps({"rated": items, "ratings": ratings, "key": key.hex(), "round": number})
    digest = made.ratings.configuration
    agent = RatingAgent(config, Key(key), lambda answered: None, 0, made.ratings.features, digest)
    try:
        agent.rate(items, ratings)
    except BadRatings:
        return case, "refused"
    return case, packed_slots(agent.answer(made.rounds[number], digest).slot)[0].hex()


def _version(made: World, rng: random.Random) -> tuple[str, str]:
    body = bytearray(_version_body(made, rng.randrange(len(made.rounds)), rng).as_bytes())
    body = _broken(body, rng) if rng.random() < 0.3 else body
    case = json.dumps({"version": _packed(body), "now": NOW_MS})
    agreement = made.ratings
    try:
        model = read_model(bytes(body))
        agreement.require_keys(model, agreement.signing, agreement.sealing)
        statement = agreement.stated(model, NOW_MS, None)
        _, asked, _ = version_of(statement, model.content, agreement.config)
    except (BadModel, ValueError, OverflowError):
        return case, "refused"
    return case, f"taken {statement.version} {'none' if asked is None else asked.kind}"


def _version_body(made: World, number: int, rng: random.Random | None = None) -> ModelBody:
    """A version that asks for a round; with a source of randomness, its content or its statement gets an error."""
    asked = made.rounds[number]
    if rng is not None and rng.random() < 0.3:
        name = rng.choice(["gains", "top", "biases"])
        owner = asked.model if name == "biases" else asked
        column = getattr(owner, name).copy()
        if len(column):
            numbers = [0, 1, 23, 24, -1] if name == "top" else [0.0, -0.0, -1.0, 1e300, np.nan, np.inf, 5e-324]
            column[rng.randrange(len(column))] = rng.choice(numbers)
        owner = replace(owner, **{name: column})
        asked = replace(asked, model=owner) if name == "biases" else owner
    body = ratings_golden.body_of(made.raters, asked, number)
    if rng is None:
        return body
    said = _odd(json.loads(body.statement), rng)
    if rng.random() < 0.2:
        said["kind"] = rng.choice(["items", "pairs", "factors", "none", "other"])
        said["version"] = rng.randrange(4)
    text = json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
    _, signature = Signer(body.signing, (ratings_golden.SIGNING,)).sign(0, text)
    return body._replace(statement=text, signature=signature)


def _odd(said: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Put something into the signed statement that no aggregator states."""
    if rng.random() < 0.6:
        return said
    said = copy.deepcopy(said)
    name = rng.choice([*said, "more"])
    if rng.random() < 0.15:
        said.pop(name, None)
    else:
        said[name] = rng.choice(_ODD)
    return said


def _broken(content: bytearray, rng: random.Random) -> bytearray:
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        place = rng.randrange(len(content) + 1)
        match rng.randrange(5):
            case 0 | 1 if place < len(content):
                content[place] ^= 1 << rng.randrange(8)
            case 2 if place < len(content):
                content[place] = rng.randrange(256)
            case 3:
                del content[place : place + rng.randrange(9)]
            case _:
                content[place:place] = bytes(rng.randrange(256) for _ in range(rng.randrange(5)))
    return content


_KINDS = (_slot, _slot, _model, _model, _values, _rated, _version)


def _packed(content: bytes | bytearray) -> str:
    return base64.b64encode(content).decode()


def _lines(findings: list[Finding], counts: Counter[str]) -> Iterator[str]:
    for name, count in sorted(counts.items()):
        yield f"{count:>8,}  {name}"
    for one in findings[:5]:
        yield f"expected {one.expected[:200]}, got {one.said[:400]}: {one.case[:2000]}"
    yield f"{len(findings):,} of {counts.total():,} verdicts are not Python's"


def main(arguments: list[str] | None = None) -> int:
    """See the module; returns the exit code."""
    parser = argparse.ArgumentParser(description="Feed what is wrong to the built package and to Python.")
    parser.add_argument("package", type=Path, help="the folder of the built package")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    findings, counts = fuzzed(given.package, given.cases, given.seed)
    print("\n".join(_lines(findings, counts)))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
