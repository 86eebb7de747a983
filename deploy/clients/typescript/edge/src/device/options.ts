import type { Mark, Store } from "./store.js";
import type { Sent } from "./wire.js";

/** How a device of any system is opened. */
export interface OpenOptions {
  /** Where the gateway is. */
  readonly url: string | URL;
  readonly store: Store;
  readonly mark: Mark;
  /** Whether to change to an agreement that is not the state's; one that would pass the life first agreed to is always refused. */
  readonly agreeAnew?: boolean;
  /** Called with every request before it leaves, for a page that shows them. */
  readonly onSend?: (sent: Sent) => void;
  readonly attestation?: () => Promise<string>;
  readonly fetch?: typeof globalThis.fetch;
  /** The clock, in milliseconds since 1970. */
  readonly now?: () => number;
  /** A number drawn uniformly from 0 to 1, for delays. */
  readonly random?: () => number;
}

/** The result of one `sync`. */
export interface Round {
  readonly handedIn: number;
  /** The version of the model that was taken; null if none was. */
  readonly model: number | null;
  /** Why an offered model was refused; empty if none was. */
  readonly refused: string;
  /** When something will be to do again; null if nothing is foreseen. */
  readonly nextMs: number | null;
}

/** A random number of the platform's secure source: a delay that others can predict would hide nothing. */
export function drawn(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0]! / 2 ** 32;
}
