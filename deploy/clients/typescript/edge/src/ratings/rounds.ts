import { MOST_HEAD, expect, signedBy, type Own, type SeenModel, type Stated } from "../device/model.js";
import { ROUNDS, type RatingAgreement } from "./agreement.js";

export type Kind = "items" | "pairs" | "factors";
const KINDS: readonly Kind[] = ["items", "pairs", "factors"];

/** The model for predictions and slots: biases of items, and their factors row by row, (items, width). */
export interface Model {
  readonly biases: Float64Array;
  readonly factors: Float64Array;
  readonly width: number;
}

/** A round: what the server asks of each user. */
export interface Asked {
  readonly number: number;
  readonly kind: Kind;
  readonly model: Model;
  /** For kind pairs: the items, and the factors by which their residuals are multiplied. */
  readonly top: Int32Array;
  readonly gains: Float64Array;
}

/** The content of a version; `asked` is null if no further round follows. */
export interface Version {
  readonly model: Model;
  readonly asked: Asked | null;
}

/** The fields of a statement that only this system has. */
export interface Figures {
  readonly version: number;
  readonly kind: string;
  readonly factors: number;
  readonly top: number;
}

/** An accepted version, and its content for the device's store. */
export interface TakenVersion {
  readonly version: Version;
  readonly figures: Figures;
  readonly content: Uint8Array;
  readonly seen: SeenModel;
}

const OWN: Own = { whole: ["factors", "top"], others: ["kind"] };

/** The version before any model: the first round is open. */
export function firstVersion({ settings }: RatingAgreement): Version {
  const model = { biases: new Float64Array(settings.items), factors: new Float64Array(0), width: 0 };
  return { model, asked: { number: 0, kind: "items", model, top: new Int32Array(0), gains: new Float64Array(0) } };
}

/** Check and decode a version and the round that it opens, or refuse it; see `signedBy`. */
export async function takeVersion(
  agreement: RatingAgreement,
  known: SeenModel,
  body: Uint8Array,
  tag: string | null,
  nowMs: number,
): Promise<TakenVersion> {
  const { said, content, seen } = await signedBy<Stated & Figures>(agreement, known, body, tag, nowMs, OWN);
  const { version, kind, factors, top } = said;
  const figures = { version, kind, factors, top };
  return { version: versionOf(agreement, figures, content), figures, content, seen };
}

/** The largest possible body of a version, in bytes. */
export function longestVersion({ settings: { items, release }, top }: RatingAgreement): number {
  return 8 * items * (1 + release.factors) + 12 * top + MOST_HEAD;
}

/** Decode a version's content: biases and factors (float64), the items of pairs (int32), their gains (float64). */
export function versionOf(agreement: RatingAgreement, said: Figures, content: Uint8Array): Version {
  const { items, release } = agreement.settings;
  const { version: number, kind, factors: width, top } = said;
  expect(width <= release.factors && [0, agreement.top].includes(top), "factors and items as the settings have them");
  const size = 8 * items * (1 + width) + 12 * top;
  expect(content.length === size, `content of ${size} bytes`);
  const view = new DataView(content.buffer, content.byteOffset, content.length);
  const floats = (from: number, count: number): Float64Array =>
    Float64Array.from({ length: count }, (_, place) => view.getFloat64(from + 8 * place, true));
  const model = { biases: floats(0, items), factors: floats(8 * items, items * width), width };
  expect([model.biases, model.factors].every((one) => one.every(Number.isFinite)), "finite numbers");
  if (kind === "none") return { model, asked: null };
  const isLast = number === ROUNDS - 1 && kind === "items";
  expect(number < ROUNDS && (KINDS[number] === kind || isLast), "a kind of slots of its round");
  expect(width > 0 === (kind === "factors"), "factors where slots of factors are asked for, and nowhere else");
  const at = 8 * items * (1 + width);
  const asked = Int32Array.from({ length: top }, (_, place) => view.getInt32(at + 4 * place, true));
  const gains = floats(at + 4 * top, top);
  const isKnown = asked.every((item) => item >= 0 && item < items) && new Set(asked).size === top;
  expect(top === (kind === "pairs" ? agreement.top : 0) && isKnown, "known items for pairs, each once");
  expect(gains.every((gain) => Number.isFinite(gain) && gain > 0), "gains above 0");
  return { model, asked: { number, kind: kind as Kind, model, top: asked, gains } };
}
