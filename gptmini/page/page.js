"use strict";
const $ = (id) => document.getElementById(id);
const messages = []; // the messages of the chat so far, each {role, content}
let start = 0; // index of the first message that the model still sees
let model = "";
let running = null; // the AbortController of the answer that is being received, or null
let mode = "text";
let continued = ""; // in the mode text: the prompt and its continuation
// Values that have no effect. They are sent if a field is empty, because the server may have other defaults.
const OFF = {top_k: 0, top_p: 1};

function make(name, text, className) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function headers() {
  const sent = {"Content-Type": "application/json"};
  if ($("api_key").value) sent.Authorization = `Bearer ${$("api_key").value}`;
  return sent;
}

// Return the response. If its status is an error, throw an Error with the message of the server.
async function checked(response) {
  if (response.ok) return response;
  if (response.status === 401) $("key_field").hidden = false;
  const type = response.headers.get("content-type") || "";
  const body = type.startsWith("application/json") ? await response.json() : null;
  const message = body && body.error ? body.error.message : `the server answered with the HTTP status ${response.status}`;
  throw Object.assign(new Error(message), {code: body && body.error ? body.error.code : null});
}

// Yield each JSON object in a stream of server-sent events.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

// Sampling

function options() {
  const chosen = {model, stream: true};
  for (const name of ["temperature", "top_k", "top_p", "seed", "max_tokens"]) {
    if ($(name).value !== "") chosen[name] = Number($(name).value);
    else if (name in OFF) chosen[name] = OFF[name];
  }
  return chosen;
}

// Return the tokens of one chunk. Each token is {text, logprob, likeliest: [[text, logprob], ...]}.
function tokensOf(choice) {
  const of = choice.logprobs;
  if (!of) return [];
  if (of.content) {
    return of.content.map((token) => ({
      text: token.token,
      logprob: token.logprob,
      likeliest: token.top_logprobs.map((other) => [other.token, other.logprob]),
    }));
  }
  return of.tokens.map((text, i) => ({
    text,
    logprob: of.token_logprobs[i],
    likeliest: Object.entries(of.top_logprobs[i]),
  }));
}

// Add a chunk to the output. The chunk is shaded by its probability. If it has several tokens, they have the same shade.
function addChunk(output, text, tokens) {
  if (!tokens.length) {
    output.append(text);
    return;
  }
  const span = make("span", visibleControls(text), "token");
  const probability = Math.exp(tokens.reduce((sum, token) => sum + token.logprob, 0));
  span.style.background = `color-mix(in srgb, var(--accent) ${Math.round((1 - probability) * 40)}%, transparent)`;
  span.tabIndex = 0;
  span.setAttribute("role", "button");
  span.setAttribute("aria-label", `${text}: probability ${probability.toFixed(3)}`);
  span.addEventListener("click", () => showLikeliest(span, tokens));
  span.addEventListener("focus", () => showLikeliest(span, tokens));
  output.append(span);
}

function showLikeliest(span, tokens) {
  for (const other of document.querySelectorAll(".token.chosen")) other.classList.remove("chosen");
  span.classList.add("chosen");
  const rows = $("likeliest");
  rows.replaceChildren();
  for (const token of tokens) {
    const shown = [...token.likeliest].sort((a, b) => b[1] - a[1]);
    if (!shown.some(([text]) => text === token.text)) shown.push([token.text, token.logprob]);
    for (const [text, logprob] of shown) {
      const row = make("tr", undefined, text === token.text ? "drawn" : "");
      const name = make("td");
      name.append(make("code", visible(text)));
      const bar = make("span", "", "bar");
      bar.style.width = `${Math.max(1, Math.exp(logprob) * 160)}px`;
      const share = make("td");
      share.append(bar);
      row.append(name, make("td", `${(100 * Math.exp(logprob)).toFixed(2)} %`), share);
      rows.append(row);
    }
  }
  $("alternatives").hidden = false;
}

// Return the text with escapes instead of control characters, except line breaks and tabs.
function visibleControls(text) {
  return text.replace(/[\0-\x08\x0b-\x1f\x7f-\x9f]/g, (c) => `\\x${c.charCodeAt(0).toString(16).padStart(2, "0")}`);
}

function visible(text) {
  return visibleControls(text).replace(/\n/g, "\\n").replace(/\t/g, "\\t") || "(end of text)";
}

// Return the response to a chat. If the chat is too long for the context, leave out its oldest turns.
async function fetchChat(options) {
  for (;;) {
    try {
      return await fetchAnswer("v1/chat/completions", {...options, messages: messages.slice(start)});
    } catch (error) {
      const next = messages.findIndex((message, i) => i > start && message.role === "user");
      if (error.code !== "context_length_exceeded" || next < 0) throw error;
      start = next;
      $("note").textContent = "The oldest messages are left out, because the context is full.";
    }
  }
}

async function fetchAnswer(path, body) {
  return checked(await fetch(path, {
    method: "POST",
    headers: headers(),
    body: JSON.stringify(body),
    signal: running.signal,
  }));
}

