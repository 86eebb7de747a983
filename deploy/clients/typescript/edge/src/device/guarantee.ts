import type { AgreementFile } from "../agreement.js";

/** What is promised in the agreement's own figures and words, and what a device cannot know. */
export function guaranteeText({ promise, terms, slot }: AgreementFile): string[] {
  const [took, which] = [promise.epsilon_micro / 1e6, promise.exchange_epsilon_micro / 1e6];
  const [delta, other] = [deltaOf(promise.delta_units), deltaOf(promise.exchange_delta_units)];
  return [
    `Which of two things you did: epsilon ${which}, delta ${other}, over your whole life on this device.`,
    `Whether what you gave held anything: epsilon ${took}, delta ${delta}. That you took part, how often and when is public.`,
    `What leaves: at most ${counted(promise.lifetime_slots)} of ${slot.body_bytes} bytes, each after ${terms.after_interactions} ` +
      "decisions, whatever you saw or clicked; and requests for the model, the same for everybody while the aggregator is honest.",
    "Not protected: that a slot came from this address, and when; what the network and the browser tell of themselves.",
    "What the device cannot know: whether its storage was cleared, or the same person uses other devices or browsers. " +
      "Each is another person to it, with a life and a price of its own: D of them cost D times the epsilon. Where its state " +
      "was cleared and its mark was not, or an older state was restored, it goes on from what the mark says was spent; an " +
      "older state with an older mark numbers its slots as before, and the shuffler counts each number once.",
    "Computational: against parties without the keys of this device and of the shuffler.",
    ...promise.text,
  ];
}

function counted(slots: number): string {
  return slots === 1 ? "1 slot" : `${slots} slots`;
}

function deltaOf(units: string): string {
  const delta = Number(BigInt(units)) / 2 ** 80;
  return delta === 0 ? "0" : delta.toPrecision(2);
}
