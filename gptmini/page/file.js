// The engine of a page that has its model in itself. A worker computes, so that the page stays responsive.

const engine = (() => {
  const textOf = (id) => document.getElementById(id).textContent;
  const source = ["tokenizer.js", "model.js", "worker.js"].map(textOf).join("");
  // A page from file:// may only start a worker whose code is in the page.
  const worker = new Worker(URL.createObjectURL(new Blob(['"use strict";', source], {type: "text/javascript"})));
  const calls = []; // the calls that the worker has not answered, in order
  worker.onmessage = ({data: {result, error}}) => {
    const {resolve, reject} = calls.shift();
    if (error) reject(Object.assign(new Error(error.message), {code: error.code}));
    else resolve(result);
  };
  worker.onerror = ({message}) => calls.splice(0).forEach(({reject}) => reject(new Error(message)));

  function call(name, argument) {
    worker.postMessage({call: name, argument});
    return new Promise((resolve, reject) => calls.push({resolve, reject}));
  }

  const data = JSON.parse(textOf("data"));
  const texts = document.querySelectorAll("script.tensor");
  const tensors = data.tensors.map((tensor, i) => ({...tensor, text: texts[i].textContent}));
  const loaded = call("load", {config: data.config, tokenizer: data.tokenizer, tensors});
  for (const element of texts) element.remove(); // the worker has a copy

  let last = Promise.resolve(); // ends with the newest answer; the worker writes one answer at a time
  async function* generate(request, options, signal) {
    const before = last;
    let end;
    last = new Promise((resolve) => (end = resolve));
    try {
      await before;
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
    describe: () => loaded.then(() => data.described),
    attention: (request) => call("attention", request),
    defaults: data.described.defaults,
    generate,
  };
})();

// For scripts: await gptmini.generate("Once", {maxNewTokens: 50, temperature: 0}) returns {text, ids}.
window.gptmini = {
  async generate(prompt, {maxNewTokens, temperature, topK, topP, seed} = {}) {
    const options = {
      max_tokens: maxNewTokens ?? engine.defaults.max_tokens,
      temperature: temperature ?? engine.defaults.temperature,
      top_k: topK,
      top_p: topP,
      seed,
    };
    const result = {text: "", ids: []};
    for await (const {text, ids} of engine.generate({prompt}, options)) {
      result.text += text;
      result.ids.push(...ids);
    }
    return result;
  },
};
