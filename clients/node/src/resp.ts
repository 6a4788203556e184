/** RESP3, as far as the library's own connections need it. Pure. */

/** An error reply of the server. */
export class ReplyError extends Error {}

/** A message that the server sends unasked. */
export class Push {
  constructor(readonly items: readonly Reply[]) {}
}

export type Reply = string | number | boolean | null | ReplyError | Push | Reply[];

/** More than any reply that the library asks for. A longer one comes from no sane server. */
const LONGEST = 1 << 24;
const DEEPEST = 8;

/** Encodes a command for the server. */
export function encode(words: readonly string[]): string {
  let text = `*${words.length}\r\n`;
  for (const word of words) text += `$${Buffer.byteLength(word)}\r\n${word}\r\n`;
  return text;
}

/** Takes bytes as they arrive, and returns whole replies. */
export class Decoder {
  #bytes: Buffer = Buffer.alloc(0);
  #at = 0;

  /** Adds bytes and returns the replies that are complete now. Throws if this is not RESP. */
  feed(chunk: Buffer): Reply[] {
    this.#bytes = this.#bytes.length === 0 ? chunk : Buffer.concat([this.#bytes, chunk]);
    if (this.#bytes.length > LONGEST) throw new Error("the server's reply is too long");
    const replies: Reply[] = [];
    let whole = 0;
    this.#at = 0;
    while (this.#at < this.#bytes.length) {
      const reply = this.#read(0);
      if (reply === undefined) break;
      replies.push(reply);
      whole = this.#at;
    }
    this.#bytes = this.#bytes.subarray(whole);
    return replies;
  }

  /** Returns the next reply; undefined if bytes are missing. */
  #read(depth: number): Reply | undefined {
    if (depth > DEEPEST) throw new Error("the server's reply is nested too deeply");
    const line = this.#line();
    if (line === undefined) return undefined;
    const rest = line.slice(1);
    switch (line[0]) {
      case "+":
      case "(":
        return rest;
      case "-":
        return new ReplyError(rest);
      case ":":
      case ",":
        return Number(rest);
      case "#":
        return rest === "t";
      case "_":
        return null;
      case "$":
      case "=":
      case "!":
        return this.#bulk(Number(rest), line[0]);
      case "*":
      case "~":
        return rest === "-1" ? null : this.#items(Number(rest), depth);
      case "%":
        return this.#items(2 * Number(rest), depth);
      case ">": {
        const items = this.#items(Number(rest), depth);
        return items && new Push(items);
      }
      case "|": {
        // Attributes precede the reply that they describe, and contain nothing that is needed here.
        return this.#items(2 * Number(rest), depth) && this.#read(depth + 1);
      }
      default:
        throw new Error(`the server does not speak RESP: ${line.slice(0, 20)}`);
    }
  }

  #line(): string | undefined {
    const end = this.#bytes.indexOf("\r\n", this.#at);
    if (end < 0) return undefined;
    const line = this.#bytes.toString("utf8", this.#at, end);
    this.#at = end + 2;
    return line;
  }

  #bulk(length: number, type: string): Reply | undefined {
    if (length === -1) return null;
    if (!(length >= 0 && length <= LONGEST)) throw new Error("the server's reply is too long");
    const end = this.#at + length;
    if (this.#bytes.length < end + 2) return undefined;
    const text = this.#bytes.toString("utf8", this.#at, end);
    this.#at = end + 2;
    if (type === "!") return new ReplyError(text);
    return type === "=" ? text.slice(4) : text;
  }

  #items(count: number, depth: number): Reply[] | undefined {
    if (!(count >= 0 && count <= LONGEST)) throw new Error("the server's reply is too long");
    const items: Reply[] = [];
    for (let number = 0; number < count; number++) {
      const item = this.#read(depth + 1);
      if (item === undefined) return undefined;
      items.push(item);
    }
    return items;
  }
}