async function answer() {
  const prompt = $("prompt").value;
  if (!model) await loadSettings();
  $("error").textContent = "";
  $("attention").hidden = true;
  $("note").textContent = "";
  let output = $("output");
  let question = null;
  let content = "";
  let isComplete = false;
  if (mode === "chat") {
    if (!prompt.trim()) return;
    question = {role: "user", content: prompt};
    messages.push(question);
    addTurn("user").append(prompt);
    output = addTurn("assistant");
    $("prompt").value = "";
  } else {
    continued = prompt;
    output.replaceChildren(make("b", prompt));
  }

  running = new AbortController();
  setRunning(true);
  try {
    const response = question
      ? await fetchChat({...options(), logprobs: true, top_logprobs: 10})
      : await fetchAnswer("v1/completions", {...options(), prompt, logprobs: 10});
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      for (const choice of event.choices) {
        const text = choice.text ?? choice.delta.content ?? "";
        addChunk(output, text, tokensOf(choice));
        content += text;
        if (!question) continued += text;
        if (choice.finish_reason === "length") {
          $("note").textContent = "The answer was stopped, because it reached its maximum length or the context is full.";
        }
      }
    }
    isComplete = true;
  } catch (error) {
    if (error.name !== "AbortError") $("error").textContent = error.message;
  } finally {
    // The button Clear may have removed the question.
    if (question && messages.at(-1) === question) {
      if (content || isComplete) {
        messages.push({role: "assistant", content});
      } else {
        // The question was not answered. Put it back into the input field.
        messages.pop();
        $("turns").lastChild.remove();
        $("turns").lastChild.remove();
        $("prompt").value = prompt;
      }
    }
    running = null;
    setRunning(false);
    $("prompt").focus();
  }
}

function addTurn(role) {
  const turn = make("div", undefined, "turn");
  turn.append(make("div", role, "who"));
  const text = make("div", undefined, "text");
  turn.append(text);
  $("turns").append(turn);
  return text;
}

function setRunning(is) {
  $("send").disabled = is;
  $("stop").disabled = !is;
}

function setMode(value) {
  mode = value;
  $("prompt_name").textContent = mode === "chat" ? "Your message" : "Text to continue";
  $("send").textContent = mode === "chat" ? "Send" : "Continue";
  $("key").textContent = mode === "chat" ? "Enter" : "Ctrl+Enter";
  clear();
}

function clear() {
  if (running) running.abort();
  messages.length = 0;
  start = 0;
  $("turns").replaceChildren();
  $("output").replaceChildren();
  continued = "";
  $("error").textContent = "";
  $("note").textContent = "";
  $("alternatives").hidden = true;
  $("attention").hidden = true;
}

// Attention

async function showAttention() {
  $("error").textContent = "";
  const body = mode === "chat" ? {messages: messages.slice(start)} : {text: continued || $("prompt").value};
  try {
    const sent = {method: "POST", headers: headers(), body: JSON.stringify(body)};
    const {tokens, n_tokens, weights} = await (await checked(await fetch("attention", sent))).json();
    const heads = $("heads");
    heads.replaceChildren();
    weights.forEach((layer, i) => layer.forEach((head, j) => {
      const name = `layer ${i + 1}, head ${j + 1}`;
      const button = make("button");
      button.type = "button";
      const canvas = make("canvas");
      draw(canvas, head);
      button.append(canvas, make("span", name));
      button.addEventListener("click", () => enlarge(name, head, tokens));
      heads.append(button);
    }));
    $("shown").textContent = n_tokens > tokens.length ? ` (the last ${tokens.length} of ${n_tokens} tokens)` : "";
    $("large").hidden = true;
    $("attention").hidden = false;
  } catch (error) {
    $("error").textContent = error.message;
  }
}

function draw(canvas, head) {
  const size = head.length;
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.body).getPropertyValue("color");
  head.forEach((row, i) => row.forEach((weight, j) => {
    context.globalAlpha = Math.sqrt(weight); // with a square root, small weights are visible too
    context.fillRect(j, i, 1, 1);
  }));
}

function enlarge(name, head, tokens) {
  $("large_name").textContent = name;
  const canvas = $("large_canvas");
  draw(canvas, head);
  let i = tokens.length - 1; // the row and the column of the chosen cell
  let j = 0;
  function choose(row, column) {
    if (head[row] === undefined || head[row][column] === undefined) return;
    [i, j] = [row, column];
    const share = (100 * head[i][j]).toFixed(1);
    $("large_cell").textContent = `“${visible(tokens[i])}” attends to “${visible(tokens[j])}”: ${share} %`;
  }
  canvas.onpointermove = (event) => {
    const box = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / box.height * tokens.length);
    choose(row, Math.floor((event.clientX - box.left) / box.width * tokens.length));
  };
  canvas.onkeydown = (event) => {
    const step = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    if (!step) return;
    event.preventDefault();
    choose(i + step[0], j + step[1]);
  };
  $("large").hidden = false;
  $("large").scrollIntoView({block: "nearest"});
}

// Start

$("form").addEventListener("submit", (event) => { event.preventDefault(); if (!running) answer(); });
$("stop").addEventListener("click", () => running && running.abort());
$("clear").addEventListener("click", clear);
$("look").addEventListener("click", showAttention);
for (const radio of document.querySelectorAll("input[name=mode]")) {
  radio.addEventListener("change", () => setMode(radio.value));
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) running.abort();
  if (event.key !== "Enter" || event.isComposing) return;
  // In a chat, Enter alone sends the message, and Shift+Enter starts a new line.
  const isSend = event.ctrlKey || event.metaKey || (mode === "chat" && event.target === $("prompt") && !event.shiftKey);
  if (isSend) {
    event.preventDefault();
    if (!running) answer();
  }
});

// Load the model's name and the defaults. If the server needs a key, it sends them only to a client that has the key.
async function loadSettings() {
  try {
    const health = await (await checked(await fetch("health", {headers: headers()}))).json();
    $("key_field").hidden = !health.needs_key;
    if (!health.model || model) return;
    model = health.model;
    $("model").textContent = model;
    for (const [name, value] of Object.entries(health.defaults)) {
      if ($(name) && value !== null) $(name).value = value;
    }
    if (health.chats) {
      document.querySelector("input[value=chat]").checked = true;
      setMode("chat");
    }
  } catch (error) {
    $("error").textContent = error.message;
  }
}

$("api_key").addEventListener("change", loadSettings);
loadSettings();
