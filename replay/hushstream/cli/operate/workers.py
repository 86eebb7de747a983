"""Commands that run for long (a worker of one role, the embedded broker), and the command that measures their sizes."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hushstream.agents import defaults
from hushstream.cli.options import (
    GATEWAY,
    STATE,
    Bootstrap,
    DeploymentFolder,
    KeyFolder,
    KeySeed,
    Prefix,
    SecurityFile,
    Served,
    key_source,
    one_of,
    options_of,
    prefix_of,
    served,
    whereabouts,
    with_options,
    worker_names,
)
from hushstream.ops.access import DEVICES
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import of_party

if TYPE_CHECKING:
    from hushstream.agents.security import Security
    from hushstream.engine.declare.declaration import System


_OF_GATEWAY = {"role", "deployment", "bootstrap", "prefix", "security", "gateway", "log_level", *options_of(served)}
"""The options that a gateway accepts."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(worker)
    given_on = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(add_help_option=False, context_settings=given_on)(broker)


@with_options(metrics=served)
def worker(
    context: typer.Context,
    role: Annotated[
        str,
        typer.Argument(
            callback=one_of(worker_names),
            help="Which role of the deployment this process runs; gateway for its applications' calls over HTTP.",
        ),
    ],
    deployment: DeploymentFolder,
    metrics: Served,
    bootstrap: Bootstrap = "127.0.0.1:9092",
    keys: KeyFolder = None,
    seed: KeySeed = None,
    prefix: Prefix = None,
    security: SecurityFile = None,
    state: Annotated[Path | None, typer.Option(help="Folder for snapshots (default: DEPLOYMENT/state/ROLE).")] = None,
    release_marks: Annotated[
        Path | None, typer.Option(help="Folder for release marks; best not backed up with the state.")
    ] = None,
    accept_loss: Annotated[
        list[str] | None,
        typer.Option(
            envvar="HUSHSTREAM_ACCEPT_LOSS", help="Accept the loss that a refusal names by this word; repeatable."
        ),
    ] = None,
    group: Annotated[str | None, typer.Option(help="Consumer group (default: NAME.ROLE).")] = None,
    session_timeout: Annotated[
        float, typer.Option(min=0.1, help="Group session timeout in seconds.")
    ] = defaults.SESSION_TIMEOUT_SECONDS,
    connect_timeout: Annotated[
        float, typer.Option(min=0.1, help="Give up if no broker answers for so many seconds.")
    ] = defaults.CONNECT_TIMEOUT_SECONDS,
    join_timeout: Annotated[
        float, typer.Option(min=0.1, help="Give up if no partition is assigned for so many seconds.")
    ] = defaults.JOIN_TIMEOUT_SECONDS,
    snapshot_interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds between snapshots.")
    ] = defaults.SNAPSHOT_INTERVAL_SECONDS,
    state_rate: Annotated[
        int,
        typer.Option(min=1024, help="Bytes a second, on average, that publishing the state of one partition may take."),
    ] = defaults.STATE_BYTES_PER_SECOND,
    gather: Annotated[
        float, typer.Option(min=0, help="Longest wait, in ms, for more events to share a journal record; 0 for none.")
    ] = defaults.JOURNAL_LINGER_MILLISECONDS,
    resident_users: Annotated[
        int, typer.Option(min=2, help="A learner's users in memory, about, per partition; the others lie on disk.")
    ] = defaults.RESIDENT_USERS,
    gateway: Annotated[
        Path | None, typer.Option(help="YAML file with a gateway's settings: where it listens, tokens, limits.")
    ] = None,
    schedule: Annotated[Literal["live", "fixed"], typer.Option(help="How batches are cut.")] = "live",
    log_level: Annotated[
        Literal["error", "warning", "info", "debug"], typer.Option(help="How much the worker logs.")
    ] = "info",
) -> None:
    """Run one role, or a gateway, until SIGTERM."""
    # One thread: with several, the order of float sums would vary, and replay would not give the same bits.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from hushstream.agents.recovery.losses import FORM, is_word
    from hushstream.agents.security import read_security
    from hushstream.agents.settings import WorkerSettings, group_of
    from hushstream.agents.worker.deployment import load
    from hushstream.agents.worker.roles import require_live, role_work
    from hushstream.agents.worker.worker import run_worker
    from hushstream.engine.declare.declaration import role_of

    given = tuple(accept_loss or ())
    for word in given:
        if not is_word(word):
            raise typer.BadParameter(f"expected {FORM}, got {word!r}", param_hint="'--accept-loss'")
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    system = load(deployment)
    if role == GATEWAY:
        _require_options_of_gateway(context)
        place = whereabouts(deployment, bootstrap, prefix)
        prefix = prefix_of(prefix, system.config.deployment)
        raise typer.Exit(_run_gateway(system, bootstrap, prefix, read_security(security), gateway, metrics, place))
    if gateway is not None:
        raise HushstreamError(f"--gateway: expected it only with the role {GATEWAY}, got {role}")
    role_of(system, role)
    if seed is not None and not system.public_dataset:
        raise HushstreamError("--seed: expected the folder of a replay of a public dataset; live data needs key files")
    source = key_source(deployment, keys, seed)
    require_live(system, source)
    name = system.config.deployment
    settings = WorkerSettings(
        bootstrap=bootstrap,
        role=role,
        group=group_of(name, role) if group is None else group,
        deployment=name,
        topic_prefix=prefix_of(prefix, name),
        datadir=deployment / STATE / role if state is None else state,
        release_marks=release_marks,
        place=whereabouts(deployment, bootstrap, prefix),
        account=whereabouts(security=security),
        accept_loss=given,
        security=read_security(security),
        **metrics._asdict(),
        session_timeout_seconds=session_timeout,
        heartbeat_seconds=min(defaults.HEARTBEAT_SECONDS, session_timeout / 3),
        connect_timeout_seconds=connect_timeout,
        join_timeout_seconds=join_timeout,
        snapshot_interval_seconds=snapshot_interval,
        state_bytes_per_second=state_rate,
        journal_linger_milliseconds=gather,
        resident_users=resident_users,
        schedule=schedule,
    )
    work = role_work(role, system, source)
    raise typer.Exit(run_worker(settings, work.make_machine, work.topics, reporting=work.reporting))


