// The receiving side of HPKE with Node's own crypto, in the terms of RFC 9180.
import { createDecipheriv, createHmac, createPublicKey, diffieHellman } from "node:crypto";

const bytes = (...parts) => Buffer.concat(parts.map((part) => (typeof part === "string" ? Buffer.from(part) : Buffer.from(part))));
const hmac = (key, message) => createHmac("sha256", key).update(message).digest();
const KEM = bytes("KEM", [0, 0x20]);
const SUITE = bytes("HPKE", [0, 0x20, 0, 1, 0, 1]);
const extract = (suite, salt, label, content) => hmac(salt, bytes("HPKE-v1", suite, label, content));
const expand = (suite, key, label, info, size) =>
  hmac(key, bytes([0, size], "HPKE-v1", suite, label, info, [1])).subarray(0, size);

/** Open a slot's body with a private key; throws if it was sealed to another key or changed. */
export function opens(body, privateKey, recipient) {
  const { info, shown, hidden } = partsOf(body);
  const der = bytes(Buffer.from("302a300506032b656e032100", "hex"), shown);
  const secretOf = diffieHellman({ privateKey, publicKey: createPublicKey({ key: der, format: "der", type: "spki" }) });
  const nothing = Buffer.alloc(0);
  const shared = expand(KEM, extract(KEM, nothing, "eae_prk", secretOf), "shared_secret", bytes(shown, recipient), 32);
  const hashes = [extract(SUITE, nothing, "psk_id_hash", nothing), extract(SUITE, nothing, "info_hash", info)];
  const context = bytes([0], ...hashes);
  const secret = extract(SUITE, shared, "secret", nothing);
  const key = expand(SUITE, secret, "key", context, 16);
  const cipher = createDecipheriv("aes-128-gcm", key, expand(SUITE, secret, "base_nonce", context, 12));
  cipher.setAuthTag(hidden.subarray(-16));
  return new Uint8Array(bytes(cipher.update(hidden.subarray(0, -16)), cipher.final()));
}

function partsOf(body) {
  const all = Buffer.from(body);
  return { info: bytes("hushstream slot 1", all.subarray(1, 41)), shown: all.subarray(41, 73), hidden: all.subarray(73) };
}
