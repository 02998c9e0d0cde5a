// The page: what one types and what the model writes, as turns. The constant engine answers; see server.js and file.js.
"use strict";

const $ = (id) => document.getElementById(id);
// A turn is {role, content, element, pieces}: a message of a chat, or a part of the one text. A piece of a turn that
// the model wrote is {text, tokens, element}; several tokens are one piece if only together they are characters.
let turns = [];
let start = 0; // index of the first turn of a chat that the model still sees
let other = {turns: [], start: 0}; // what the other mode shows
let described = {defaults: {}, ends: []};
let running = null; // the AbortController of the answer that is being received, or null
let original = null; // what the turns were before an alternative was chosen: [turn, content, pieces] for each
let n_retries = 0; // since the last message; with a fixed seed, each retry has another seed
// Values that have no effect. They are sent if a field is empty, because the engine may have other defaults.
const OFF = {top_k: 0, top_p: 1};
const HINTS = {
  chat: "Ask something. Enter sends, Shift+Enter starts a new line, Escape stops.",
  text: "Type the start of a text, and the model continues it. Ctrl+Enter sends, Escape stops.",
};
const FRAME = 30; // milliseconds between two moments at which the page scrolls and keys are handled
const isChat = () => document.querySelector("input[value=chat]").checked;

function make(name, text, className = "") {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  element.className = className;
  return element;
}

// Return the text with escapes instead of control characters, except line breaks and tabs.
function visibleControls(text) {
  return text.replace(/[\0-\x08\x0b-\x1f\x7f-\x9f]/g, (c) => `\\x${c.charCodeAt(0).toString(16).padStart(2, "0")}`);
}

function visible(text) {
  if (described.ends.includes(text)) return "(end of text)";
  return visibleControls(text).replace(/^bytes:/, "").replace(/\n/g, "\\n").replace(/\t/g, "\\t");
}

const percent = (share) => (share < 1e-4 ? "< 0.01 %" : `${(100 * share).toFixed(share < 0.1 ? 2 : 1)} %`);
// The ground of a token: nothing at a probability of 1, and the full color at 0.001, as in the legend.
const surprise = (logprob) => Math.min(1, -logprob / Math.log(1000));
const shade = (strength) => `color-mix(in srgb, var(--mark) ${Math.round(100 * strength)}%, transparent)`;

// What the engine gets

function request() {
  if (!isChat()) return {prompt: turns.map((turn) => turn.content).join("")};
  const system = $("system").value.trim() ? [{role: "system", content: $("system").value}] : [];
  return {messages: [...system, ...turns.slice(start).map(({role, content}) => ({role, content}))]};
}

function options() {
  const chosen = {};
  for (const name of ["temperature", "top_k", "top_p", "seed", "max_tokens"]) {
    chosen[name] = $(name).value === "" ? OFF[name] : Number($(name).value);
  }
  if (chosen.seed !== undefined) chosen.seed += n_retries;
  return chosen;
}

// Turns

function addTurn(role, content = "") {
  const element = make("div", undefined, `turn ${role}`);
  element.append(make("div", role === "user" ? "You" : described.model, "who"), make("span", visibleControls(content)));
  $("turns").append(element);
  turns.push({role, content, element, pieces: []});
  return turns.at(-1);
}

function removeTurn() {
  const turn = turns.pop();
  turn.element.remove();
  if (start >= turns.length) start = 0;
  return turn;
}

function addPiece(turn, piece) {
  turn.content += piece.text;
  turn.pieces.push(piece);
  piece.element = make("span", visibleControls(piece.text));
  turn.element.append(piece.element);
  if (!piece.tokens.length) return;

  const logprob = piece.tokens.reduce((sum, token) => sum + token.logprob, 0);
  Object.assign(piece.element, {className: "token", role: "button", tabIndex: -1});
  piece.element.ariaLabel = `${visible(piece.text)}: ${percent(Math.exp(logprob))}`;
  piece.element.style.background = shade(surprise(logprob));
  piece.element.onclick = () => showAlternatives(turn, piece);
}

