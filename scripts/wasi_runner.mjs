// Runs a test program for wasm32-wasip1: `node wasi_runner.mjs PROGRAM [ARGUMENT]...`
//
// It sees the repository and nothing else of the disk, and all environment variables.

import { readFile } from "node:fs/promises";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { setFlagsFromString } from "node:v8";
import { WASI } from "node:wasi";

// A function that ends with f32x4.relaxed_madd: Node 20 has it behind a flag.
const zero = [0x41, 0, 0xfd, 0x0f];
const body = [0, ...zero, ...zero, ...zero, 0xfd, 0x85, 0x02, 0x0b];
const relaxed = Uint8Array.from([
  0, 0x61, 0x73, 0x6d, 1, 0, 0, 0, // magic, version
  1, 5, 1, 0x60, 0, 1, 0x7b, // type: () -> v128
  3, 2, 1, 0, // one function of it
  10, body.length + 2, 1, body.length, ...body,
]);
if (!WebAssembly.validate(relaxed)) {
  setFlagsFromString("--experimental-wasm-relaxed-simd");
}

const [program, ...rest] = process.argv.slice(2);
const repository = dirname(dirname(resolve(fileURLToPath(import.meta.url))));
const wasi = new WASI({
  version: "preview1",
  args: [program, ...rest],
  env: process.env,
  preopens: { [repository]: repository },
});
const module = await WebAssembly.compile(await readFile(program));
const instance = await WebAssembly.instantiate(module, wasi.getImportObject());
process.exitCode = wasi.start(instance);
