/** The program's signals. One may end all of its requests, and Node would report a leak if each added a listener. */

interface Follower {
  readonly calls: Set<() => void>;
  readonly listener: () => void;
}

const FOLLOWERS = new WeakMap<AbortSignal, Follower>();

function follow(signal: AbortSignal): Follower {
  const calls = new Set<() => void>();
  const listener = () => {
    for (const call of [...calls]) call();
  };
  signal.addEventListener("abort", listener, { once: true });
  const follower: Follower = { calls, listener };
  FOLLOWERS.set(signal, follower);
  return follower;
}

/**
 * Calls this when the signal is aborted. Returns a function that stops that. Does nothing if the signal is already
 * aborted.
 */
export function onAbort(signal: AbortSignal, call: () => void): () => void {
  const { calls, listener } = FOLLOWERS.get(signal) ?? follow(signal);
  calls.add(call);
  return () => {
    if (!calls.delete(call) || calls.size > 0) return;
    FOLLOWERS.delete(signal);
    signal.removeEventListener("abort", listener);
  };
}
