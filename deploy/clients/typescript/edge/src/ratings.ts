/* The package's second entry: devices of BGTplanner, whose users rate. */

export { BadState, EdgeError, Refused } from "./errors.js";
export { RatingAgreement, type RatingAgreementFile } from "./ratings/agreement.js";
export { RatingDevice, type RatingOptions } from "./ratings/device.js";
export type { OpenOptions, Round } from "./device/options.js";
export { browserMark, browserStore, type Mark, type Store } from "./device/store.js";
export type { Sent } from "./device/wire.js";
