import { retryMs, verdictOf } from "../device/answers.js";
import { Device } from "../device/base.js";
import { slotBody } from "../device/body.js";
import { unseen } from "../device/model.js";
import type { OpenOptions, Round } from "../device/options.js";
import { revisionOf } from "../device/packing.js";
import { Tenancy } from "../device/tenancy.js";
import { Wire, type Answer, type Offered } from "../device/wire.js";
import { equal } from "../encoding.js";
import { EdgeError, Refused } from "../errors.js";
import { Key } from "../key.js";
import { RatingAgreement, type RatingAgreementFile } from "./agreement.js";
import { slotOf } from "./making.js";
import { byItem, ratedAlso, requireItems } from "./rated.js";
import { firstVersion, longestVersion, takeVersion, versionOf, type Figures, type Version } from "./rounds.js";
import { predicted } from "./solving.js";
import { NOTHING, packAnswered, packRatings, unpackAnswered, unpackRatings, type Answered, type RatingState } from "./state.js";

/** How a device is opened. */
export interface RatingOptions extends OpenOptions {
  /** The application's own copy of the agreement, shipped with its code. */
  readonly agreement: RatingAgreementFile;
}

const STATE = "state";
const ID_BYTES = 16;
/** The revision of a state that must be read before it is used. */
const UNREAD = -1;

type Kept = Omit<RatingState, "key">;

/**
 * One person's device: their ratings, and a slot for each round. All that it knows stays in its store. Only two things
 * leave: one fixed-size report in each round, and requests for the model that everybody gets.
 */
export class RatingDevice extends Device<RatingAgreement, RatingOptions> {
  /** The revision that this page wrote or read last. Each write draws a new one, so a write of another page is noticed. */
  #revision = UNREAD;
  readonly #tenancy: Tenancy;
  readonly #wire: Wire;
  #version: Version;
  #state: Kept;