def _require_options_of_gateway(context: typer.Context) -> None:
    """Refuse options that only a worker with a state uses: a gateway would ignore them."""
    for name in context.params:
        given = context.get_parameter_source(name)
        if given is not None and given.name == "COMMANDLINE" and name not in _OF_GATEWAY:
            raise HushstreamError(
                f"--{name.replace('_', '-')}: expected no such option of a gateway, which keeps no state"
            )


def _run_gateway(
    system: System, bootstrap: str, prefix: str, security: Security, file: Path | None, metrics: Served, place: str
) -> int:
    from hushstream.agents.settings import command_line, located
    from hushstream.gateway.devices.server import DeviceGateway, device_log
    from hushstream.gateway.listening import Endpoints, run_gateway
    from hushstream.gateway.server import Gateway, kafka_log
    from hushstream.gateway.settings import read_gateway

    settings = read_gateway(file)
    duty = DEVICES if settings.devices is not None else of_party(GATEWAY, settings.party)

    def told(text: str) -> str:
        """A message with commands for this deployment, in which the gateway's account has its duty."""
        return located(text, lambda words: command_line(words, place, "", security, duty), bootstrap)

    shared: dict[str, Any] = {"system": system, "settings": settings, "endpoints": Endpoints(*metrics)}
    # A system to which applications send no requests has devices as learners.
    if settings.devices is not None or system.requests is None:
        return run_gateway(lambda: DeviceGateway(log=device_log(bootstrap, prefix, security, system), **shared), told)
    return run_gateway(
        lambda: Gateway(log=kafka_log(bootstrap, prefix, security, system, settings.party), **shared), told
    )


def broker(context: typer.Context) -> None:
    """Run the embedded broker alone, for one machine."""
    from hushstream.broker.command import main

    raise typer.Exit(main(context.args))
