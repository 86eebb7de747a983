import { EdgeError } from "../errors.js";

/** Storage of a device's state: contents by name, each written completely or not at all. */
export interface Store {
  read(name: string): Promise<Uint8Array | null>;
  /** Ends when the content is stored; `durable`: on the disk itself, not only in its cache. */
  write(name: string, content: Uint8Array, durable: boolean): Promise<void>;
  remove(name: string): Promise<void>;
  /**
   * Run `work` while no other page or process uses this store; `asked` ends when another one waits for it, or the page is
   * hidden.
   */
  alone<Result>(work: (asked: Promise<void>) => Promise<Result>): Promise<Result>;
}

/** Storage of what was spent, apart from the state, so that clearing or restoring one does not change the other. */
export interface Mark {
  read(): Promise<string | null>;
  write(text: string): Promise<void>;
}

const TABLE = "states";

/** A store in IndexedDB, which all pages of an origin share. */
export function browserStore(name: string): Store {
  const opened = once(
    () =>
      new Promise<IDBDatabase>((resolve, reject) => {
        const asked = indexedDB.open(`hushstream-edge ${name}`, 1);
        asked.onupgradeneeded = () => asked.result.createObjectStore(TABLE);
        asked.onsuccess = () => resolve(asked.result);
        asked.onerror = () => reject(failed(asked.error));
      }),
  );
  const within = async (
    mode: IDBTransactionMode,
    work: (table: IDBObjectStore) => IDBRequest,
    durability: IDBTransactionDurability = "relaxed",
  ): Promise<unknown> => {
    const transaction = (await opened()).transaction(TABLE, mode, { durability });
    const asked = work(transaction.objectStore(TABLE));
    return new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve(asked.result);
      transaction.onabort = transaction.onerror = () => reject(failed(transaction.error));
    });
  };
  return {
    async read(key) {
      return ((await within("readonly", (table) => table.get(key))) as Uint8Array | undefined) ?? null;
    },
    async write(key, content, durable) {
      await within("readwrite", (table) => table.put(content, key), durable ? "strict" : "relaxed");
    },
    async remove(key) {
      await within("readwrite", (table) => table.delete(key));
    },
    alone: (work) => locked(`hushstream-edge ${name}`, work),
  };
}

const ASKS_EVERY_MS = 50;

/** Run `work` with a lock of the origin; ask the page that holds it until it releases it. */
async function locked<Result>(name: string, work: (asked: Promise<void>) => Promise<Result>): Promise<Result> {
  const channel = new BroadcastChannel(name);
  const page = typeof document === "undefined" ? null : document;
  let ask: () => void = () => undefined;
  const asked = new Promise<void>((resolve) => (ask = resolve));
  // A browser may end a hidden page without notice, or freeze it while it holds the lock.
  const hidden = (): void => void (page?.visibilityState === "hidden" && ask());
  channel.onmessage = ask;
  page?.addEventListener("visibilitychange", hidden);
  // Repeatedly, because the holder may not have listened yet at the first message.
  const asking = setInterval(() => channel.postMessage("asked"), ASKS_EVERY_MS);
  channel.postMessage("asked");
  try {
    return (await navigator.locks.request(name, () => {
      clearInterval(asking);
      hidden();
      return work(asked);
    })) as Result;
  } finally {
    clearInterval(asking);
    page?.removeEventListener("visibilitychange", hidden);
    channel.close();
  }
}

/** A mark in the origin's local storage. It holds counts: no id, and nothing of what was seen or clicked. */
export function browserMark(name: string): Mark {
  const key = `hushstream-edge ${name}`;
  return {
    async read() {
      return localStorage.getItem(key);
    },
    async write(text) {
      localStorage.setItem(key, text);
    },
  };
}

/** A queue that runs works one after another within this process; `asked` of a work ends when another one waits behind it. */
export function queue(): <Result>(work: (asked: Promise<void>) => Promise<Result>) => Promise<Result> {
  let last: Promise<unknown> = Promise.resolve();
  let ask: () => void = () => undefined;
  return (work) => {
    ask();
    const asked = new Promise<void>((resolve) => (ask = resolve));
    const next = last.then(() => work(asked));
    last = next.catch(() => undefined);
    return next;
  };
}

function once<Result>(make: () => Promise<Result>): () => Promise<Result> {
  let made: Promise<Result> | undefined;
  return () => (made ??= make());
}

function failed(error: DOMException | null): EdgeError {
  return new EdgeError(`storage: expected to keep the device's state, got ${error?.name ?? "an error"}`);
}
