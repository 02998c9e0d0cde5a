// The model: from a token to the logits of the next token, with the formulas of gptmini.model.GPT. C is the width of
// the model, H the number of query heads, G of key and value heads, D the width of a head, F of the MLP, and V the
// number of tokens. Sums have 64 bits, as all numbers of JavaScript.

class Model {
  // tensors: by name {data, columns}. A matrix in int8 has another tensor NAME.scale with one factor for each row.
  constructor(config, tensors) {
    this.config = config;
    this.tensors = tensors;
    this.ids = []; // the ids whose values the cache holds
    const lists = () => Array.from({length: config.n_layers}, () => []);
    this.cache = {keys: lists(), values: lists(), smears: [...lists(), []]}; // a vector for each position
  }

  // Forget all positions except the first n.
  keep(n) {
    this.ids.length = n;
    for (const lists of Object.values(this.cache)) for (const list of lists) list.length = Math.min(n, list.length);
  }

  // Add a token at the next position. Return its hidden state (C). look(layer, head, weights) receives the attention.
  step(id, look) {
    const {n_layers, position, frequencies, smear, mlp_smear, embedding_norm} = this.config;
    const place = this.ids.length;
    this.ids.push(id);

    let x = this.row("embedding.weight", id);
    this.smear("smear", smear, x, this.cache.smears[n_layers]);
    if (position === "learned") add(x, this.row("position_embedding.weight", place));
    if (embedding_norm) x = this.norm("embedding_norm", x);

    // As in float32, in which the model was trained: at large positions, an exact angle would be another one.
    const angles = frequencies && frequencies.map((frequency) => Math.fround(place * frequency));
    const rotation = angles && {cos: angles.map(Math.cos), sin: angles.map(Math.sin)};
    for (let i = 0; i < n_layers; i++) {
      add(x, this.attend(i, this.norm(`blocks.${i}.attention_norm`, x), rotation, look));
      const hidden = this.norm(`blocks.${i}.mlp_norm`, x);
      this.smear(`blocks.${i}.mlp_smear`, mlp_smear, hidden, this.cache.smears[i]);
      add(x, this.mlp(`blocks.${i}.mlp`, hidden));
    }
    return this.norm("norm", x);
  }

  // Return the logits (V) for a hidden state (C).
  unembed(hidden) {
    const {tie_embeddings, logit_softcap: cap} = this.config;
    const logits = this.linear(tie_embeddings ? "embedding" : "unembedding", hidden);
    return cap ? logits.map((logit) => cap * Math.tanh(logit / cap)) : logits;
  }

  // Return the output (C) of the attention of layer i at the newest position.
  attend(i, x, rotation, look) {
    const {n_heads, n_kv_heads, d_head, qk_norm, qk_norm_eps, attention_scale} = this.config;
    const name = `blocks.${i}.attention`;
    const heads = this.linear(`${name}.qkv`, x); // ((H + 2 G) * D)
    for (let h = 0; h < n_heads + n_kv_heads; h++) {
      const head = heads.subarray(h * d_head, (h + 1) * d_head);
      const gain = this.tensors[`${name}.${h < n_heads ? "query" : "key"}_gain`]?.data;
      if (qk_norm === "gain") rmsNorm(head, qk_norm_eps, gain);
      if (rotation) rotate(head, rotation);
      if (qk_norm === true) rmsNorm(head, qk_norm_eps);
    }
    const keys = this.cache.keys[i]; // a vector (G * D) for each position
    const values = this.cache.values[i];
    keys.push(heads.slice(n_heads * d_head, (n_heads + n_kv_heads) * d_head));
    values.push(heads.slice((n_heads + n_kv_heads) * d_head));

    const context = new Float64Array(n_heads * d_head);
    for (let h = 0; h < n_heads; h++) {
      const query = h * d_head;
      const first = Math.floor((h * n_kv_heads) / n_heads) * d_head; // several query heads may share a key head
      const weights = new Float64Array(keys.length);
      for (let j = 0; j < keys.length; j++) {
        let sum = 0;
        for (let k = 0; k < d_head; k++) sum += heads[query + k] * keys[j][first + k];
        weights[j] = sum * attention_scale;
      }
      softmax(weights);
      for (let j = 0; j < keys.length; j++) {
        for (let k = 0; k < d_head; k++) context[query + k] += weights[j] * values[j][first + k];
      }
      look?.(i, h, weights);
    }
    return this.linear(`${name}.output`, context);
  }

