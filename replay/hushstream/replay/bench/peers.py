"""Measures what a team would take instead, in one run: streams, learners and servers, each with what it guarantees.

All figures are events per second of the CPU time of the processes that are named; a package that is not installed has a
row that says how to install it.

*Streams* (`hushstream.replay.bench.baselines`). Contexts and their rewards, one to a record, d=25 and K=25, worked off
a log. Every peer reads records by the same codec and keeps one LinUCB for all users in its memory; it stores no model.
The learner's worker keeps a model for each user, seals and publishes its state, and journals each decision.

*Learners.* One choice and one step of learning for each event, in one thread, without a stream.

*Gateways.* Calls of ``POST /v1/decide`` at a fixed rate, 10 arms and 10 features. The gateway's row counts gateway and
learner; the calls' log is a broker of its own, which no peer has.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from hushstream.learners.linucb import LinUCB, LinUCBModel
from hushstream.replay.bench import gateway
from hushstream.replay.bench.baselines import ARMS, DIMENSION, Policy
from hushstream.replay.bench.load import draw_rewards, make_load
from hushstream.replay.bench.stream import BATCH_ROWS, StreamSizes, open_bench, prepare_deployment
from hushstream.replay.experiments.rows import PeerRow, Progress, cpu_seconds

RATE = "events/CPU s"
OWN = "hushstream"
ONCE = "each context decided once, journaled and recomputed by verify; private"
_LEAST_ONCE = "at-least-once, a repeat may decide otherwise; model lost at an end; not private"
_NOTHING = "none: no log; model lost at an end; not private"


class Peer(NamedTuple):
    """What is compared.

    Attributes:
        name: for people.
        key: by which it is started.
        package: what is installed for it.
        guarantees: what it guarantees as measured.
        hint: what its installation needs beside pip.
        lists_topics: whether it asks for all topics as only Apache Kafka understands it.
    """

    name: str
    key: str
    package: str
    guarantees: str
    hint: str = ""
    lists_topics: bool = False

    @property
    def installed(self) -> bool:
        """Whether its package is, in any version."""
        return any(distributions(name=re.split(r"[=\[]", self.package)[0]))

    def missing(self, kind: str) -> PeerRow:
        """Its row without a figure."""
        why = "not measured here, but with --bootstrap of Apache Kafka"
        return PeerRow(
            f"{kind}: {self.name}",
            None,
            why if self.installed else f"not installed: pip install {self.package}{self.hint}",
            guarantees=self.guarantees,
        )


STREAMS = (
    Peer("bare Faust, topic.send", "faust-topic", "faust-streaming", _LEAST_ONCE),
    Peer("bare Faust, producer.send", "faust-producer", "faust-streaming", _LEAST_ONCE),
    Peer("Quix Streams", "quixstreams", "quixstreams==3.28.1", _LEAST_ONCE, " (lowers pydantic to 2.13)", True),
    Peer("bytewax, with recovery", "bytewax", "bytewax[kafka]==0.21.1", _LEAST_ONCE),
    Peer("aiokafka, commits by hand", "aiokafka", "aiokafka", _LEAST_ONCE),
)
LEARNERS = (
    Peer("Open Bandit Pipeline, LinUCB", "obp", "obp==0.5.7", _NOTHING, " (takes Python below 3.11)"),
    Peer("Vowpal Wabbit, --cb_explore", "vowpal", "vowpalwabbit==9.11.9", _NOTHING),
    Peer("river, LinUCBDisjoint", "river", "river==0.26.1", _NOTHING),
)
SERVERS = (
    Peer("aiohttp, which learns nothing", "aiohttp", "aiohttp", _NOTHING),
    Peer("Vowpal Wabbit behind aiohttp", "vowpal", "vowpalwabbit==9.11.9", _NOTHING),
)


def peer_rows(progress: Progress, rounds: int = 5, bootstrap: str | None = None) -> list[PeerRow]:
    """Measure all that is installed.

    Args:
        progress: called with what is being measured.
        rounds: figures are medians over them.
        bootstrap: ``host:port`` of a running broker for the streams; None: an embedded one. Its topics stay there.

    Raises:
        BenchFailed: a process ended, or made no more progress.
    """
    return [
        *asyncio.run(stream_rows(progress, rounds, StreamSizes(), bootstrap)),
        *learner_rows(progress, rounds),
        *asyncio.run(server_rows(progress, rounds)),
    ]


def _rows(kind: str, peers: Sequence[Peer], own: str, found: Mapping[str, Sequence[float]]) -> Iterator[PeerRow]:
    """The rows of what was measured (by `Peer.key`; what is ours by its name), and of what is not installed."""
    measured = {peer.key: peer for peer in peers}
    for key, rates in found.items():
        name, guarantees = (measured[key].name, measured[key].guarantees) if key in measured else (key, own)
        yield PeerRow(f"{kind}: {name}", median(rates), RATE, guarantees=guarantees)
    yield from (peer.missing(kind) for peer in peers if peer.key not in found)


async def stream_rows(
    progress: Progress, rounds: int, sizes: StreamSizes, bootstrap: str | None = None
) -> list[PeerRow]:
    """Measure the learner's worker, and the streams that are installed.

    Args:
        progress, rounds, bootstrap: see `peer_rows`.
        sizes: how large the runs are.
    """
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="hushstream-peers-") as name:
        folder = Path(name)
        system = prepare_deployment(folder, sizes)
        peers = [peer for peer in STREAMS if peer.installed and (bootstrap or not peer.lists_topics)]
        for number in range(1, rounds + 1):
            async with open_bench(folder / f"round-{number}", system, sizes, bootstrap) as bench:
                forms = {"one event a record": (sizes.event_pairs, 1)}
                forms[f"records of {BATCH_ROWS}"] = sizes.batch_pairs, BATCH_ROWS
                for form, (pairs, rows) in forms.items():
                    progress(f"streams, round {number} of {rounds}: {OWN}, {form}")
                    _, rate = await bench.rates(f"form-{rows}", pairs, rows)
                    found.setdefault(f"{OWN}, {form}", []).append(rate)
                for peer in peers:
                    progress(f"streams, round {number} of {rounds}: {peer.name}")
                    found.setdefault(peer.key, []).append((await bench.baseline(peer.key))[1])
    where = "Apache Kafka" if bootstrap else "embedded broker"
    return list(_rows(f"streams on {where}", STREAMS, ONCE, found))


EVENTS = 5_000


def learner_rows(progress: Progress, rounds: int, events: int = EVENTS) -> list[PeerRow]:
    """Measure the learner's kernel and those of packages, in this thread; see `peer_rows`."""
    load, rewards = make_load(events, 1, DIMENSION, 0), draw_rewards(events, 0)
    plain = load.contexts.astype(np.float64)
    work: dict[str, Callable[[], object]] = {f"{OWN}, LinUCB": partial(_kernel, load.contexts, rewards)}
    for peer in filter(lambda peer: peer.installed, LEARNERS):
        work[peer.key] = partial(_LEARNERS[peer.key], plain, rewards)
    found: dict[str, list[float]] = {}
    for number in range(1, rounds + 1):
        for key, run in work.items():
            progress(f"learners, round {number} of {rounds}: {key}")
            found.setdefault(key, []).append(events / cpu_seconds(run))
    return list(_rows("learners", LEARNERS, "none by itself: the kernel alone", found))


