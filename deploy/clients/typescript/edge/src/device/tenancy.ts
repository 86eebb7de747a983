import { queue, type Store } from "./store.js";

/** What a tenant does with the store when it gets it, and before it gives it up. */
export interface Turn {
  /** Read what another page may have written meanwhile. */
  taken(): Promise<void>;
  /** Write what is in memory alone. */
  leaving(): Promise<void>;
}

/**
 * Keeps a store to one page until another page asks for it, so that what is done meanwhile waits for no lock and no
 * reading. Works run one after another.
 */
export class Tenancy {
  readonly #next = queue();
  #leave: (() => void) | null = null;

  constructor(
    private readonly store: Store,
    private readonly turn: Turn,
  ) {}

  /** Run `work` while no other page works on the store. */
  run<Result>(work: () => Promise<Result> | Result): Promise<Result> {
    return this.#next(async () => {
      if (this.#leave === null) await this.#take();
      return work();
    });
  }

  #take(): Promise<void> {
    return new Promise((resolve, reject) => {
      const over = this.store.alone(async (asked) => {
        await this.turn.taken();
        const left = new Promise<void>((leave) => (this.#leave = leave));
        void asked.then(() => this.#giveUp());
        resolve();
        await left;
      });
      over.catch(reject);
    });
  }

  /** Behind the works that were asked for before. */
  #giveUp(): Promise<void> {
    return this.#next(async () => {
      await this.turn.leaving();
      this.#leave?.();
      this.#leave = null;
    });
  }
}
