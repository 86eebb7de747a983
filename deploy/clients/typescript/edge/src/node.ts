/* For Node: a state and a mark in files. */

import type { Mark, Store } from "./device/store.js";
import { queue } from "./device/store.js";

/** The functions of `node:fs/promises` that are used here, declared so that this package needs no types of Node. */
interface Files {
  mkdir(path: string, options: { recursive: true; mode: number }): Promise<unknown>;
  open(path: string, flags: string, mode: number): Promise<Handle>;
  readFile(path: string): Promise<Uint8Array>;
  rename(from: string, to: string): Promise<void>;
  rm(path: string, options: { force: true }): Promise<void>;
}

interface Handle {
  writeFile(content: Uint8Array | string): Promise<void>;
  sync(): Promise<void>;
  close(): Promise<void>;
}

const MODULE = "node:fs/promises";
const CRYPTO = "node:crypto";

// Node 18 has WebCrypto, but not as a global.
if (globalThis.crypto === undefined) {
  const { webcrypto } = (await import(CRYPTO)) as { webcrypto: Crypto };
  Object.defineProperty(globalThis, "crypto", { value: webcrypto, configurable: true });
}

const files = async (): Promise<Files> => (await import(MODULE)) as Files;

/** A store in a folder that only its owner can read. Only one process at a time may use it. */
export function fileStore(folder: string): Store {
  const path = (name: string): string => `${folder}/${encodeURIComponent(name)}`;
  return {
    read: (name) => contentOf(path(name)),
    write: (name, content, durable) => replace(folder, path(name), content, durable),
    async remove(name) {
      await (await files()).rm(path(name), { force: true });
    },
    alone: queue(),
  };
}

/** A mark in a file; place it where a backup of the state does not include it. */
export function fileMark(path: string): Mark {
  return {
    async read() {
      const found = await contentOf(path);
      return found === null ? null : new TextDecoder().decode(found);
    },
    write: (text) => replace(path.replace(/[^/]*$/, "") || ".", path, new TextEncoder().encode(text), true),
  };
}

async function contentOf(path: string): Promise<Uint8Array | null> {
  try {
    return new Uint8Array(await (await files()).readFile(path));
  } catch (error) {
    if ((error as { code?: string }).code === "ENOENT") return null;
    throw error;
  }
}

/** Write another file and rename it, so that a crash leaves either the old content or the new one. */
async function replace(folder: string, path: string, content: Uint8Array, durable: boolean): Promise<void> {
  const fs = await files();
  await fs.mkdir(folder, { recursive: true, mode: 0o700 });
  // Never write into a file that is there: others may be able to read it.
  await fs.rm(`${path}.new`, { force: true });
  const beside = await fs.open(`${path}.new`, "wx", 0o600);
  try {
    await beside.writeFile(content);
    if (durable) await beside.sync();
  } finally {
    await beside.close();
  }
  await fs.rename(`${path}.new`, path);
  if (!durable) return;
  const place = await fs.open(folder, "r", 0);
  try {
    await place.sync();
  } finally {
    await place.close();
  }
}
