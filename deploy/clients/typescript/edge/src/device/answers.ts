import type { Answer } from "./wire.js";

const FIRST_RETRY_MS = 1_000;
const LONGEST_RETRY_MS = 600_000;

/** What the device does with a slot after the gateway's answer; see the table in `deploy/docs/reference/edge-transport.md`. */
export type Verdict = "handed in" | "ended" | "stale" | "later" | "fault";

export function verdictOf(answer: Answer | null): Verdict {
  if (answer === null || answer.status >= 500 || answer.status === 429 || answer.status === 408) return "later";
  if (answer.status === 403 && answer.code === "not-attested") return "later";
  if (answer.status === 204) return "handed in";
  if (answer.status === 409) return "ended";
  return answer.status === 422 ? "stale" : "fault";
}

/** How long a slot waits for its next attempt, after so many; `drawn` is a uniform number from 0 to 1. */
export function retryMs(attempts: number, answer: Answer | null, drawn: number): number {
  const waits = Math.min(FIRST_RETRY_MS * 2 ** attempts, LONGEST_RETRY_MS) * (0.5 + drawn);
  return Math.max(waits, answer?.retryAfterMs ?? 0);
}
