"""The toy that answers and draws noise is sound, and the contract suite tells each mistake that is planted in it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from noise_drive import NoiseDrive

from hushstream.ops.check.verify import verify
from hushstream.ops.log_copy import LogCopy
from hushstream.replay.runners.direct import MemoryLog
from hushstream.schemas import codec
from machine_drive import Rig
from offered import RRARM
from recordings import KEYS, VARIANTS, Recording, Variant, recorded

(TOY,) = (variant for variant in VARIANTS if variant.kind == "rrarm")


@pytest.fixture
def played() -> Iterator[Recording]:
    with TOY.registered():
        yield recorded(TOY)


def read(played: Recording, topic: str) -> list[dict[str, Any]]:
    found = [codec.decode(record.value) for record in played.records[topic, 0]]
    return [fields for name, fields in found if name != "Genesis"]


def test_a_response_leaves_for_each_reward_that_counts_and_each_is_charged(played):
    reports, answers = read(played, "reports"), read(played, "answers")
    assert len(reports) == len(read(played, "ledger")) == sum(len(one["debits"]) for one in answers) == 24
    rewards = Counter(fields["reward"] for name, fields in _asked(played) if name == "RrClick")
    # At epsilon 2 a response is a lie with a chance of 12 %: all 24 are true with a chance below 5 %, under these keys
    # some are not.
    assert Counter(report["response"] for report in reports) != rewards


def _asked(played: Recording) -> Iterator[tuple[str, dict[str, Any]]]:
    return (codec.decode(record.value) for record in played.records["asks", 0] if record.value != b"no record")


def test_what_it_published_follows_from_its_logs(played):
    log = MemoryLog()
    for (topic, partition), records in played.records.items():
        log.load(topic, partition, list(records))
    assert verify(LogCopy.of(log), played.system, KEYS).ok


# Mistakes, and how the contract suite names them.


class Mistake(NamedTuple):
    """What is planted in the learner, and what the suite says of it."""

    name: str
    change: tuple[str, str]
    told: str


DRAWS = "batch.release(partial(self._draw, batch, name, asked.arm, reward), self.charge)"
DRAWS_FIRST = """where = (self.releases.nonce, self.releases.epoch.number, self.partition, self.responses)
        stream = KeyedStream(self.key, self.system.address(*where, name))
        self.system.response.draw(stream, np.array([reward], np.int64))
        """
TAKES = "    def take(self, batch: Batch) -> Mapping[str, Any]:"
SENDS_FIRST = """    def fold(self, slices: Any) -> Any:
        (step,) = super().fold(slices)
        return [type(step)(None, step.releases), type(step)(step.journal, (), step.dead_letters, step.counts)]

"""
CONTENT = "name, bytes([reward]), arm.to_bytes(4)"

MISTAKES = (
    Mistake(
        "no-epoch",
        ("noise.nonce, noise.epoch.number,", "self.chain.genesis_nonce, 0,"),
        "an epoch draws noise of the epoch before again",
    ),
    Mistake(
        "no-content",
        (CONTENT, "name, arm.to_bytes(4)"),
        "its noise does not depend on the content RrClick.reward",
    ),
    Mistake(
        "no-ids",
        (CONTENT, "bytes([reward]), arm.to_bytes(4)"),
        "its noise does not depend on the ids of what it covers",
    ),
    Mistake(
        "draw-before-charge",
        (DRAWS, DRAWS_FIRST + DRAWS),
        "it draws noise outside of Batch.release, before its price is charged",
    ),
    Mistake(
        "release-before-journal",
        (TAKES, SENDS_FIRST + TAKES),
        "it releases what no journal record before it holds",
    ),
)


def test_the_toy_is_sound(played):
    ((role, home),) = played.homes()
    assert NoiseDrive(Rig(played, role, home)).flaws() == []


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_the_contract_suite_tells_each_mistake_that_is_planted_in_it(mistake, tmp_path):
    variant = holed(mistake, tmp_path)
    with variant.registered():
        played = recorded(variant)
        ((role, home),) = played.homes()
        assert NoiseDrive(Rig(played, role, home)).flaws()[0] == mistake.told


def holed(mistake: Mistake, folder: Path) -> Variant:
    """The toy with a mistake in its learner."""
    package = folder / "package"
    shutil.copytree(RRARM, package)
    learner, (sound, planted) = package / "hushstream_rrarm" / "learner.py", mistake.change
    source = learner.read_text("utf-8")
    assert source.count(sound) == 1, f"{mistake.name}: expected {sound!r} once in the toy"
    learner.write_text(source.replace(sound, planted), "utf-8")
    return TOY._replace(name=f"rrarm-{mistake.name}", package=package)
