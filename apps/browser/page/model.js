// The classifier: `src/exports.rs` is its other side.

import { Wasi } from "./wasi.js";

/** The instruction sets that there is a program for, the fastest first, and what their engines take. */
const PROGRAMS = { relaxed_simd: [0xfd, 0x85, 0x02], simd128: [0xfd, 0xe4, 0x01] };

/** Whether the engine has an instruction of three vectors, f32x4.relaxed_madd, or two, f32x4.add. */
function has(instruction) {
  const zero = [0x41, 0, 0xfd, 0x0f];
  const operands = instruction[1] === 0x85 ? [zero, zero, zero] : [zero, zero];
  const body = [0, ...operands.flat(), ...instruction, 0x0b];
  return WebAssembly.validate(Uint8Array.from([
    0, 0x61, 0x73, 0x6d, 1, 0, 0, 0, // magic, version
    1, 5, 1, 0x60, 0, 1, 0x7b, // a type: () -> v128
    3, 2, 1, 0, // a function of it
    10, body.length + 2, 1, body.length, ...body,
  ]));
}

/** The contents of a file; addresses are relative to this one. */
async function bytes(url) {
  let response;
  try {
    response = await fetch(new URL(url, import.meta.url));
  } catch (error) {
    throw new Error(`${url}: ${error.message}`);
  }
  if (!response.ok) throw new Error(`${url}: the server answered ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
}

/** Loads the program and a model; `isa` asks for less than the best instruction set. */
export async function load(folder, isa = null) {
  if (typeof WebAssembly !== "object") throw new Error("this browser has no WebAssembly");
  const best = Object.keys(PROGRAMS).find((name) => has(PROGRAMS[name]));
  if (!best) throw new Error("this browser's WebAssembly has no SIMD (simd128), which this page needs");
  if (isa !== null && !(isa in PROGRAMS)) {
    throw new Error(`isa: expected ${Object.keys(PROGRAMS).join(" or ")}, got "${isa}"`);
  }
  const name = `${isa ?? best}.wasm`;
  const files = ["config.json", "tokenizer.json", "model.safetensors"].map((file) => `${folder}/${file}`);
  const [program, ...parts] = await Promise.all([name, ...files].map(bytes));
  const wasi = new Wasi({});
  let instance;
  try {
    ({ instance } = await WebAssembly.instantiate(program, { wasi_snapshot_preview1: wasi.imports }));
  } catch (error) {
    throw new Error(`${name}: expected a WebAssembly program, got: ${error.message}`);
  }
  wasi.start(instance);
  const model = new Model(instance.exports, wasi);
  model.downloaded = [program, ...parts].reduce((sum, part) => sum + part.length, 0);
  const [config, tokenizer] = parts;
  model.state = JSON.parse(model.call("model_open", parts, [config.length, tokenizer.length]));
  return model;
}

class Model {
  #exports;
  #wasi;

  constructor(exports, wasi) {
    this.#exports = exports;
    this.#wasi = wasi;
  }

  /** The classes of a text. */
  classify(text) {
    return JSON.parse(this.call("model_classify", [new TextEncoder().encode(text)]));
  }

  /** The logits of token ids. */
  logits(ids) {
    this.#call("model_logits", [new Uint8Array(Uint32Array.from(ids).buffer)], []);
    return new Float32Array(this.#output().slice().buffer);
  }

  /** The text that a function makes of bytes. */
  call(name, parts, numbers = []) {
    this.#call(name, parts, numbers);
    return new TextDecoder().decode(this.#output());
  }

  #call(name, parts, numbers) {
    const length = parts.reduce((sum, part) => sum + part.length, 0);
    let done;
    try {
      let at = this.#exports.input_room(length);
      for (const part of parts) {
        new Uint8Array(this.#exports.memory.buffer, at, part.length).set(part);
        at += part.length;
      }
      done = this.#exports[name](...numbers);
    } catch (error) {
      throw new Error(this.#wasi.message.trim() || error.message);
    }
    if (!done) throw new Error(new TextDecoder().decode(this.#output()));
  }

  #output() {
    const { memory, output_start, output_length } = this.#exports;
    return new Uint8Array(memory.buffer, output_start() >>> 0, output_length());
  }
}
