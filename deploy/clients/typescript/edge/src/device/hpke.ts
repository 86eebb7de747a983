import { joined, utf8 } from "../encoding.js";
import { EdgeError } from "../errors.js";
import { hmac, subtle } from "../hashes.js";

/*
 * HPKE (RFC 9180) in base mode for one message: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-128-GCM, all of WebCrypto.
 */

const ALGORITHM = { name: "X25519" };
const KEM = Uint8Array.of(0x4b, 0x45, 0x4d, 0, 0x20);
const SUITE = Uint8Array.of(0x48, 0x50, 0x4b, 0x45, 0, 0x20, 0, 1, 0, 1);
const NOTHING = new Uint8Array(0);
const HASH_BYTES = 32;
const KEY_BYTES = 16;
const NONCE_BYTES = 12;

/** The content to seal, and what both sides must know to open it. */
export interface Message {
  readonly content: Uint8Array;
  readonly info: Uint8Array;
  /** Additional authenticated data; empty by default. */
  readonly aad?: Uint8Array;
}

/** Make a new pair of keys; if this platform cannot, the error names those that can. */
export async function ephemeralKeys(): Promise<CryptoKeyPair> {
  const { generateKey } = subtle();
  try {
    return (await generateKey.call(subtle(), ALGORITHM, false, ["deriveBits"])) as CryptoKeyPair;
  } catch {
    throw new EdgeError(
      "sealing: expected X25519 in WebCrypto (Chromium 133, Firefox 130, Safari 17, Node 18 or later), got a platform " +
        "without it: no slot leaves this device",
    );
  }
}

/** Seal a message to a public key of 32 bytes: the encapsulated key (32 bytes), then the content and its tag. */
export async function seal(recipient: Uint8Array, message: Message, keys?: CryptoKeyPair): Promise<Uint8Array> {
  const { publicKey, privateKey } = keys ?? (await ephemeralKeys());
  const other = await subtle().importKey("raw", recipient as BufferSource, ALGORITHM, false, []);
  const agreed = await subtle().deriveBits({ ...ALGORITHM, public: other }, privateKey, 8 * HASH_BYTES);
  const shown = new Uint8Array(await subtle().exportKey("raw", publicKey));
  const before = await extract(KEM, NOTHING, "eae_prk", new Uint8Array(agreed));
  const shared = await expand(KEM, before, "shared_secret", joined([shown, recipient]), HASH_BYTES);
  const hashes = [await extract(SUITE, NOTHING, "psk_id_hash", NOTHING), await extract(SUITE, NOTHING, "info_hash", message.info)];
  const context = joined([Uint8Array.of(0), ...hashes]);
  const secret = await extract(SUITE, shared, "secret", NOTHING);
  const material = await expand(SUITE, secret, "key", context, KEY_BYTES);
  const iv = (await expand(SUITE, secret, "base_nonce", context, NONCE_BYTES)) as BufferSource;
  const key = await subtle().importKey("raw", material as BufferSource, "AES-GCM", false, ["encrypt"]);
  const parameters = { name: "AES-GCM", iv, additionalData: (message.aad ?? NOTHING) as BufferSource };
  return joined([shown, new Uint8Array(await subtle().encrypt(parameters, key, message.content as BufferSource))]);
}

/** Whether a public key gives a secret that others cannot compute: with a point of small order everybody knows it. */
export async function agrees(recipient: Uint8Array): Promise<boolean> {
  const { privateKey } = await ephemeralKeys();
  try {
    const other = await subtle().importKey("raw", recipient as BufferSource, ALGORITHM, false, []);
    await subtle().deriveBits({ ...ALGORITHM, public: other }, privateKey, 8 * HASH_BYTES);
    return true;
  } catch {
    return false;
  }
}

function extract(suite: Uint8Array, salt: Uint8Array, label: string, content: Uint8Array): Promise<Uint8Array> {
  return hmac(salt.length ? salt : new Uint8Array(HASH_BYTES), joined([utf8("HPKE-v1"), suite, utf8(label), content]));
}

async function expand(suite: Uint8Array, key: Uint8Array, label: string, info: Uint8Array, size: number): Promise<Uint8Array> {
  const said = [Uint8Array.of(0, size), utf8("HPKE-v1"), suite, utf8(label), info, Uint8Array.of(1)];
  return (await hmac(key, joined(said))).subarray(0, size);
}
