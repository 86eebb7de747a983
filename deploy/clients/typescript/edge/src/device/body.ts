import type { Slot } from "../agent.js";
import { joined, littleEndian, utf8 } from "../encoding.js";
import { EdgeError } from "../errors.js";
import { seal } from "./hpke.js";

const FORMAT = 1;
const INFO = utf8("hushstream slot 1");

/** A sealing key of the shuffler, and the first report period whose slots are sealed to it. */
export interface SealingKey {
  readonly publicKey: Uint8Array;
  /** Its bytes in a model, with the signature that vouches for it. */
  readonly entry: Uint8Array;
  readonly fromPeriod: number;
}

/** The newest key whose first period is at most this one. */
export function recipientAt(keys: readonly SealingKey[], period: number): Uint8Array {
  return (keys.findLast((key) => key.fromPeriod <= period) ?? keys[0]!).publicKey;
}

/**
 * The bytes that leave: format, report id, period, configuration, encapsulated key, sealed content; always of one size.
 *
 * @param keysPeriod the period whose key the content is sealed to.
 */
export async function slotBody(
  agreement: { readonly configuration: Uint8Array; readonly slot: { readonly body_bytes: number } },
  keys: readonly SealingKey[],
  slot: Slot,
  period: number,
  keysPeriod = period,
): Promise<Uint8Array> {
  const place = joined([slot.reportId, littleEndian(period), agreement.configuration]);
  const sealed = await seal(recipientAt(keys, keysPeriod), { content: slot.content, info: joined([INFO, place]) });
  const body = joined([Uint8Array.of(FORMAT), place, sealed]);
  const { body_bytes: size } = agreement.slot;
  if (body.length !== size) throw new EdgeError(`slot: expected a body of ${size} bytes, got ${body.length}`);
  return body;
}
