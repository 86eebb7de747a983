import { HushstreamError, ProblemError, UnexpectedAnswerError, UnreachableError, isProblem } from "./errors.js";

/** The address of a gateway, its credentials, and the limits of attempts. */
export interface GatewayOptions {
  /** The gateway's address, for instance `http://127.0.0.1:8080`. */
  url: string | URL;
  /** The caller's token; a function is called before each attempt, so that it may give a newer token. */
  token?: string | (() => string | Promise<string>);
  /** How long a call may take with all its attempts; 10,000 by default. */
  timeoutMs?: number;
  /** How long one attempt may take; 3,000 by default, twice what a gateway waits for a learner. */
  attemptMs?: number;
  /** The most attempts after the first; 4 by default. */
  retries?: number;
  /** Replaces the platform's own `fetch`. */
  fetch?: typeof globalThis.fetch;
}

/** Options of one call. */
export interface CallOptions {
  /** Ends the call when it is aborted, with the signal's reason. */
  signal?: AbortSignal;
  /** Lets a browser finish the call after its page is closed; for feedback. */
  keepalive?: boolean;
}

const BACKOFF_MS = 100;
const LONGEST_BACKOFF_MS = 2_000;

/**
 * Sends requests to a gateway, and repeats them where that is safe.
 *
 * An event id makes every call idempotent: if a request got no answer, it is sent again unchanged, and the log holds it
 * once. A request is repeated after a network error, after an attempt that took too long, after a proxy's 502, 503 or
 * 504, and after each problem that has `Retry-After`, but not before that time.
 */
export abstract class Gateway {
  readonly #base: URL;
  readonly #options: GatewayOptions;

  constructor(options: GatewayOptions) {
    const base = addressOf(options.url);
    if (!base.pathname.endsWith("/")) base.pathname += "/";
    this.#base = base;
    this.#options = options;
  }

  protected read<Answered>(path: string, options: CallOptions = {}): Promise<Answered> {
    return this.#call<Answered>("GET", path, undefined, options);
  }

  protected post<Answered>(path: string, asked: object, options: CallOptions = {}): Promise<Answered> {
    return this.#call<Answered>("POST", path, JSON.stringify(asked), options);
  }

  protected async postBatch<Answered>(
    path: string,
    requests: readonly object[],
    options: CallOptions = {},
  ): Promise<Answered[]> {
    const found = await this.post<{ answers: Answered[] }>(path, { requests }, options);
    return found.answers;
  }

  async #call<Answered>(
    method: string,
    path: string,
    body: string | undefined,
    options: CallOptions,
  ): Promise<Answered> {
    const { timeoutMs = 10_000, retries = 4 } = this.#options;
    const deadline = Date.now() + timeoutMs;
    for (let attempt = 0; ; attempt += 1) {
      let failed: Failed;
      try {
        return (await this.#attempt(method, path, body, options, deadline)) as Answered;
      } catch (error) {
        if (!(error instanceof Failed)) throw error;
        failed = error;
      }
      const pause = Math.max(failed.waitMs, Math.random() * Math.min(LONGEST_BACKOFF_MS, BACKOFF_MS * 2 ** attempt));
      // An attempt that cannot end in time would only add to the load of an overloaded gateway.
      if (attempt >= retries || Date.now() + pause >= deadline) throw failed.cause;
      await sleep(pause, options.signal);
    }
  }

  async #attempt(
    method: string,
    path: string,
    body: string | undefined,
    options: CallOptions,
    deadline: number,
  ): Promise<unknown> {
    const { signal, keepalive = false } = options;
    signal?.throwIfAborted();
    const send = this.#options.fetch ?? globalThis.fetch;
    const headers = await this.#headers(body !== undefined);
    const ends = new AbortController();
    const abort = () => ends.abort(signal?.reason);
    signal?.addEventListener("abort", abort, { once: true });
    const left = Math.min(this.#options.attemptMs ?? 3_000, Math.max(1, deadline - Date.now()));
    const timer = setTimeout(() => ends.abort(new Error(`no answer within ${left} ms`)), left);
    try {
      const response = await send(new URL(path.replace(/^\//, ""), this.#base), {
        method,
        headers,
        signal: ends.signal,
        keepalive,
        // No redirects: the token may go only to the gateway.
        redirect: "error",
        credentials: "omit",
        cache: "no-store",
        ...(body === undefined ? {} : { body }),
      });
      return await answerOf(response);
    } catch (error) {
      if (error instanceof Failed || error instanceof ProblemError || error instanceof UnexpectedAnswerError) throw error;
      signal?.throwIfAborted();
      const cause = ends.signal.aborted ? ends.signal.reason : error;
      throw new Failed(new UnreachableError(`no answer came from the gateway at ${this.#base.origin}`, { cause }), 0);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    }
  }

  async #headers(withBody: boolean): Promise<Record<string, string>> {
    const { token } = this.#options;
    const found: Record<string, string> = { Accept: "application/json, application/problem+json" };
    if (withBody) found["Content-Type"] = "application/json";
    if (token !== undefined) found["Authorization"] = `Bearer ${typeof token === "function" ? await token() : token}`;
    return found;
  }
}

/** An attempt that may be repeated after a wait; if it is not repeated, the caller gets its cause. */
class Failed extends Error {
  constructor(
    override readonly cause: Error,
    readonly waitMs: number,
  ) {
    super();
  }
}

function addressOf(url: string | URL): URL {
  try {
    return new URL(url);
  } catch {
    throw new HushstreamError(`url: expected a gateway's address, such as http://127.0.0.1:8080, got ${url}`);
  }
}

async function answerOf(response: Response): Promise<unknown> {
  const kind = (response.headers.get("Content-Type") ?? "").split(";")[0]?.trim();
  if (response.ok && kind === "application/json") return response.json();
  const wait = Number(response.headers.get("Retry-After") ?? NaN);
  const again = Number.isFinite(wait) && wait >= 0;
  if (kind === "application/problem+json") {
    const problem = (await response.json()) as object;
    if (isProblem(problem)) {
      const refused = new ProblemError(problem, again ? wait : undefined);
      throw again ? new Failed(refused, wait * 1_000) : refused;
    }
  }
  await response.body?.cancel();
  const unexpected = new UnexpectedAnswerError(response.status);
  if (again || [502, 503, 504].includes(response.status)) throw new Failed(unexpected, again ? wait * 1_000 : 0);
  throw unexpected;
}

function sleep(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((done, failed) => {
    const abort = () => {
      clearTimeout(timer);
      failed(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      done();
    }, milliseconds);
    if (signal?.aborted) abort();
    else signal?.addEventListener("abort", abort, { once: true });
  });
}
