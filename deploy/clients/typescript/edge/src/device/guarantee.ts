import type { AgreementFile } from "../agreement.js";

/** What is promised in the agreement's own figures and words, and what a device cannot know. */
export function guaranteeText({ promise, terms, slot }: AgreementFile): string[] {
  const [none, which] = [promise.epsilon_micro / 1e6, promise.exchange_epsilon_micro / 1e6];
  const [delta, other] = [deltaOf(promise.delta_units), deltaOf(promise.exchange_delta_units)];
  return [
    `One report for another (replace-one): epsilon ${which}, delta ${other}, over your whole life on this device.`,
    `A report for none (zero-out): epsilon ${none}, delta ${delta}. Participation is public: that you took part, how often and when.`,
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

/** Two digits, rounded up: a smaller delta would promise more than holds. */
function deltaOf(units: string): string {
  const delta = Number(BigInt(units)) / 2 ** 80;
  if (delta === 0) return "0";
  const step = 10 ** (Math.floor(Math.log10(delta)) - 1);
  return (Math.ceil(delta / step) * step).toPrecision(2);
}
