// What a program for WASI asks of its system, as far as a page has it: a clock, random bytes, an
// environment, and standard error, of which the last message is kept. There are no files.

const SUCCESS = 0;
const BAD_DESCRIPTOR = 8;
const NOT_THERE = 52;

export class Wasi {
  /** @param {Record<string, string>} environment */
  constructor(environment) {
    const encoder = new TextEncoder();
    this.environment = Object.entries(environment).map((pair) => encoder.encode(`${pair.join("=")}\0`));
    this.message = "";
    this.memory = null;
  }

  /** Starts a reactor. */
  start(instance) {
    this.memory = instance.exports.memory;
    instance.exports._initialize?.();
  }

  get #view() {
    return new DataView(this.memory.buffer);
  }

  #bytes(start, length) {
    return new Uint8Array(this.memory.buffer, start, length);
  }

  /** The imports; a function that is not here says that the system does not have it. */
  get imports() {
    const functions = {
      clock_time_get: (_clock, _precision, to) => {
        this.#view.setBigUint64(to, BigInt(Math.round(performance.now() * 1e6)), true);
        return SUCCESS;
      },
      environ_get: (pointers, to) => {
        for (const entry of this.environment) {
          this.#view.setUint32(pointers, to, true);
          this.#bytes(to, entry.length).set(entry);
          pointers += 4;
          to += entry.length;
        }
        return SUCCESS;
      },
      environ_sizes_get: (count, bytes) => {
        const total = this.environment.reduce((sum, entry) => sum + entry.length, 0);
        this.#view.setUint32(count, this.environment.length, true);
        this.#view.setUint32(bytes, total, true);
        return SUCCESS;
      },
      fd_prestat_get: () => BAD_DESCRIPTOR,
      fd_write: (descriptor, parts, count, written) => {
        let total = 0;
        for (let part = parts; part < parts + 8 * count; part += 8) {
          const [start, length] = [this.#view.getUint32(part, true), this.#view.getUint32(part + 4, true)];
          if (descriptor === 2) this.message += new TextDecoder().decode(this.#bytes(start, length));
          total += length;
        }
        this.message = this.message.slice(-4096);
        this.#view.setUint32(written, total, true);
        return SUCCESS;
      },
      proc_exit: (code) => {
        throw new Error(`the program ended with ${code}: ${this.message.trim()}`);
      },
      random_get: (to, length) => {
        for (let at = 0; at < length; at += 65536) {
          crypto.getRandomValues(this.#bytes(to + at, Math.min(65536, length - at)));
        }
        return SUCCESS;
      },
      sched_yield: () => SUCCESS,
    };
    return new Proxy(functions, { get: (own, name) => own[name] ?? (() => NOT_THERE) });
  }
}
