// Uses the page as a reader would, and asks its program for the logits of all texts.

const plan = await (await fetch("plan.json")).json();

async function frame(url) {
  const frame = document.createElement("iframe");
  frame.src = url;
  document.body.append(frame);
  while (!frame.contentDocument?.documentElement?.dataset.ready) {
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  return frame.contentDocument;
}

/** What a page shows of each text that is typed. */
async function type(isa) {
  const page = await frame(`/?isa=${isa}`);
  const text = (id) => page.getElementById(id).textContent;
  const shown = plan.typed.map((typed) => {
    const field = page.getElementById("text");
    field.value = typed;
    field.dispatchEvent(new page.defaultView.Event("input"));
    const rows = [...page.querySelectorAll("#classes li")].map((row) => row.textContent);
    return { rows, note: text("note"), latency: text("latency"), median: text("median") };
  });
  const facts = Object.fromEntries(
    ["status", "weights", "download", "isa", "bytes", "float-bytes"].map((id) => [id, text(id)]),
  );
  return { shown, facts, layers: page.querySelectorAll("#layers tr").length };
}

async function answers(isa) {
  const { load } = await import("/model.js");
  const model = await load("/model", isa);
  return { state: model.state, answers: plan.texts.map((text) => model.classify(text)) };
}

let result;
try {
  result = {};
  for (const isa of plan.isas) result[isa] = { page: await type(isa), ...(await answers(isa)) };
  result.faults = {};
  for (const url of plan.faults) {
    const page = await frame(url);
    result.faults[url] = page.getElementById("status").textContent;
  }
} catch (error) {
  result = { error: `${error.message}\n${error.stack}` };
}
await fetch("result", { method: "POST", body: JSON.stringify(result) });
