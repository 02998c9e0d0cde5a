// The engine of a page that has its model in itself. A worker computes, so that the page stays responsive.

const engine = (() => {
  const textOf = (element) => element.textContent;
  const source = ["tokenizer", "model", "worker"].map((name) => textOf(document.getElementById(`${name}.js`))).join("");
  // A page from file:// may only start a worker whose code is in the page.
  const worker = new Worker(URL.createObjectURL(new Blob(['"use strict";', source], {type: "text/javascript"})));
  const calls = []; // the calls that the worker has not answered, in order
  worker.onmessage = ({data: {result, error}}) => {
    const {resolve, reject} = calls.shift();
    if (error) reject(Object.assign(new Error(error.message), {code: error.code}));
    else resolve(result);
  };

  function call(name, argument) {
    worker.postMessage({call: name, argument});
    return new Promise((resolve, reject) => calls.push({resolve, reject}));
  }

  const data = JSON.parse(textOf(document.getElementById("data")));
  const texts = document.querySelectorAll("script.tensor");
  const tensors = data.tensors.map((tensor, i) => ({...tensor, text: textOf(texts[i])}));
  const loaded = call("load", {config: data.config, tokenizer: data.tokenizer, tensors});
  for (const element of texts) element.remove(); // the worker has a copy

  // Wait for the answer before this one. Return the function that lets the next one start.
  let last = Promise.resolve();
  async function turn() {
    const before = last;
    let end;
    last = new Promise((resolve) => (end = resolve));
    await loaded;
    await before;
    return end;
  }

  async function* generate(request, options, signal) {
    const end = await turn();
    try {
      await call("start", {request, options});
      for (let finish = null; !finish && !signal?.aborted; ) {
        const piece = await call("next");
        yield piece;
        finish = piece.finish;
      }
    } finally {
      end();
    }
  }

  return {
    describe: async () => {
      await loaded;
      return data.described;
    },
    attention: async (request) => {
      const end = await turn();
      return call("attention", request).finally(end);
    },
    logits: (prompt) => call("logits", prompt),
    generate,
  };
})();

// For scripts: await gptmini.generate("Once", {maxNewTokens: 50, temperature: 0}) returns {text, ids}.
const gptmini = {
  async generate(prompt, {maxNewTokens = 100, temperature = 0.8, topK, topP, seed} = {}) {
    const options = {max_tokens: maxNewTokens, temperature, top_k: topK, top_p: topP, seed};
    const result = {text: "", ids: []};
    for await (const {text, ids} of engine.generate({prompt}, options)) {
      result.text += text;
      result.ids.push(...ids);
    }
    return result;
  },
};
window.gptmini = gptmini;