// Let the model continue. In a chat, it may continue an answer; otherwise, add a turn.
async function answer() {
  original = null;
  $("error").textContent = $("note").textContent = "";
  running = new AbortController();
  const {signal} = running;
  const sent = request();
  const turn = isChat() && turns.at(-1).role === "assistant" ? turns.at(-1) : addTurn("assistant");
  const log = $("log");
  let follows = true; // whether the reader is at the end of the text
  let isComplete = false;
  let failure = null;
  let drawn = performance.now();
  showAttention(false);
  log.scrollTop = log.scrollHeight;
  try {
    let waiting = []; // tokens whose bytes are not a character yet
    for await (const {text, tokens, finish} of stream(sent, signal)) {
      if (signal.aborted) break;
      waiting.push(...tokens);
      if (text) {
        addPiece(turn, {text, tokens: waiting});
        waiting = [];
      }
      if (performance.now() - drawn > FRAME && !document.hidden) {
        if (follows) log.scrollTop = log.scrollHeight;
        await new Promise((resolve) => setTimeout(resolve));
        follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
        drawn = performance.now();
      }
      isComplete = Boolean(finish);
      if (finish === "length" && isChat()) {
        $("note").textContent ||= "The answer reached its maximum length, or the context is full.";
      }
    }
  } catch (error) {
    failure = error;
  }
  if (running?.signal !== signal) return; // the button Clear has removed the turn, or the mode is another
  $("spoken").textContent = turn.content;
  if (!turn.content && !isComplete) {
    const typed = undo();
    $("prompt").value ||= typed;
  }
  running = null;
  update();
  if (follows) log.scrollTop = log.scrollHeight;
  // The button that was pressed is hidden now. On a phone, the focus would open the keyboard.
  if (document.activeElement === document.body && !navigator.maxTouchPoints) $("prompt").focus();
  if (failure && !signal.aborted) showError(failure);
}

// Yield the pieces of an answer. If a text is too long for the context, the model sees its newest half, or a half of
// that. If a chat is too long, or becomes too long by the answer, the model no longer sees its oldest turns.
async function* stream(sent, signal) {
  let n_left = Math.min(options().max_tokens, described.defaults.max_new_tokens ?? Infinity);
  for (;;) {
    const next = turns.findIndex((turn, i) => i > start && turn.role === "user");
    let isFull = false;
    try {
      for await (const piece of engine.generate(sent, {...options(), max_tokens: n_left}, signal)) {
        n_left -= piece.tokens.length;
        isFull = sent.messages && next > 0 && piece.finish === "length" && n_left > 0;
        yield isFull ? {...piece, finish: null} : piece;
      }
    } catch (error) {
      if (error.code !== "context_length_exceeded" || (sent.messages && next < 0)) throw error;
      isFull = true;
    }
    if (!isFull || signal.aborted) return;
    if (sent.messages) {
      start = next;
      sent = request();
      if (sent.messages.at(-1).content === "") sent.messages.pop(); // the answer that is being received
      $("note").textContent = "The oldest messages are left out, because the context is full.";
    } else {
      const characters = [...sent.prompt];
      sent = {prompt: characters.slice(Math.ceil(characters.length / 2)).join("")};
    }
  }
}

// Bring back what an alternative has replaced. Otherwise, remove the last answer and the message before it, and return
// the text of this message.
function undo() {
  if (original) {
    for (const turn of turns) for (const piece of turn.pieces) piece.element.remove();
    turns = original.map(([turn, content, pieces]) => Object.assign(turn, {content, pieces}));
    for (const turn of turns) turn.element.append(...turn.pieces.map((piece) => piece.element));
    showTurns();
    return "";
  }
  if (turns.at(-1)?.role === "assistant") removeTurn();
  const typed = turns.at(-1)?.role === "user" ? removeTurn().content : "";
  update();
  return typed;
}

