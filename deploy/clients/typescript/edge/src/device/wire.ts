import { joined } from "../encoding.js";
import { Refused } from "../errors.js";

/** One complete request that left the device. */
export interface Sent {
  readonly method: "GET" | "POST";
  readonly url: string;
  /** The headers that this package sets; the platform adds its own. */
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Uint8Array | null;
  readonly atMs: number;
}

/** How requests are sent. */
export interface WireOptions {
  /** Where the gateway is. */
  readonly url: string | URL;
  readonly fetch?: typeof globalThis.fetch;
  /** Called with each request before it leaves. */
  readonly onSend?: (sent: Sent) => void;
  /** Evidence that this is a device of the application, as base64url; it must not identify the device. */
  readonly attestation?: () => Promise<string>;
  readonly now: () => number;
}

/** The gateway's answer to a slot. */
export interface Answer {
  readonly status: number;
  /** The code of a problem document; empty for any other answer. */
  readonly code: string;
  readonly retryAfterMs: number | null;
  /** The gateway's time from the header `Date`; null if a browser does not show it. */
  readonly dateMs: number | null;
}

/** The body of a model, and its `ETag` if a browser shows it. */
export interface Offered {
  readonly body: Uint8Array;
  readonly tag: string | null;
}

const PATIENCE_MS = 30_000;

/** The two calls of a device. Nothing identifies it: no cookie, no credentials, no referrer, no cache. */
export class Wire {
  readonly #base: URL;

  constructor(private readonly options: WireOptions) {
    this.#base = new URL(options.url);
    if (!this.#base.pathname.endsWith("/")) this.#base.pathname += "/";
  }

  /** Hand in the bytes of a slot; null if no answer came. */
  async slot(body: Uint8Array): Promise<Answer | null> {
    const headers: Record<string, string> = { "Content-Type": "application/octet-stream" };
    if (this.options.attestation !== undefined) headers["Hushstream-Attestation"] = await this.options.attestation();
    const answer = await this.#ask("POST", "v1/slots", headers, body);
    if (answer === null) return null;
    const [retry, date] = [Number(answer.headers.get("Retry-After") ?? Number.NaN), Date.parse(answer.headers.get("Date") ?? "")];
    return {
      status: answer.status,
      code: answer.ok ? "" : await codeOf(answer),
      retryAfterMs: Number.isFinite(retry) ? 1000 * retry : null,
      dateMs: Number.isNaN(date) ? null : date,
    };
  }

  /**
   * Fetch the newest model of at most `most` bytes; null if it is the one with this tag, or there is none, or no answer
   * came.
   */
  async model(tag: string, most: number): Promise<Offered | null> {
    const headers: Record<string, string> = tag === "" ? {} : { "If-None-Match": tag };
    const answer = await this.#ask("GET", "v1/model", headers, null);
    if (answer === null || answer.status !== 200) return null;
    const body = await upTo(answer, most);
    return body && { body, tag: answer.headers.get("ETag") };
  }

  async #ask(
    method: "GET" | "POST",
    path: string,
    headers: Record<string, string>,
    body: Uint8Array | null,
  ): Promise<Response | null> {
    const url = new URL(path, this.#base).href;
    this.options.onSend?.({ method, url, headers, body, atMs: this.options.now() });
    const fetch = this.options.fetch ?? globalThis.fetch;
    try {
      return await fetch(url, {
        method,
        headers,
        body: body as BodyInit | null,
        credentials: "omit",
        referrerPolicy: "no-referrer",
        cache: "no-store",
        redirect: "error",
        signal: AbortSignal.timeout(PATIENCE_MS),
      });
    } catch {
      return null;
    }
  }
}

async function codeOf(answer: Response): Promise<string> {
  try {
    return String(((await answer.json()) as { code?: unknown }).code ?? "");
  } catch {
    return "";
  }
}

/** Read a body; null if the connection broke. A body that is longer than any model is refused. */
async function upTo(answer: Response, most: number): Promise<Uint8Array | null> {
  const parts: Uint8Array[] = [];
  let size = 0;
  const reader = answer.body?.getReader();
  try {
    for (let part = await reader?.read(); part?.value !== undefined; part = await reader?.read()) {
      parts.push(part.value);
      size += part.value.length;
      if (size > most) break;
    }
  } catch {
    return null;
  }
  if (size <= most) return joined(parts);
  await reader?.cancel();
  throw new Refused(`model: expected at most ${most} bytes, got more`);
}
