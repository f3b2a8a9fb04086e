// Times our program and onnxruntime-web's in turns, on one thread, in one page.

import { load } from "/model.js";
import * as ort from "/ort/ort.wasm.min.mjs";

const plan = await (await fetch("plan.json")).json();

/** Milliseconds of a call, the mean of some in a row. */
async function time(call, calls) {
  const start = performance.now();
  for (let i = 0; i < calls; i++) await call();
  return (performance.now() - start) / calls;
}

function feeds(ids, form) {
  const shape = [1, ids.length];
  const big = (values) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), shape);
  const all = { input_ids: big(ids), positions: big(ids.keys()) };
  if (form === "fused") all.mask = new ort.Tensor("int32", new Int32Array(ids.length).fill(1), shape);
  return all;
}

async function compare() {
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmPaths = "/ort/";
  const results = [];
  for (const { name, lengths, vocabulary } of plan.models) {
    const callers = {};
    for (const isa of plan.isas) {
      const model = await load(`/models/${name}`, isa);
      callers[isa] = (ids) => () => model.logits(ids);
    }
    for (const form of plan.forms) {
      const options = { executionProviders: ["wasm"], graphOptimizationLevel: "all" };
      const session = await ort.InferenceSession.create(`/models/${name}/${form}.onnx`, options);
      callers[form] = (ids) => {
        const given = feeds(ids, form);
        return async () => (await session.run(given))[session.outputNames[0]].data;
      };
    }
    for (const length of lengths) {
      const ids = Array.from({ length }, (_, i) => 5 + ((i * 7919 + 13) % (vocabulary - 5)));
      const calls = Object.entries(callers).map(([caller, of]) => [caller, of(ids)]);
      const result = { model: name, length, logits: {}, times: {} };
      const counts = {};
      for (const [caller, call] of calls) {
        result.logits[caller] = [...(await call())];
        // The compilers have taken notice.
        await time(call, 30);
        counts[caller] = Math.max(1, Math.ceil(plan.milliseconds / (await time(call, 5))));
        result.times[caller] = [];
      }
      for (let round = 0; round < plan.rounds; round++) {
        for (const [caller, call] of calls) result.times[caller].push(await time(call, counts[caller]));
      }
      results.push(result);
    }
  }
  return { results, version: ort.env.versions.web, agent: navigator.userAgent };
}

let result;
try {
  result = await compare();
} catch (error) {
  result = { error: `${error.message}\n${error.stack}` };
}
await fetch("result", { method: "POST", body: JSON.stringify(result) });