function send() {
  const typed = $("prompt").value;
  if (running || !described.model || (isChat() && !typed.trim())) return;
  const wrong = document.querySelector(".fields input:invalid");
  if (wrong) {
    $("settings").open = true;
    wrong.reportValidity();
    return;
  }
  n_retries = 0;
  $("prompt").value = "";
  if (typed) addTurn("user", typed);
  answer();
}

function update() {
  const chats = isChat();
  const last = turns.at(-1)?.role;
  document.body.className = chats ? "chat" : "text";
  $("send").textContent = chats ? "Send" : "Continue";
  $("prompt").ariaLabel = chats ? "Your message" : "Text to continue";
  $("prompt").placeholder = $("prompt").ariaLabel;
  if (!chats && turns.length) $("prompt").placeholder = "More text, or nothing";
  $("send").hidden = running !== null;
  $("send").disabled = !described.model;
  $("stop").hidden = running === null;
  $("hint").textContent = described.model ? HINTS[document.body.className] : "Waiting for the model …";
  $("hint").hidden = turns.length > 0;
  $("actions").hidden = running !== null || last !== "assistant";
  $("reason").hidden = turns.length > 0;
  $("system_field").hidden = !chats;
  $("save").disabled = $("clear").disabled = turns.length === 0;
  $("look").disabled = turns.length === 0 || running !== null;
  document.querySelector("input[value=chat]").disabled = !described.chats;
}

function clear() {
  turns = [];
  start = 0;
  showTurns();
}

function showTurns() {
  running?.abort();
  running = original = null;
  $("turns").replaceChildren(...turns.map((turn) => turn.element));
  $("error").textContent = $("note").textContent = "";
  showAttention(false);
}

function showError(error) {
  $("error").textContent = error.message;
  $("note").textContent = "";
  if (!error.isAboutKey) return;
  $("settings").open = true;
  $("key_field").hidden = false;
  $("api_key").focus();
}

// Alternatives

function showAlternatives(turn, piece) {
  // The first token of an answer may be the space that the answer starts without.
  const token = piece.tokens.find(({text}) => text.trim()) ?? piece.tokens[0];
  const likeliest = [...token.likeliest];
  if (!likeliest.some(([text]) => text === token.text)) likeliest.push([token.text, token.logprob]);
  const rows = likeliest.map(([text, logprob]) => {
    const button = make("button");
    const bar = make("span", "", "bar");
    bar.style.width = `${Math.max(2, 100 * Math.exp(logprob - likeliest[0][1]))}%`;
    button.append(make("code", visible(text) || " "), bar, make("span", percent(Math.exp(logprob)), "share"));
    if (text === token.text) Object.assign(button, {ariaCurrent: "true", autofocus: true});
    // A token without a character of its own cannot start a text.
    button.disabled = text.startsWith("bytes:") || described.ends.includes(text);
    button.onclick = () => continueFrom(turn, piece, {...token, text, logprob});
    return button;
  });
  const box = $("alternatives");
  box.replaceChildren(...rows);
  box.onbeforetoggle = ({newState}) => (piece.element.ariaExpanded = String(newState === "open"));
  box.showPopover();
  const place = () => {
    const {left, top, bottom} = piece.element.getBoundingClientRect();
    const above = Math.max(8, top - box.offsetHeight - 4);
    box.style.left = `${Math.max(8, Math.min(left, innerWidth - box.offsetWidth - 8))}px`;
    box.style.top = `${bottom + box.offsetHeight + 8 < innerHeight ? bottom + 4 : above}px`;
  };
  place();
  $("log").onscroll = place;
}

