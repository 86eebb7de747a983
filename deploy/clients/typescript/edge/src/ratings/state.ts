import type { Spent } from "../device/base.js";
import type { SeenModel } from "../device/model.js";
import { packed, unpacked } from "../device/packing.js";
import { BadState } from "../errors.js";
import { ROUNDS } from "./agreement.js";
import type { Rated } from "./rated.js";
import type { Figures } from "./rounds.js";

/** The slot of a round. */
export interface OwedSlot {
  readonly round: number;
  /** When the next attempt may be made; `attempts`: how many were made. */
  readonly fromMs: number;
  readonly attempts: number;
  /** The bytes of the slot; null until it is made. */
  readonly body: Uint8Array | null;
  /** The code of a problem that would come again if the slot was sent again; empty if there is none. */
  readonly fault: string;
}

/** What stays spent even where the state is lost: how many rounds were answered, and the price of their slots. */
export interface Answered extends Spent {
  readonly answered: number;
}

export const NOTHING: Answered = { answered: 0, paid: 0, life: 0 };

/** Everything that a device keeps, without the content of its model. */
export interface RatingState extends Answered {
  readonly configuration: Uint8Array;
  readonly key: Uint8Array;
  readonly ratings: Rated;
  readonly owed: OwedSlot | null;
  readonly seen: SeenModel;
  /** The figures of the newest model; null before the first. */
  readonly newest: Figures | null;
  /** Whether the gateway said that the deployment has ended. */
  readonly ended: boolean;
}

const FORMAT = 1;

/** Pack a state into bytes for a store. */
export function packRatings(revision: number, state: RatingState): Uint8Array {
  return packed(FORMAT, revision, { ...state, kind: "ratings" });
}

/** Unpack a state of `packRatings`. */
export function unpackRatings(content: Uint8Array): RatingState & { readonly revision: number } {
  const found = unpacked<RatingState & { revision: number; kind: string }>(FORMAT, content);
  const bytes = [found.key, found.configuration, found.owed?.body ?? new Uint8Array(0)];
  const keys = [found.seen?.signing, found.seen?.sealing];
  const good =
    found.kind === "ratings" &&
    bytes.every((one) => one instanceof Uint8Array) &&
    keys.every((one) => Array.isArray(one) && one.length > 0 && one.every((key) => key?.publicKey instanceof Uint8Array)) &&
    Array.isArray(found.ratings) &&
    found.ratings.every((pair) => Array.isArray(pair) && pair.every(Number.isFinite)) &&
    isAnswered(found);
  if (!good) throw new BadState("state: expected what this package wrote, got something else");
  return found;
}

/** The text of a mark. */
export function packAnswered({ answered, paid, life }: Answered): string {
  return JSON.stringify({ format: FORMAT, answered, paid, life });
}

/** What was spent, according to a mark; nothing if there is no mark. */
export function unpackAnswered(text: string | null): Answered {
  if (text === null) return NOTHING;
  try {
    const { format, ...found } = JSON.parse(text) as Answered & { format?: unknown };
    if (format === FORMAT && isAnswered(found)) return found;
  } catch {
    // The error is thrown below.
  }
  throw new BadState("mark: expected what this package wrote, got something else");
}

function isAnswered({ answered, paid, life }: Answered): boolean {
  return [answered, paid, life].every((one) => Number.isSafeInteger(one) && one >= 0) && answered <= ROUNDS;
}
