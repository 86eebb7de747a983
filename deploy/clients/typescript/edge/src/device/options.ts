import type { Mark, Store } from "./store.js";
import type { Sent } from "./wire.js";

/** How a device of any system is opened. */
export interface OpenOptions {
  /** Where the gateway is. */
  readonly url: string | URL;
  readonly store: Store;
  readonly mark: Mark;
  /** Take another agreement than the one that the state was made under; one that costs more is refused all the same. */
  readonly agreeAnew?: boolean;
  /** Told of every request before it leaves, for a page that shows what does. */
  readonly onSend?: (sent: Sent) => void;
  readonly attestation?: () => Promise<string>;
  readonly fetch?: typeof globalThis.fetch;
  /** The clock, in milliseconds since 1970. */
  readonly now?: () => number;
  /** A number drawn uniformly from 0 to 1, for delays. */
  readonly random?: () => number;
}

/** What a round of `sync` did. */
export interface Round {
  readonly handedIn: number;
  /** The version of the model that was taken, null for none. */
  readonly model: number | null;
  /** Why an offered model was refused; empty where none was. */
  readonly refused: string;
  /** When something will be to do again; null where nothing is foreseen. */
  readonly nextMs: number | null;
}

/** From the platform's own source: a delay that others can foresee hides nothing. */
export function drawn(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0]! / 2 ** 32;
}
