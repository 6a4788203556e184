/**
 * A connection of the library's own, for waits and for the server's pushes.
 *
 * The drivers' connections do not suit: they repeat or abandon a BLOCK request by their own rules, and their handling
 * of pushes differs between versions. A line never repeats a request; its user decides.
 */

import { connect as connectPlain, type Socket } from "node:net";
import { type ConnectionOptions, connect as connectTls } from "node:tls";

import { now } from "./clock.js";
import { ConnectionFailedError, LateReplyError, ServerRefusedError } from "./errors.js";
import { roleOf } from "./info.js";
import { type Journal, textOf } from "./journal.js";
import { Decoder, encode, Push, type Reply, ReplyError } from "./resp.js";
import { within } from "./stop.js";

/** The address of a server, and the login. */
export interface Endpoint {
  readonly host?: string | undefined;
  readonly port?: number | undefined;
  /** A Unix socket, instead of host and port. */
  readonly path?: string | undefined;
  readonly username?: string | undefined;
  readonly password?: string | undefined;
  readonly database?: number | undefined;
  readonly tls?: ConnectionOptions | undefined;
  /** A connection to a server in this process (redislock/testing). */
  readonly socket?: (() => Socket) | undefined;
}

/** The name of a server. Each server has exactly one name. */
export const nameOf = (endpoint: Endpoint): string => endpoint.path ?? `${endpoint.host}:${endpoint.port ?? 6379}`;

/** The name of a server's database. Each database has exactly one name. */
export const placeOf = (endpoint: Endpoint): string => `${nameOf(endpoint)}/${endpoint.database ?? 0}`;

/** Throws unless this is the reply of a primary to HELLO. */
export function refuseReplica(hello: unknown, address: string): void {
  if (roleOf(hello) === "master") return;
  throw new ReplyError(`READONLY the address ${address} leads to a replica, not to the primary`);
}

/** Returns true if the server, or a proxy in front of it, does not know HELLO or RESP3. */
const isUnknown = (error: unknown): boolean => error instanceof ReplyError && /unknown command|NOPROTO/i.test(error.message);

function noHello(address: string, cause: unknown): ServerRefusedError {
  const why = `${address} does not know HELLO 3, as a proxy may not`;
  return new ServerRefusedError(`${why}: pushes, and waiting for several locks, need RESP3. Connect to the server itself, or use wait: 0`, cause);
}

/** Returns true if the server may want TLS: such a server ends a connection whose first bytes are plain text. */
function mayWantTls({ tls, socket }: Endpoint, error: unknown): boolean {
  return tls === undefined && socket === undefined && /server closed|ECONNRESET|EPIPE/.test(textOf(error));
}

/** The time limit of replies that the server gives at once. */
const ANSWER_MS = 2000;

interface Waiting {
  resolve: (reply: Reply) => void;
  reject: (error: Error) => void;
}

export class Line {
  /** Handles a push; undefined if there is no listener. */
  onPush: ((push: Push) => void) | undefined;
  /** Called once, when the connection has ended. */
  onEnd: (() => void) | undefined;
  #socket: Socket;
  #decoder = new Decoder();
  #waiting: Waiting[] = [];
  #ended: Error | undefined;

  private constructor(
    socket: Socket,
    readonly endpoint: Endpoint,
  ) {
    this.#socket = socket;
    socket.setNoDelay(true);
    // The process stays alive for what a caller awaits (`awake`), not for a connection.
    socket.unref();
    socket.setKeepAlive(true, 10_000);
    socket.on("data", (chunk) => this.#hear(chunk));
    socket.on("error", (error) => this.#end(error));
    socket.on("close", () => this.#end(new Error("the server closed the connection")));
  }

  /** Connects, logs in and checks that the server is a primary. Fails after `limit` milliseconds. */
  static async open(endpoint: Endpoint, limit: number, journal?: Journal): Promise<Line> {
    const { host = "127.0.0.1", port = 6379, path, tls } = endpoint;
    const where = path === undefined ? { host, port } : { path };
    const socket = endpoint.socket?.() ?? (tls === undefined ? connectPlain(where) : connectTls({ ...tls, ...where }));
    const line = new Line(socket, endpoint);
    try {
      const late = () => new LateReplyError(`no reply from ${nameOf(endpoint)} for ${limit / 1000} s`);
      await within(line.#logIn(endpoint, journal), now() + limit, late);
      return line;
    } catch (error) {
      line.close();
      throw error;
    }
  }

  async #logIn(endpoint: Endpoint, journal: Journal | undefined): Promise<void> {
    const { username = "default", password, database } = endpoint;
    const words = ["HELLO", "3"];
    if (password !== undefined) words.push("AUTH", username, password);
    const hello = this.ask([...words, "SETNAME", "redislock"]);
    const selected = database ? this.ask(["SELECT", String(database)]) : undefined;
    selected?.catch(() => undefined);
    const greeting = await hello.catch((error: unknown) => {
      if (isUnknown(error)) throw noHello(nameOf(endpoint), error);
      if (!mayWantTls(endpoint, error)) throw error;
      throw new ConnectionFailedError(`${textOf(error)} on the first request: if it wants TLS, set that in your client`, error);
    });
    journal?.greeted(nameOf(endpoint), greeting);
    refuseReplica(greeting, nameOf(endpoint));
    await selected;
  }

  /** Rejects unless the server is a primary now. */
  async seePrimary(): Promise<void> {
    refuseReplica(await this.askSoon(["HELLO"]), nameOf(this.endpoint));
  }

  /** Like `ask`, for requests that are answered at once. If no reply arrives in time, the connection is closed. */
  askSoon(words: readonly string[]): Promise<Reply> {
    return within(this.ask(words), now() + ANSWER_MS, () => {
      this.close();
      return new ConnectionFailedError(`no reply from ${nameOf(this.endpoint)} for ${ANSWER_MS / 1000} s`);
    });
  }

  /** Sends a command. Resolves with its reply, rejects with the server's error or the connection's. */
  ask(words: readonly string[]): Promise<Reply> {
    if (this.#ended !== undefined) return Promise.reject(this.#ended);
    return new Promise((resolve, reject) => {
      this.#waiting.push({ resolve, reject });
      this.#socket.write(encode(words));
    });
  }

  get isOpen(): boolean {
    return this.#ended === undefined;
  }

  close(): void {
    this.#end(new Error("the connection was closed"));
  }

  #hear(chunk: Buffer): void {
    try {
      for (const reply of this.#decoder.feed(chunk)) this.#take(reply);
    } catch (error) {
      this.#end(error instanceof Error ? error : new Error(String(error)));
    }
  }

  #take(reply: Reply): void {
    if (reply instanceof Push) {
      this.onPush?.(reply);
      return;
    }
    const first = this.#waiting.shift();
    if (first === undefined) throw new Error("the server replied to nothing");
    if (reply instanceof ReplyError) first.reject(reply);
    else first.resolve(reply);
  }

  #end(error: Error): void {
    if (this.#ended !== undefined) return;
    this.#ended = new ConnectionFailedError(`${nameOf(this.endpoint)}: ${error.message}`, error);
    this.#socket.destroy();
    for (const each of this.#waiting.splice(0)) each.reject(this.#ended);
    this.onEnd?.();
  }
}