  mlp(name, x) {
    const hidden = this.linear(`${name}.input`, x); // (F)
    const activation = ACTIVATIONS[this.config.mlp];
    if (this.config.mlp !== "swiglu") return this.linear(`${name}.output`, hidden.map(activation));
    const gate = this.linear(`${name}.gate`, x); // (F)
    return this.linear(`${name}.output`, hidden.map((value, i) => activation(gate[i]) * value));
  }

  // Add the K previous vectors of a history to x, each with a gain per channel.
  smear(name, n_previous, x, history) {
    if (!n_previous) return;
    history.push(x.slice());
    for (let k = 1; k <= n_previous && k < history.length; k++) {
      const gain = this.tensors[`${name}.gains.${k - 1}`].data;
      const earlier = history[history.length - 1 - k];
      for (let j = 0; j < x.length; j++) x[j] += gain[j] * earlier[j];
    }
  }

  norm(name, x) {
    const gain = this.tensors[`${name}.weight`]?.data;
    const y = x.slice();
    if (this.config.norm === "rmsnorm") return rmsNorm(y, this.config.norm_eps, gain);
    const bias = this.tensors[`${name}.bias`]?.data;
    const mean = y.reduce((sum, value) => sum + value) / y.length;
    return rmsNorm(y.map((value) => value - mean), this.config.norm_eps, gain, bias);
  }

  row(name, i) {
    const {data, columns} = this.tensors[name];
    const factor = this.tensors[`${name}.scale`]?.data[i] ?? 1;
    return Float64Array.from(data.subarray(i * columns, (i + 1) * columns), (value) => value * factor);
  }

  // Return W x + b. Four sums at a time, because each addition waits for the previous addition to the same sum.
  linear(name, x) {
    const {data, columns} = this.tensors[`${name}.weight`];
    const scale = this.tensors[`${name}.weight.scale`]?.data;
    const bias = this.tensors[`${name}.bias`]?.data;
    const y = new Float64Array(data.length / columns);
    const end = columns - (columns % 4);
    for (let i = 0, start = 0; i < y.length; i++, start += columns) {
      let [a, b, c, d] = [0, 0, 0, 0];
      for (let j = 0; j < end; j += 4) {
        a += data[start + j] * x[j];
        b += data[start + j + 1] * x[j + 1];
        c += data[start + j + 2] * x[j + 2];
        d += data[start + j + 3] * x[j + 3];
      }
      for (let j = end; j < columns; j++) a += data[start + j] * x[j];
      y[i] = (a + b + c + d) * (scale ? scale[i] : 1) + (bias ? bias[i] : 0);
    }
    return y;
  }
}

const ACTIVATIONS = {
  gelu: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  gelu_exact: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  relu2: (x) => Math.max(0, x) ** 2,
  square: (x) => x ** 2,
  swiglu: (x) => x / (1 + Math.exp(-x)),
};

// The error function, with an error below 2e-7. Source: Abramowitz and Stegun 1964, formula 7.1.26.
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const sum = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return Math.sign(x) * (1 - sum * Math.exp(-x * x));
}

function add(x, y) {
  for (let i = 0; i < x.length; i++) x[i] += y[i];
}

// Divide x by its root mean square, in place. Return x.
function rmsNorm(x, eps, gain, bias) {
  let sum = 0;
  for (const value of x) sum += value * value;
  const factor = 1 / Math.sqrt(sum / x.length + eps);
  for (let i = 0; i < x.length; i++) x[i] = x[i] * factor * (gain ? gain[i] : 1) + (bias ? bias[i] : 0);
  return x;
}

// Rotate each pair of channels (i, i + D/2) by minus its angle, in place.
function rotate(head, {cos, sin}) {
  const half = head.length / 2;
  for (let i = 0; i < half; i++) {
    const [first, second] = [head[i], head[i + half]];
    head[i] = first * cos[i] + second * sin[i];
    head[i + half] = second * cos[i] - first * sin[i];
  }
}

function softmax(x) {
  let highest = -Infinity;
  for (const value of x) highest = Math.max(highest, value);
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += x[i] = Math.exp(x[i] - highest);
  for (let i = 0; i < x.length; i++) x[i] /= sum;
}