// Put another token in the place of a piece, and continue from there.
function continueFrom(turn, piece, token) {
  if (running) return;
  $("alternatives").hidePopover();
  const before = turns.map((each) => [each, each.content, [...each.pieces]]);
  while (turns.at(-1) !== turn) removeTurn();
  for (const later of turn.pieces.splice(turn.pieces.indexOf(piece))) later.element.remove();
  turn.content = turn.pieces.map(({text}) => text).join("");
  // An answer in a chat starts without the space of its first token.
  const text = isChat() && !turn.content ? token.text.trimStart() : token.text;
  addPiece(turn, {text, tokens: [token]});
  answer();
  original = before;
}

// Attention

let attended = null; // what the engine returned: {tokens, n_tokens, weights}
let weights = []; // the matrix of the chosen layer and head
let row = 0; // the chosen token
let column = 0; // the token to which it attends most, or the column that was chosen in the matrix

async function showAttention(is) {
  if (is) {
    try {
      attended = await engine.attention(request());
    } catch (error) {
      return showError(error);
    }
    if (running) return; // an answer has begun
  }
  $("look").ariaPressed = String(is);
  $("attention").hidden = !is;
  $("log").hidden = is;
  update();
  if (!is) return;

  const {tokens, n_tokens} = attended;
  for (const [id, length] of [["layer", attended.weights.length], ["head", attended.weights[0].length]]) {
    const names = ["mean", ...Array(length).keys()];
    if ($(id).length !== names.length) $(id).replaceChildren(...names.map((name) => new Option(name)));
  }
  $("shown").textContent = n_tokens > tokens.length ? `the last ${tokens.length} tokens` : "";
  $("attended").replaceChildren(...tokens.map((text, i) => {
    const token = make("span", visible(text).replace(/\\n/g, "↵\n"), "token");
    return Object.assign(token, {role: "button", onclick: () => choose(i)});
  }));
  row = tokens.length - 1;
  showWeights();
}

// Show the weights of the chosen layer and head, or the mean of all of them.
function showWeights() {
  const layers = $("layer").value === "mean" ? attended.weights : [attended.weights[$("layer").value]];
  const matrices = layers.flatMap((heads) => ($("head").value === "mean" ? heads : [heads[$("head").value]]));
  const mean = (i, j) => matrices.reduce((sum, matrix) => sum + matrix[i][j], 0) / matrices.length;
  weights = attended.tokens.map((_, i) => attended.tokens.map((_, j) => mean(i, j)));

  const names = attended.tokens.map(visible);
  const table = make("table");
  table.insertRow().append(make("td"), ...names.map((name) => make("th", name)));
  weights.forEach((of_row, i) => {
    const cells = of_row.map((weight, j) => {
      const cell = make("td");
      cell.style.background = shade(Math.sqrt(weight)); // so that small weights are visible, too
      return Object.assign(cell, {onpointerover: () => choose(i, j)});
    });
    table.insertRow().append(make("th", names[i]), ...cells);
  });
  $("matrix").replaceChildren(table);
  $("attended").hidden = $("as_matrix").checked;
  $("matrix").hidden = !$("as_matrix").checked;
  choose(row);
}

function choose(i, j) {
  const highest = Math.max(...weights[i]);
  row = i;
  column = j ?? weights[i].indexOf(highest);
  const name = (place) => `“${visible(attended.tokens[place])}”`;
  const most = j === undefined ? "attends most to" : "attends to";
  $("cell").textContent = `${name(row)} ${most} ${name(column)}: ${percent(weights[row][column])}`;
  [...$("attended").children].forEach((token, place) => {
    token.style.background = shade(Math.sqrt(weights[i][place] / highest));
    token.ariaPressed = String(place === i);
    token.tabIndex = place === i ? 0 : -1;
  });
  document.querySelector("td.chosen")?.classList.remove("chosen");
  $("matrix").firstChild.rows[row + 1].cells[column + 1].className = "chosen";
}

function chooseCell(i, j) {
  const last = attended.tokens.length - 1;
  if (i >= 0 && j >= 0 && i <= last && j <= last) choose(i, j);
}

// Buttons and keys

const TOKENS = "main:not([hidden]) .token, section:not([hidden]) .token";
const ARROWS = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};

