import { isWeaker, type Agreed, type PromiseFigures } from "../agreed.js";
import { Refused, type EdgeError } from "../errors.js";
import { drawn, type OpenOptions, type Round } from "./options.js";
import { repeating } from "./repeating.js";

/** A device of any system: it calls `sync` in its own time, and refuses an agreement that is weaker than its state's. */
export abstract class Device<Agreement extends Agreed, Options extends OpenOptions> {
  #onDue: () => void = () => undefined;

  protected constructor(
    protected readonly agreement: Agreement,
    protected readonly options: Options,
  ) {}

  /** Hand in what is due, and fetch the newest model. */
  abstract sync(): Promise<Round>;

  /** When something will be to do again; null if nothing is foreseen. */
  protected abstract nextMs(): number | null;

  /** Call `sync` now and whenever something is to do, at least every `everyMs`; the function that it gives ends that. */
  start(everyMs = 3_600_000, onRound: (round: Round | EdgeError) => void = () => undefined): () => void {
    const wait = (): number | null => {
      const next = this.nextMs();
      return next === null ? null : next - this.now();
    };
    const { isDue, stop } = repeating(() => this.sync(), wait, everyMs, onRound);
    this.#onDue = isDue;
    return stop;
  }

  /** Tell the calls of `start` of a slot that was not foreseen: else it would wait for the next round. */
  protected fellDue(): void {
    this.#onDue();
  }

  /** Refuse an agreement that costs more than the one of a state; and any other than that without `agreeAnew`. */
  protected requireNoWeaker(state: { readonly promise: PromiseFigures }): void {
    if (isWeaker(state.promise, this.agreement.promise)) {
      throw new Refused("agreement: expected one that costs no more than the one agreed to, got a weaker one");
    }
    if (this.options.agreeAnew !== true) {
      throw new Refused("agreement: expected the configuration agreed to, got another one (agreeAnew takes it)");
    }
  }

  protected now(): number {
    return (this.options.now ?? Date.now)();
  }

  protected random(): number {
    return (this.options.random ?? drawn)();
  }
}
