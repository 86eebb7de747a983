// How the client handles faults, against a server that makes them over HTTP.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import test from "node:test";

import {
  DecisionClient,
  HushstreamError,
  ProblemError,
  UnexpectedAnswerError,
  UnreachableError,
  isProblem,
} from "../dist/index.js";

const ASKED = { event_id: "e1", user: "ann", context: [1, 0], baseline: 0 };
const ANSWER = { event_id: "e1", item: 1, propensity: 0.5, policy: "model", model_version: 3, logged: true };

function problem(code, status) {
  return { type: `urn:hushstream:problem:${code}`, title: "t", status, code, detail: "d" };
}

// A server that answers each request with the next of these; `seen` holds the requests.
async function withServer(answers, run, { folder = "", ...options } = {}) {
  const seen = [];
  const server = createServer(async (request, response) => {
    let body = "";
    for await (const part of request) body += part;
    seen.push({ at: Date.now(), method: request.method, path: request.url, headers: request.headers, body });
    const answer = answers[Math.min(seen.length, answers.length) - 1];
    if (answer === "cut") return request.socket.destroy();
    if (answer === "silence") return undefined;
    const { status = 200, kind = "application/json", headers = {}, value } = answer;
    response.writeHead(status, { "Content-Type": kind, ...headers });
    return response.end(typeof value === "string" ? value : JSON.stringify(value));
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const url = `http://127.0.0.1:${server.address().port}${folder}`;
  try {
    await run(new DecisionClient({ url, ...options }), seen);
  } finally {
    server.closeAllConnections();
    await new Promise((done) => server.close(done));
  }
}

const refusal = (code, status, headers = {}) => ({
  status,
  kind: "application/problem+json",
  headers,
  value: problem(code, status),
});

test("a request whose connection broke is sent again unchanged, under its event id", async () => {
  await withServer(["cut", { value: ANSWER }], async (client, seen) => {
    assert.deepEqual(await client.decide(ASKED), ANSWER);
    assert.equal(seen.length, 2);
    assert.equal(seen[0].body, seen[1].body);
    assert.deepEqual(JSON.parse(seen[1].body), ASKED);
  });
});

test("the client waits for Retry-After", async () => {
  await withServer([refusal("too-busy", 429, { "Retry-After": "1" }), { value: ANSWER }], async (client, seen) => {
    assert.equal((await client.decide(ASKED)).logged, true);
    // A timer may fire a millisecond before the clock says so.
    assert.ok(seen[1].at - seen[0].at >= 995);
  });
});

test("a wait beyond the time of the call ends it at once with the problem", async () => {
  const answers = [refusal("no-answer", 503, { "Retry-After": "60" })];
  await withServer(answers, async (client, seen) => {
    const error = await client.decide(ASKED).catch((found) => found);
    assert.ok(error instanceof ProblemError);
    assert.ok(error instanceof HushstreamError);
    assert.deepEqual([error.code, error.status, error.retryAfterSeconds], ["no-answer", 503, 60]);
    assert.equal(seen.length, 1);
  });
});

test("a problem without Retry-After is thrown, and nothing is sent again", async () => {
  await withServer([refusal("event-conflict", 409)], async (client, seen) => {
    const error = await client.reward({ event_id: "e1", reward: 1 }).catch((found) => found);
    assert.deepEqual([error.name, error.code, error.retryAfterSeconds], ["ProblemError", "event-conflict", undefined]);
    assert.equal(error.message, "event-conflict: d");
    assert.equal(seen.length, 1);
  });
});

test("the number of attempts is limited", async () => {
  const answers = [refusal("too-busy", 429, { "Retry-After": "0" })];
  await withServer(
    answers,
    async (client, seen) => {
      await assert.rejects(client.decide(ASKED), { code: "too-busy" });
      assert.equal(seen.length, 3);
    },
    { retries: 2 },
  );
});

test("an attempt without an answer is given up and repeated", async () => {
  await withServer(
    ["silence", { value: ANSWER }],
    async (client, seen) => {
      assert.equal((await client.decide(ASKED)).item, 1);
      assert.equal(seen.length, 2);
    },
    { attemptMs: 100 },
  );
});

test("if nobody listens, the error has the cause", async () => {
  const server = createServer();
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const url = `http://127.0.0.1:${server.address().port}`;
  await new Promise((done) => server.close(done));
  const client = new DecisionClient({ url, retries: 1 });
  const error = await client.items().catch((found) => found);
  assert.ok(error instanceof UnreachableError);
  assert.ok(error.cause instanceof Error);
});

test("an abort ends the call with the signal's reason, also while it waits", async () => {
  await withServer([refusal("too-busy", 429, { "Retry-After": "5" })], async (client, seen) => {
    const stop = new AbortController();
    const asked = client.decide(ASKED, { signal: stop.signal });
    while (seen.length === 0) await new Promise((done) => setTimeout(done, 5));
    const reason = new Error("the visitor left");
    stop.abort(reason);
    await assert.rejects(asked, reason);
    await assert.rejects(client.decide(ASKED, { signal: stop.signal }), reason);
    assert.equal(seen.length, 1);
  });
});

test("a proxy's 502 is tried again, a page that is not a gateway's is not", async () => {
  const page = { kind: "text/html", value: "<p>" };
  await withServer([{ ...page, status: 502 }, { value: ANSWER }], async (client, seen) => {
    assert.equal((await client.decide(ASKED)).item, 1);
    assert.equal(seen.length, 2);
  });
  await withServer([{ ...page, status: 200 }], async (client, seen) => {
    const error = await client.decide(ASKED).catch((found) => found);
    assert.ok(error instanceof UnexpectedAnswerError);
    assert.equal(error.status, 200);
    assert.equal(seen.length, 1);
  });
});

test("a token is requested before each attempt, sent, and follows no redirection", async () => {
  let asked = 0;
  const token = async () => `token-${(asked += 1)}`;
  await withServer(
    ["cut", { value: { items: [] } }],
    async (client, seen) => {
      await client.items();
      assert.deepEqual(
        seen.map((one) => one.headers.authorization),
        ["Bearer token-1", "Bearer token-2"],
      );
    },
    { token },
  );
  await withServer([{ status: 307, headers: { Location: "http://127.0.0.1:9/" }, value: "" }], async (client) => {
    await assert.rejects(client.items(), UnreachableError);
  }, { token: "t", retries: 0 });
});

test("a batch gives each request its answer or its problem; a folder before the path stays", async () => {
  const answers = [{ value: { answers: [ANSWER, problem("unknown-item", 422)] } }];
  await withServer(answers, async (client, seen) => {
    const [good, bad] = await client.decideBatch([ASKED, { ...ASKED, event_id: "e2", baseline: 9 }]);
    assert.equal(isProblem(good), false);
    assert.equal(isProblem(bad) && bad.code, "unknown-item");
    assert.equal(seen[0].path, "/shop/v1/decide/batch");
  }, { folder: "/shop" });
});
