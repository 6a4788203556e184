// The examples of README.md and of examples/clients compile under strict settings, run, and print what they say.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { startServer } from "./servers.mjs";

const run = promisify(execFile);
const tsc = createRequire(import.meta.url).resolve("typescript/bin/tsc");
const at = (path) => fileURLToPath(new URL(path, import.meta.url));
const folder = at("../test-build/readme");

const readme = readFileSync(at("../README.md"), "utf8");
const shown = [...readme.matchAll(/^```ts\n(.*?)^```$/gms)].map(([, text]) => text);
const programs = readdirSync(at("../examples")).map((name) => readFileSync(at(`../examples/${name}`), "utf8"));
const examples = [...shown, ...programs];

test("the examples run, and print what they say", async (t) => {
  assert.ok(shown.length >= 6, `${shown.length} examples were found`);
  assert.ok(programs.length >= 3, `${programs.length} programs were found`);
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  const servers = await Promise.all([0, 1, 2].map(() => startServer(t)));
  const addressOf = {
    "127.0.0.1:6379": servers[0].address,
    "127.0.0.1:7001": servers[0].address,
    "127.0.0.1:7002": servers[1].address,
    "127.0.0.1:7003": servers[2].address,
  };
  const placed = (text) => text.replace(/127\.0\.0\.1:\d+/g, (address) => addressOf[address]);
  examples.forEach((text, number) => {
    writeFileSync(`${folder}/${number}.mts`, placed(text));
  });
  const options = {
    target: "es2022",
    module: "nodenext",
    lib: ["es2022", "esnext.disposable"],
    types: ["node"],
    strict: true,
    exactOptionalPropertyTypes: true,
    skipLibCheck: true,
  };
  writeFileSync(`${folder}/tsconfig.json`, JSON.stringify({ compilerOptions: options, include: ["*.mts"] }));
  const compiled = await run(process.execPath, [tsc, "-p", folder]).catch((error) => error);
  assert.equal(compiled.stdout, "");
  await servers[0].admin.call("SET", "in", "use");
  const env = { ...process.env, REDISLOCK_EXAMPLES: "anywhere" };
  for (const [number, text] of examples.entries()) {
    if (number >= shown.length) {
      const refused = await run(process.execPath, [`${folder}/${number}.mjs`], { timeout: 30_000 }).catch((error) => error);
      assert.match(String(refused.stderr), /has keys already: use an empty server/);
    }
    const { stdout } = await run(process.execPath, [`${folder}/${number}.mjs`], { timeout: 30_000, env });
    const expected = [...text.matchAll(/\/\/ prints: (.*)$/gm)].map(([, line]) => line);
    assert.deepEqual(stdout.split("\n").filter(Boolean), expected, text);
  }
});

test("the README names the oldest versions of the drivers that the package takes", () => {
  const { peerDependencies } = JSON.parse(readFileSync(at("../package.json"), "utf8"));
  const oldest = (driver) => peerDependencies[driver].replace(/^>=/, "").replace(/(\.0)+$/, "");
  const said = readme.replaceAll(/\s+/g, " ");
  assert.ok(said.includes(`ioredis ${oldest("ioredis")} or later, node-redis ${oldest("redis")} or later`));
});