  private constructor(
    agreement: RatingAgreement,
    options: RatingOptions,
    private key: Key,
  ) {
    super(agreement, options);
    [this.#version, this.#state] = [firstVersion(agreement), begun(agreement, NOTHING)];
    this.#wire = new Wire({ ...options, now: () => this.now() });
    this.#tenancy = new Tenancy(options.store, { taken: async () => undefined, leaving: async () => undefined });
  }

  /** Open the device with the state in the store, or with a new one. */
  static async open(options: RatingOptions): Promise<RatingDevice> {
    const device = new RatingDevice(new RatingAgreement(options.agreement), options, await Key.drawn());
    await device.#alone(async () => undefined);
    return device;
  }

  /** Add ratings on the configured scale; a later one of the same item replaces it. It ends when they are written. */
  rate(items: readonly number[], ratings: readonly number[]): Promise<void> {
    return this.#alone(async () => this.#save({ ratings: ratedAlso(this.agreement.settings, this.#state.ratings, items, ratings) }));
  }

  /** Drop the ratings of some items, or all. What was sent stays sent, and what was spent stays spent. */
  forget(items?: readonly number[]): Promise<void> {
    return this.#alone(() => {
      const ratings = items === undefined ? [] : this.#state.ratings.filter(([item]) => !items.includes(item));
      return this.#save({ ratings });
    });
  }

  /** Predict the person's ratings of items, by the newest model; nothing leaves the device. */
  predict(items: readonly number[]): Promise<number[]> {
    return this.#alone(async () => {
      requireItems(this.agreement.settings, items);
      return predicted(this.agreement, byItem(this.agreement.settings, this.#state.ratings), this.#version.model, items);
    });
  }

  /** How many items are rated, how many rounds were answered, and the model's version; for the person whose device it is. */
  get status(): { rated: number; answered: number; waiting: boolean; modelVersion: number; ended: boolean } {
    const { ratings, answered, owed, newest, ended } = this.#state;
    return { rated: ratings.length, answered, waiting: owed !== null, modelVersion: newest?.version ?? 0, ended };
  }

  /**
   * Make and hand in the slot whose time has come, and fetch the newest model. Call it when the page opens; `start`
   * calls it regularly.
   *
   * Between its requests it computes, packs and writes nothing: the time of that would show what the device holds. So
   * the slot that a new model asks for leaves with a later call.
   */
  async sync(): Promise<Round> {
    const body = await this.#made();
    const answer = body === null ? null : await this.#wire.slot(body);
    let refused = "";
    const refuses = (error: unknown): null => {
      if (!(error instanceof Refused)) throw error;
      refused = error.message;
      return null;
    };
    const ended = this.#state.ended || answer?.status === 409;
    const most = longestVersion(this.agreement);
    const offered = ended ? null : await this.#wire.model(this.#state.seen.tag, most).catch(refuses);
    const handedIn = body !== null && (await this.#noteAnswer(body, answer)) ? 1 : 0;
    const model = offered === null ? null : await this.#take(offered).catch(refuses);
    return { handedIn, model, refused, nextMs: this.nextMs() };
  }

  // Slots.

  /** Make and write the body that may leave now; null if none may. */
  #made(): Promise<Uint8Array | null> {
    return this.#alone(async () => {
      await this.#owes();
      const [{ owed, ended, seen }, asked] = [this.#state, this.#version.asked];
      if (owed === null || asked === null || ended || owed.fault !== "" || owed.fromMs > this.now()) return null;
      if (owed.body !== null) return owed.body;
      const salt = new DataView((await this.key.prf("bgt-salt")).buffer).getBigUint64(0, true);
      // A round that the promise does not pay for gets null, and costs nothing.
      const ratings = asked.number < this.agreement.rounds ? this.#state.ratings : [];
      const content = slotOf(this.agreement, byItem(this.agreement.settings, ratings), asked, salt);
      const paid = this.#state.paid + this.agreement.priceFrom(asked.number) - this.agreement.priceFrom(asked.number + 1);
      const reportId = (await this.key.prf("bgt-slot", asked.number)).slice(0, ID_BYTES);
      const body = await slotBody(this.agreement, seen.sealing, { reportId, content }, asked.number);
      await this.#save({ owed: { ...owed, body }, answered: asked.number + 1, paid });
      return body;
    });
  }

  /** Owe a slot for the open round, if it was not answered; owe none for a round that is over. */
  async #owes(): Promise<void> {
    const [{ owed, answered }, asked] = [this.#state, this.#version.asked];
    if (owed !== null && owed.round === asked?.number) return;
    // The delay is drawn once, when the device learns of the round, and independent of everything.
    const fromMs = this.now() + Math.floor(this.random() * this.agreement.slot.delay_ms);
    const isOpen = asked !== null && asked.number >= answered;
    const next = isOpen ? { round: asked.number, fromMs, attempts: 0, body: null, fault: "" } : null;
    if (owed === null && next === null) return;
    await this.#save({ owed: next });
    this.fellDue();
  }

  /** Note the gateway's answer; returns whether the slot was handed in. */
  #noteAnswer(body: Uint8Array, answer: Answer | null): Promise<boolean> {
    return this.#alone(async () => {
      const { owed } = this.#state;
      const verdict = verdictOf(answer);
      if (owed?.body && equal(owed.body, body)) {
        const attempts = owed.attempts + 1;
        const fromMs = this.now() + retryMs(owed.attempts, answer, this.random());
        if (verdict === "handed in") await this.#save({ owed: null });
        else if (verdict === "ended") await this.#save({ owed: null, ended: true });
        else if (verdict === "fault") await this.#save({ owed: { ...owed, fault: answer?.code || String(answer?.status) } });
        // The gateway has another round open; a newer model will say which.
        else await this.#save({ owed: { ...owed, attempts, fromMs } });
      }
      return verdict === "handed in";
    });
  }

  // Models.

  #take(found: Offered): Promise<number | null> {
    return this.#alone(async () => {
      const { seen: known, newest } = this.#state;
      const { version, figures, content, seen } = await takeVersion(this.agreement, known, found.body, found.tag, this.now());
      if (figures.version === newest?.version) {
        // The same model, perhaps with newer keys.
        await this.#save({ seen });
        return null;
      }
      await this.options.store.write(named(figures), content, true);
      this.#version = version;
      await this.#save({ seen, newest: figures });
      await this.#owes();
      if (newest !== null) await this.options.store.remove(named(newest));
      return figures.version;
    });
  }

  // State: each call that changes it has written it when it ends.

  /** Run `work` on the newest state. If `work` fails, the state in the store counts. */
  #alone<Result>(work: () => Promise<Result>): Promise<Result> {
    return this.#tenancy.run(async () => {
      await this.#refresh();
      try {
        return await work();
      } catch (error) {
        this.#revision = UNREAD;
        throw error;
      }
    });
  }

  /** Read the state again if another page wrote it, or if the store was cleared or restored. */
  async #refresh(): Promise<void> {
    const content = await this.options.store.read(STATE);
    const spent = unpackAnswered(await this.options.mark.read());
    const isKnown = content !== null && revisionOf(content) === this.#revision && spent.answered === this.#state.answered;
    if (isKnown) return;
    [this.#revision, this.#version] = [UNREAD, firstVersion(this.agreement)];
    if (content === null) {
      // The state was cleared, or never there: what the mark says was spent stays spent.
      this.requireWithin(spent, spent.answered, false);
      this.key = await Key.drawn();
      this.#state = begun(this.agreement, spent);
      return this.#save({});
    }
    const { key, revision, ...found } = unpackRatings(content);
    this.key = await Key.of(key);
    const answered = Math.max(found.answered, spent.answered);
    const paid = Math.max(found.paid, spent.paid);
    if (!equal(found.configuration, this.agreement.configuration)) {
      this.requireWithin({ paid, life: found.life }, answered, true);
      this.#state = begun(this.agreement, { answered, paid, life: found.life });
      return this.#save({});
    }
    requireItems(this.agreement.settings, found.ratings.map(([item]) => item));
    if (found.newest !== null) this.#version = await this.#kept(found.newest);
    [this.#state, this.#revision] = [found, revision];
    // An older copy of the state: the slot that it would send was sent. A mark whose write failed is written here.
    if (spent.answered !== answered || found.answered !== answered) {
      await this.#save({ answered, paid, ...(spent.answered > found.answered && { owed: null }) });
    }
  }

  async #kept(figures: Figures): Promise<Version> {
    const content = await this.options.store.read(named(figures));
    if (content === null) throw new EdgeError(`state: expected the content of model ${figures.version}, got none`);
    return versionOf(this.agreement, figures, content);
  }

  async #save(changed: Partial<Kept>): Promise<void> {
    this.#state = { ...this.#state, ...changed };
    const revision = crypto.getRandomValues(new Uint32Array(1))[0]!;
    const { store, mark } = this.options;
    await store.write(STATE, packRatings(revision, { key: this.key.material, ...this.#state }), true);
    await mark.write(packAnswered(this.#state));
    this.#revision = revision;
  }

  protected override nextMs(): number | null {
    const { owed, ended } = this.#state;
    return owed === null || owed.fault !== "" || ended ? null : owed.fromMs;
  }
}

function begun(agreement: RatingAgreement, spent: Answered): Kept {
  const { configuration } = agreement;
  const life = spent.life || agreement.priceFrom(0);
  return { configuration, ...spent, life, ratings: [], owed: null, seen: unseen(agreement), newest: null, ended: false };
}

function named({ version }: Figures): string {
  return `model-${version}`;
}
