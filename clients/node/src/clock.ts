/** Deadlines: pure arithmetic in milliseconds of the process's monotonic clock. */

/** Milliseconds of a clock that nobody sets. */
export const now = (): number => performance.now();

/** What two clocks may differ by over a lease: 1 % of it, and 2 ms for their ticks. */
export const allowance = (lease: number): number => lease / 100 + 2;

/** Until when a lease surely lasts on the server, if the request for it was sent at `sentAt`. */
export const deadlineOf = (sentAt: number, lease: number): number => sentAt + lease - allowance(lease);

/** When the next renewal is due: a third of the lease after the last one was sent. */
export const renewalOf = (sentAt: number, lease: number): number => sentAt + lease / 3;

/** How long to pause before another attempt: 50 ms, doubled each time, 1 s at most. */
export const pauseBefore = (attempt: number): number => Math.min(50 * 2 ** Math.min(attempt, 5), 1000);
