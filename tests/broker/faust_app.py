"""A small Faust application: numbers in, the same numbers out. Run by test_faust_app.py as a process."""

import os

import faust

app = faust.App(
    "copier",
    broker=f"kafka://{os.environ['COPIER_BOOTSTRAP']}",
    datadir=os.environ["COPIER_DATADIR"],
    topic_disable_leader=True,
    web_enabled=False,
    stream_wait_empty=False,
    broker_session_timeout=2,
    broker_heartbeat_interval=0.3,
    broker_commit_interval=0.2,
)
source = app.topic("numbers", value_serializer="raw", partitions=4)
copies = app.topic("copies", value_serializer="raw", partitions=4, config={"retention.ms": "86400000"})


@app.agent(source, concurrency=1)
async def copy(stream):
    await copies.maybe_declare()
    async for value in stream:
        await app.producer.send("copies", None, value, None, None, None)


if __name__ == "__main__":
    app.main()
