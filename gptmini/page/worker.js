// The worker: it receives the model from the page, and draws a token for each message "next".

const MOST_SHOWN = 64; // maximum number of tokens for which attention is shown
const MOST_ATTENDED = 1024; // maximum number of tokens that are read for it
const N_LIKELIEST = 10; // number of alternatives of a token
const AT_ONCE = 16; // tokens of a prompt between two messages, so that a reader can stop a long prompt
let model = null;
let tokenizer = null;
let sample = null; // the text that is being continued

// Functions that the page calls. Each has one argument and returns what is sent back.
const CALLS = {
  load({config, tokenizer: settings, tensors}) {
    tokenizer = new Tokenizer(settings);
    model = new Model(config, Object.fromEntries(tensors.map((tensor) => [tensor.name, arrayOf(tensor)])));
  },

  // Start an answer. request and options are those of engine.generate.
  start({request, options}) {
    const {temperature = 1, top_k = 0, top_p = 1, seed, max_tokens = Infinity} = options;
    if (!(temperature >= 0)) throw new Error(`temperature must be at least 0, got ${temperature}`);
    const longest = model.config.longest_input;
    const ids = idsOf(request);
    let most = max_tokens;
    if (request.messages) {
      if (ids.length > longest) {
        const problem = `the chat must have at most ${longest} tokens, got ${ids.length}`;
        const fix = "shorten the message or the system message";
        throw Object.assign(new Error(`${problem}; ${fix}`), {code: "context_length_exceeded"});
      }
      // The model must see the whole chat until the answer ends. It does not read the last token of the answer.
      most = Math.min(most, longest - ids.length + 1);
    }
    sample = {
      ids: [...ids],
      n_left: most,
      capacity: Math.min(longest, ids.length + most),
      temperature, top_k, top_p,
      random: generator(seed ?? crypto.getRandomValues(new Uint32Array(1))[0]),
      decoder: new TextDecoder("utf-8", {ignoreBOM: true}),
      leading: request.messages && request.messages.at(-1).role === "user" ? tokenizer.chat.leading : "",
    };
    fill(sample.ids.slice(-sample.capacity));
  },

  // Return the next piece {text, tokens, ids, finish}. It has no token while the prompt is read.
  next() {
    const {ids, capacity, decoder} = sample;
    if (model.ids.length === capacity) fill(ids.slice(-Math.max(1, Math.floor(capacity / 2))));
    for (const id of sample.waiting.splice(0, AT_ONCE)) model.step(id);
    if (sample.waiting.length) return {text: "", tokens: [], ids: [], finish: null};

    const logits = model.unembed(model.step(ids.at(-1)));
    const ordered = logits.slice().sort().reverse();
    if (Number.isNaN(ordered[0])) throw new Error("logits must be finite, got NaN; the model diverged");
    const id = choose(logits, ordered, sample);
    ids.push(id);
    sample.n_left--;
    const ends = tokenizer.ends.includes(id);
    let finish = null;
    if (ends) finish = "end_of_text";
    else if (sample.n_left <= 0) finish = "length";

    let text = ends ? "" : decoder.decode(bytesToArray(tokenizer.tokens[id] ?? ""), {stream: true});
    if (finish) text += decoder.decode();
    if (text) {
      if (text.startsWith(sample.leading)) text = text.slice(sample.leading.length);
      sample.leading = "";
    }
    return {text, tokens: [describe(logits, ordered, id)], ids: [id], finish};
  },

  // Return the attention between the last tokens of a text or a chat.
  attention(request) {
    const ids = idsOf(request);
    const {longest_input, n_layers, n_heads} = model.config;
    const attended = ids.slice(-Math.min(longest_input, MOST_ATTENDED));
    const first = Math.max(0, attended.length - MOST_SHOWN);
    const weights = Array.from({length: n_layers}, () => Array.from({length: n_heads}, () => []));
    const width = attended.length - first;
    const rounded = (row) => Array.from({length: width}, (_, j) => Math.round((row[first + j] ?? 0) * 1000) / 1000);

    const reader = new Model(model.config, model.tensors); // the cache of an answer stays as it is
    attended.forEach((id, i) => {
      reader.step(id, i < first ? undefined : (layer, head, row) => weights[layer][head].push(rounded(row)));
    });
    return {tokens: attended.slice(first).map((id) => tokenizer.textOf(id)), n_tokens: ids.length, weights};
  },
};

self.onmessage = ({data: {call, argument}}) => {
  try {
    self.postMessage({result: CALLS[call](argument)});
  } catch (error) {
    self.postMessage({error: {message: error.message, code: error.code}});
  }
};

function idsOf(request) {
  return request.messages ? tokenizer.chatIds(request.messages) : tokenizer.promptIds(request.prompt);
}

// Let the model read these ids, except the newest id, which a step adds. It may have read the first of them already.
function fill(window) {
  let n_same = 0;
  while (n_same < window.length - 1 && model.ids[n_same] === window[n_same]) n_same++;
  model.keep(n_same);
  sample.waiting = window.slice(n_same, -1);
}

// Return the id of the next token: the most probable at temperature 0, otherwise a random token. `ordered` has the
// logits from the highest to the lowest.
function choose(logits, ordered, {temperature, top_k, top_p, random}) {
  if (temperature === 0) return logits.indexOf(ordered[0]);

  const share = (logit) => Math.exp((logit - ordered[0]) / temperature); // in proportion to the probability
  let n_kept = top_k > 0 ? Math.min(top_k, ordered.length) : ordered.length;
  const total = sumOf(ordered.subarray(0, n_kept).map(share));
  let reached = 0;
  for (let i = 0; top_p < 1 && i < n_kept; i++) {
    reached += share(ordered[i]);
    if (reached >= top_p * total) n_kept = i + 1;
  }

  const lowest = ordered[n_kept - 1];
  const shares = logits.map((logit) => (logit < lowest ? 0 : share(logit)));
  const goal = random() * sumOf(shares);
  let sum = 0;
  return shares.findIndex((value) => (sum += value) > goal);
}

const sumOf = (values) => values.reduce((a, b) => a + b, 0);

// Return the token {text, logprob, likeliest}. Log-probabilities are in nats, before any rule of sampling.
function describe(logits, ordered, id) {
  const normaliser = ordered[0] + Math.log(sumOf(ordered.map((logit) => Math.exp(logit - ordered[0]))));
  const ids = [];
  for (const logit of ordered.subarray(0, N_LIKELIEST)) {
    let i = logits.indexOf(logit);
    while (ids.includes(i)) i = logits.indexOf(logit, i + 1);
    ids.push(i);
  }
  return {
    text: tokenizer.textOf(id),
    logprob: logits[id] - normaliser,
    likeliest: ids.map((i) => [tokenizer.textOf(i), logits[i] - normaliser]),
  };
}

// Return random numbers in [0, 1) that depend only on the seed. Source: mulberry32 by Tommy Ettinger.
function generator(seed) {
  let state = (seed ^ (seed / 2 ** 32)) | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

// Return a tensor {data, columns} from its bytes in base64.
function arrayOf({dtype, columns, text}) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  if (dtype === "int8") return {data: new Int8Array(bytes.buffer), columns};
  if (dtype === "fp32") return {data: new Float32Array(bytes.buffer), columns};
  // bf16 is the first half of fp32.
  const whole = Uint32Array.from(new Uint16Array(bytes.buffer), (half) => half << 16);
  return {data: new Float32Array(whole.buffer), columns};
}