def _kernel(contexts: Any, rewards: Sequence[float]) -> None:
    kernel, state = LinUCB(ARMS, DIMENSION), LinUCBModel.cold(ARMS, DIMENSION).state()
    for context, reward in zip(contexts, rewards, strict=True):
        kernel.learn(state, context, kernel.choose(state, context)[0], reward)


def _obp(contexts: Any, rewards: Sequence[float]) -> None:
    policy = import_module("obp.policy").LinUCB(dim=DIMENSION, n_actions=ARMS, random_state=0)
    for context, reward in zip(contexts[:, None], rewards, strict=True):
        policy.update_params(int(policy.select_action(context)[0]), reward, context)


def _vowpal(contexts: Any, rewards: Sequence[float]) -> None:
    policy = Policy(ARMS, 0)
    for number, (context, reward) in enumerate(zip(contexts.tolist(), rewards, strict=True)):
        policy.decide(str(number), context)
        policy.reward(str(number), reward)


def _river(contexts: Any, rewards: Sequence[float]) -> None:
    policy, arms = import_module("river.bandit").LinUCBDisjoint(alpha=1.0, seed=0), range(ARMS)
    for values, reward in zip(contexts.tolist(), rewards, strict=True):
        context = dict(enumerate(values))
        policy.update(policy.pull(arms, context), context, reward)


_LEARNERS: Mapping[str, Callable[[Any, Sequence[float]], None]] = {"obp": _obp, "vowpal": _vowpal, "river": _river}


async def server_rows(progress: Progress, rounds: int, rate: float = 1_000.0, seconds: float = 10.0) -> list[PeerRow]:
    """Measure the gateway, and the servers that are installed, at a fixed rate; see `peer_rows`."""
    found: dict[str, list[float]] = {}
    own = f"{OWN}, gateway and learner"

    async def add(key: str, servers: gateway.Servers, *kinds: str) -> None:
        row = await gateway.measure(servers, rate, seconds, 0)
        found.setdefault(key, []).append(row.a_cpu_second(*kinds))

    for number in range(1, rounds + 1):
        progress(f"servers, round {number} of {rounds}")
        with tempfile.TemporaryDirectory(prefix="hushstream-peers-") as folder:
            async with gateway.deployed(Path(folder, "deployment")) as servers:
                await add(own, servers, "gateway", "learner")
            for peer in filter(lambda peer: peer.installed, SERVERS):
                async with gateway.baseline(peer.key, Path(folder)) as servers:
                    await add(peer.key, servers, peer.key)
    return list(_rows(f"servers at {rate:g} requests/s", SERVERS, ONCE, found))


def peer_tables(rows: Sequence[PeerRow]) -> dict[str, str]:
    """The Markdown table of each kind of peers: a line a peer, and ours over it."""
    kinds: dict[str, list[PeerRow]] = {}
    for row in rows:
        kinds.setdefault(row.name.partition(": ")[0], []).append(row)
    return {kind: _HEAD + "".join(map(_line, found, [found[0]] * len(found))) for kind, found in kinds.items()}


_HEAD = "| | events/CPU s | the first over it | guarantees |\n|---|---|---|---|\n"


def _line(row: PeerRow, first: PeerRow) -> str:
    name = row.name.partition(": ")[2]
    if row.value is None or first.value is None:
        return f"| {name} | {row.unit} | | {row.guarantees} |\n"
    return f"| {name} | {row.value:,.0f} | {first.value / row.value:.2f} | {row.guarantees} |\n"
