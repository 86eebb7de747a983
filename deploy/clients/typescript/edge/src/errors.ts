/** The base of all errors of this package. The message says what was expected and what came, never a payload. */
export class EdgeError extends Error {
  override readonly name: string = "EdgeError";
}

/** A value does not have its feature's type, or its name is no declared feature. */
export class BadValue extends EdgeError {
  override readonly name = "BadValue";
}

/** Something that the operator published (an agreement, a model, keys) does not fit what was agreed to. */
export class Refused extends EdgeError {
  override readonly name = "Refused";
}

/** The content of the device's store was not written by this package, or is damaged. */
export class BadState extends EdgeError {
  override readonly name = "BadState";
}

/** Throw `Refused` unless `good`. */
export function require(place: string, good: boolean, what: string): void {
  if (!good) throw new Refused(`${place}: expected ${what}, got another`);
}
