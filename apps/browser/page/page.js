// The page: a field, the classes of what is in it, and what they took.

import { load } from "./model.js";

/** Classes that are shown, and latencies that the median is of. */
const SHOWN = 5;
const KEPT = 101;

const at = (id) => document.getElementById(id);
const latencies = [];

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

const milliseconds = (value) => `${value.toFixed(2)} ms`;
const megabytes = (value) => `${(value / 1e6).toFixed(2)} MB`;

function show(answer) {
  const rows = answer.classes.slice(0, SHOWN).map(({ label, probability }) => {
    const row = document.createElement("li");
    const bar = document.createElement("progress");
    bar.value = probability;
    bar.setAttribute("aria-label", `probability of ${label}`);
    row.append(element("span", label), bar, element("span", `${(100 * probability).toFixed(1)} %`));
    return row;
  });
  at("classes").replaceChildren(...rows);
  at("note").textContent = answer.cut ? `Only the first ${answer.tokens} tokens are read.` : "";
  at("note").classList.remove("alert");
}

function classify(model) {
  const start = performance.now();
  try {
    const answer = model.classify(at("text").value);
    latencies.push(performance.now() - start);
    show(answer);
  } catch (error) {
    at("classes").replaceChildren();
    at("note").textContent = error.message;
    at("note").classList.add("alert");
    return;
  }
  if (latencies.length > KEPT) latencies.shift();
  const sorted = [...latencies].sort((a, b) => a - b);
  at("latency").textContent = milliseconds(latencies.at(-1));
  at("median").textContent = `${milliseconds(sorted[sorted.length >> 1])} of ${sorted.length}`;
}

function report({ isa, layers, float_bytes, bytes }, downloaded) {
  const number = (value) => value.toLocaleString("en");
  const rows = layers.map((layer) => {
    const row = document.createElement("tr");
    const cells = [layer.kind, layer.shape.join(" × "), layer.dtype, number(layer.float_bytes), number(layer.bytes)];
    const head = element("th", layer.path);
    head.scope = "row";
    row.append(head, ...cells.map((text) => element("td", text)));
    return row;
  });
  at("layers").replaceChildren(...rows);
  at("float-bytes").textContent = number(float_bytes);
  at("bytes").textContent = number(bytes);
  at("weights").textContent = `${megabytes(bytes)}, f32 ${megabytes(float_bytes)}`;
  at("download").textContent = megabytes(downloaded);
  at("isa").textContent = isa;
}

try {
  const model = await load("model", new URLSearchParams(location.search).get("isa"));
  report(model.state, model.downloaded);
  at("status").textContent = "";
  at("text").disabled = false;
  at("text").addEventListener("input", () => classify(model));
  // Engines compile what is called for the first time.
  model.classify(at("text").value);
  classify(model);
  document.documentElement.dataset.ready = "yes";
} catch (error) {
  at("status").textContent = `The model cannot be loaded: ${error.message}`;
  at("status").classList.add("alert");
  document.documentElement.dataset.ready = "no";
}
