import type { Agreement } from "../agreement.js";
import type { SharedModel } from "../agent.js";
import { hex } from "../encoding.js";
import { SparseModel } from "../learner/sparse.js";
import { MOST_HEAD, expect, signedBy, type Own, type SeenModel, type Stated } from "./model.js";

/** An accepted model of P2B, and its content for the device's store. */
export interface TakenModel {
  readonly shared: SharedModel;
  readonly rewardVariance: number;
  readonly content: Uint8Array;
  readonly seen: SeenModel;
}

interface Statement extends Stated {
  readonly arms: number;
  readonly cells: number;
  readonly layout: string;
  readonly reward_variance: number;
}

const OWN: Own = { whole: ["arms", "cells"], others: ["layout", "reward_variance"] };

/** Check and decode a model, or refuse it; see `signedBy`. */
export async function takeModel(
  agreement: Agreement,
  known: SeenModel,
  body: Uint8Array,
  tag: string | null,
  nowMs: number,
): Promise<TakenModel> {
  const { said, content, seen } = await signedBy<Statement>(agreement, known, body, tag, nowMs, OWN);
  const { layout } = agreement;
  const shape = said.arms === layout.arms && said.cells === layout.cells;
  expect(shape && said.layout === hex(layout.digest), "the layout agreed to");
  expect(typeof said.reward_variance === "number", "a number as reward_variance");
  const model = modelOf(agreement, content, said.reward_variance);
  return { shared: { version: said.version, model }, rewardVariance: said.reward_variance, content, seen };
}

/** The largest possible body of a model, in bytes. */
export function longestModel({ layout: { arms, cells } }: Agreement): number {
  return 16 * arms * cells + MOST_HEAD;
}

/** Decode a model's content: means, then variances, float64 of shape (arms, cells). */
export function modelOf(agreement: Agreement, content: Uint8Array, rewardVariance: number): SparseModel {
  const { arms, cells } = agreement.layout;
  expect(content.length === 16 * arms * cells, `content of ${16 * arms * cells} bytes`);
  const view = new DataView(content.buffer, content.byteOffset, content.length);
  const numbers = Float64Array.from({ length: 2 * arms * cells }, (_, place) => view.getFloat64(8 * place, true));
  return SparseModel.of(arms, cells, numbers.subarray(0, arms * cells), numbers.subarray(arms * cells), rewardVariance);
}
