import { EdgeError } from "./errors.js";

/** WebCrypto; an error that says where it exists, if this platform has none. */
export function subtle(): SubtleCrypto {
  const found = globalThis.crypto?.subtle;
  if (found !== undefined) return found;
  throw new EdgeError("expected WebCrypto, which browsers give to pages over https and on localhost, got none");
}

/** HMAC-SHA256; the key must not be empty. */
export async function hmac(material: Uint8Array, message: Uint8Array): Promise<Uint8Array> {
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const key = await subtle().importKey("raw", material as BufferSource, algorithm, false, ["sign"]);
  return new Uint8Array(await subtle().sign("HMAC", key, message as BufferSource));
}

export async function sha256(message: Uint8Array): Promise<Uint8Array> {
  return new Uint8Array(await subtle().digest("SHA-256", message as BufferSource));
}