$("form").onsubmit = (event) => {
  event.preventDefault();
  send();
};
$("stop").onclick = () => running?.abort();
$("clear").onclick = clear;
$("retry").onclick = () => {
  removeTurn();
  n_retries++;
  answer();
  if ($("temperature").value === "0") $("note").textContent = "With temperature 0, every answer is the same.";
};
$("undo").onclick = undo;
$("edit").onclick = () => {
  original = null;
  $("prompt").value = isChat() ? undo() : request().prompt;
  if (!isChat()) while (turns.length) removeTurn();
  update();
  $("prompt").focus();
};
$("copy").onclick = async () => {
  const text = isChat() ? turns.at(-1).content : request().prompt;
  try {
    await navigator.clipboard.writeText(text);
    $("note").textContent = "Copied.";
  } catch { // browsers offer the clipboard only to https: and to localhost
    getSelection().selectAllChildren(isChat() ? turns.at(-1).element : $("turns"));
    $("note").textContent = "Selected. Press Ctrl+C to copy.";
  }
};
$("save").onclick = () => {
  const said = turns.map(({role, content}) => `${role === "user" ? "You" : described.model}: ${content}\n`);
  const text = isChat() ? said.join("\n") : request().prompt;
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([text], {type: "text/plain"}));
  link.download = `${described.model.replace(/[^\w.-]+/g, "-")}.txt`;
  link.click();
  URL.revokeObjectURL(link.href);
};
$("look").onclick = () => showAttention($("attention").hidden);
$("layer").onchange = $("head").onchange = $("as_matrix").onchange = showWeights;
$("api_key").onchange = () => {
  engine.setKey($("api_key").value);
  describe();
};
for (const radio of document.querySelectorAll("input[name=mode]")) {
  radio.onchange = () => {
    const shown = {turns, start};
    ({turns, start} = other);
    other = shown;
    showTurns();
  };
}

document.onkeydown = (event) => {
  const {key, target} = event;
  const [down, right] = ARROWS[key] ?? [];
  if (key === "Escape" && !$("alternatives").matches(":popover-open")) running?.abort();
  // In a chat, Enter alone sends the message, and Shift+Enter starts a new line.
  const sends = event.ctrlKey || event.metaKey || (isChat() && target === $("prompt") && !event.shiftKey);
  if (key === "Enter" && !event.isComposing && sends) send();
  else if (target.className === "token" && (key === "Enter" || key === " ")) target.click();
  else if (target === $("matrix") && down !== undefined) chooseCell(row + down, column + right);
  else if (target.parentElement === $("alternatives") && down) focusNext(target, down, "#alternatives button:enabled");
  else if ((target.className === "token" || target === $("log")) && right) focusNext(target, right, TOKENS);
  else return;
  event.preventDefault();
};

// Move the focus from one of these elements to the next or to the one before.
function focusNext(from, step, selector) {
  const elements = [...document.querySelectorAll(selector)];
  const place = elements.indexOf(from);
  const first = step > 0 ? 0 : elements.length - 1;
  elements[place < 0 ? first : place + step]?.focus();
}

// Learn the model's name and defaults. An engine that needs a key tells them only to those who have it.
async function describe() {
  try {
    const health = await engine.describe();
    const message = $("api_key").value ? "The API key is wrong." : "This server requires its API key.";
    if (!health.model) throw Object.assign(new Error(message), {isAboutKey: true});
    described = health;
    document.title = $("model").textContent = described.model;
    $("error").textContent = "";
    $("reason").textContent = described.chats ? "" : `No chat: ${described.reason}`;
    for (const [name, value] of Object.entries(described.defaults)) {
      if ($(name) && value !== null) $(name).value = value;
    }
    if (!turns.length) document.querySelector(`input[value=${described.chats ? "chat" : "text"}]`).checked = true;
  } catch (error) {
    showError(error);
  }
  update();
}

update();
describe();
