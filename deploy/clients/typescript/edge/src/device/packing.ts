import { utf8 } from "../encoding.js";
import { BadState } from "../errors.js";

/** Pack a state into bytes for a store, with its revision near the beginning. */
export function packed(format: number, revision: number, state: object): Uint8Array {
  return utf8(JSON.stringify({ format, revision, ...state }, binary));
}

/** The revision of packed bytes, without parsing the rest; null if they have none. */
export function revisionOf(content: Uint8Array): number | null {
  const found = /"revision":(\d+)/.exec(new TextDecoder().decode(content.subarray(0, 64)));
  return found === null ? null : Number(found[1]);
}

/** The state that `packed` was given, of this format; the caller must check its shape. */
export function unpacked<State>(format: number, content: Uint8Array): State {
  let found: State & { format: number };
  try {
    found = JSON.parse(new TextDecoder().decode(content), unbinary) as typeof found;
  } catch {
    throw new BadState("state: expected what this package wrote, got something else");
  }
  if (found?.format !== format) throw new BadState(`state: expected format ${format}, got another`);
  return found;
}

function binary(_: string, value: unknown): unknown {
  return value instanceof Uint8Array ? { base64: base64(value) } : value;
}

function unbinary(_: string, value: unknown): unknown {
  if (typeof value !== "object" || value === null || !("base64" in value)) return value;
  return Uint8Array.from(atob(String(value.base64)), (letter) => letter.charCodeAt(0));
}

function base64(content: Uint8Array): string {
  let text = "";
  // In parts, because a call takes only so many arguments.
  for (let at = 0; at < content.length; at += 4096) text += String.fromCharCode(...content.subarray(at, at + 4096));
  return btoa(text);
}
