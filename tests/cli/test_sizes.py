"""The command that the page on sizing comes from counts every topic of each system, and what its roles hold."""

from __future__ import annotations

from typing import Any

import pytest

SMALL = {
    "p2b": ("--users", "6", "--window-slots", "3", "--codes", "2", "--dimension", "3", "--arms", "3"),
    "colin": ("--users", "4", "--rounds", "4", "--rounds-per-phase", "2", "--rows", "4", "--dimension", "3"),
}
TOPICS = {
    "p2b": {"contexts", "clicks", "decisions", "reports", "journal-shuffler", "crowds", "ledger", "models"},
    "colin": {"contexts", "clicks", "decisions", "rewards", "journal-counter", "releases", "ledger", "models"},
}
ASKED = ("--rate", "1e6", "--people", "1000", "--partitions", "2")
ROLES = {"p2b": ("learner", "shuffler", "aggregator"), "colin": ("learner", "counter", "aggregator")}


@pytest.mark.sweep(keep=["colin"])
@pytest.mark.parametrize("system", ["p2b", "colin"])
def test_every_topic_and_every_role_is_counted(system: str, cli: Any) -> None:
    answer = cli("sizes", "--system", system, *ASKED, *SMALL[system])
    assert answer.code == 0, answer.err
    told, _, needed = answer.out.partition("\n\n")
    (total,) = (line for line in told.splitlines() if line.startswith("all topics: "))
    lines = [line.split() for line in told.splitlines()[2:] if "us of CPU" not in line and line != total]
    counted = {words[0]: (int(words[1]), float(words[2])) for words in lines if not words[0].endswith(":")}
    # No more: a deployment has no topic of what a replay of public data writes in clear.
    assert counted.keys() == TOPICS[system]
    assert all(records > 0 and size > 0 for records, size in counted.values())
    interactions = int(told.split()[1])
    written = sum(records * (size + 10) for records, size in counted.values())
    assert float(total.split()[2]) == pytest.approx(written / interactions, rel=0.02)
    held = {words[0].rstrip(":"): float(words[2]) for words in lines if words[0].endswith(":")}
    assert tuple(held) == ROLES[system]
    assert min(held.values()) > 0
    micros = {line.split(":")[0]: float(line.split()[1]) for line in told.splitlines() if "us of CPU" in line}
    assert tuple(micros) == (*ROLES[system], "auditor")
    # A million a second and a microsecond an interaction make a core.
    cores = {
        line.split(":")[0]: float(line.split()[1].replace(",", "")) for line in needed.splitlines() if "cores" in line
    }
    for role, micro in micros.items():
        assert cores[role] == pytest.approx(micro, abs=0.06)
    learner = next(line for line in needed.splitlines() if line.startswith("learner:"))
    assert "2 partitions are too few: at least " in learner
    memory = next(float(words[-1]) for words in lines if words[0] == "learner:")
    assert float(learner.split("at most ")[1].split()[0]) == pytest.approx(memory * 1000 / 2 / 1e6, abs=0.06)


def test_what_cannot_be_asked_is_refused(refused: Any) -> None:
    told = refused("sizes", "--rate", "0", *SMALL["p2b"])
    assert "expected --rate above 0, --people and --partitions from 1 on" in told


def test_the_help_names_what_the_sample_of_a_system_takes(cli: Any) -> None:
    answer = cli("sizes", "--system", "colin", "--help")
    assert answer.code == 0
    assert "usage: hushstream sizes" in answer.out
    assert {"--rate", "--rounds-per-phase"} <= set(answer.out.split())
