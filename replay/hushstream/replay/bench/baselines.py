"""The baselines of benchmarks, each in a process of its own, which does nothing else.

    python -m hushstream.replay.bench.baselines vowpal PORT ARMS
    python -m hushstream.replay.bench.baselines faust BOOTSTRAP SOURCE TARGET DATADIR

*Of the gateway.* Vowpal Wabbit behind aiohttp in one process, as a team may write it in a day. It answers the same call
as a gateway, ``POST /v1/decide``, with the same number of arms and features, and learns from ``POST /v1/reward``. It
has no log, no durability and no privacy, and forgets everything when it ends. It needs the package vowpalwabbit.

*Of streams.* A bare Faust agent that forwards every record, with the settings that make Faust fast (uvloop, a linger,
no web server, no sensor).
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from aiohttp import web

PACKAGE = "vowpalwabbit==9.11.9"
EXPLORED = 0.05


def is_installed() -> bool:
    """Whether the package is installed."""
    return find_spec("vowpalwabbit") is not None


class Policy:
    """An epsilon-greedy policy by Vowpal Wabbit's doubly robust learner of contextual bandits."""

    def __init__(self, arms: int, seed: int) -> None:
        """Make an untrained policy over ``arms`` arms."""
        options = f"--cb_explore {arms} --cb_type dr --epsilon {EXPLORED} --quiet --random_seed {seed}"
        self._workspace: Any = import_module("vowpalwabbit").Workspace(options)
        self._draws = random.Random(seed)
        self._asked: dict[str, tuple[str, int, float]] = {}

    def decide(self, event_id: str, context: list[float]) -> tuple[int, float]:
        """The arm for a context, and the probability with which it was drawn."""
        features = " ".join(f"{place}:{value:.6g}" for place, value in enumerate(context))
        chances = self._workspace.predict(f"| {features}")
        (arm,) = self._draws.choices(range(len(chances)), chances)
        self._asked[event_id] = (features, arm, chances[arm])
        return arm, chances[arm]

    def reward(self, event_id: str, reward: float) -> None:
        """Learn from a decision's reward; Vowpal Wabbit numbers arms from 1, and learns costs."""
        features, arm, chance = self._asked.pop(event_id)
        self._workspace.learn(f"{arm + 1}:{-reward}:{chance} | {features}")


def application(policy: Policy) -> web.Application:
    """The web application with both calls of a policy."""

    async def decide(request: web.Request) -> web.Response:
        asked = await request.json()
        arm, chance = policy.decide(asked["event_id"], asked["context"])
        answer = {"event_id": asked["event_id"], "item": arm, "propensity": chance, "logged": True}
        return web.json_response(answer)

    async def reward(request: web.Request) -> web.Response:
        body = await request.json()
        policy.reward(body["event_id"], body["reward"])
        return web.json_response({"logged": True})

    made = web.Application()
    made.add_routes([web.post("/v1/decide", decide), web.post("/v1/reward", reward)])
    return made


def forwarding(bootstrap: str, source: str, target: str, datadir: str) -> Any:
    """Make an app of Faust that copies partition 0 of one topic to another."""
    import faust

    app = faust.App(
        f"passthrough-{source}",
        broker=f"kafka://{bootstrap}",
        datadir=datadir,
        store="memory://",
        consumer_auto_offset_reset="earliest",
        broker_commit_interval=0.5,
        producer_linger=0.02,
        stream_wait_empty=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_enabled=False,
    )
    topic = app.topic(source, key_serializer="raw", value_serializer="raw", value_type=bytes)

    async def forward(stream: AsyncIterable[bytes]) -> None:
        send = app.producer.send
        async for value in stream:
            await send(target, None, value, 0, None, None)

    app.agent(topic)(forward)
    return app


def main(name: str, *given: str) -> None:
    """Serve or forward on loopback until the process is stopped."""
    if name == "vowpal":
        port, arms = map(int, given)
        web.run_app(application(Policy(arms, 1)), host="127.0.0.1", port=port, print=None, access_log=None)
        return
    import faust
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    app = forwarding(*given)
    app.finalize()
    faust.Worker(app, loglevel="info", override_logging=False).execute_from_commandline()


if __name__ == "__main__":
    main(*sys.argv[1:])
