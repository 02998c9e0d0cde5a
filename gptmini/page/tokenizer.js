// The tokenizer: from text to ids and from an id to its bytes. Byte strings are strings with one character per byte.

const bytesOf = (text) => Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join("");
const bytesToArray = (bytes) => Uint8Array.from(bytes, (byte) => byte.charCodeAt(0));

class Tokenizer {
  // tokens: the bytes of each id. special: from the text of a special token to its id. split: regular expressions that
  // cut a text into pieces, one after the other. merges: [left id, right id, ...] in the order in which they apply, or
  // null: two tokens merge if their joined bytes are a token, the token with the lowest id first. whole: whether
  // a piece that is a token stays as it is. prefix: ids before a text. empty: the ids of an empty text. ends: ids that
  // end a text. chat: the texts between the messages of a chat, or null.
  constructor({tokens, special, split, merges, whole, prefix, empty, ends, chat}) {
    Object.assign(this, {tokens, special, whole, prefix, empty, ends, chat});
    this.split = split.map((source) => new RegExp(source, "gu"));
    this.ids = new Map(tokens.map((bytes, id) => [bytes, id]));
    for (const text of Object.keys(special)) this.ids.delete(bytesOf(text));

    const longest = Object.keys(special).filter((text) => text.trim()).sort((a, b) => b.length - a.length);
    const escaped = longest.map((text) => text.replace(/[^\w\s]/g, "\\$&"));
    this.cuts = new RegExp(`(${escaped.join("|") || "(?!)"})`);

    this.pair = (left, right) => left * tokens.length + right;
    this.ranks = merges && new Map();
    for (let i = 0; merges && i < merges.length; i += 2) this.ranks.set(this.pair(merges[i], merges[i + 1]), i);
  }

  // Return the ids of a text. The text of a special token in it is ordinary text.
  encode(text) {
    let pieces = [text];
    for (const pattern of this.split) pieces = pieces.flatMap((piece) => piece.match(pattern) ?? []);
    return pieces.flatMap((piece) => this.encodePiece(piece));
  }

  encodePiece(piece) {
    const bytes = bytesOf(piece);
    if (this.whole && this.ids.has(bytes)) return [this.ids.get(bytes)];

    const parts = Array.from(bytes, (byte) => this.ids.get(byte));
    if (parts.includes(undefined)) throw new Error(`the model has no token for “${piece}”; remove it`);
    for (;;) {
      let best = Infinity;
      let place = 0;
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ranks ? this.ranks.get(this.pair(parts[i], parts[i + 1])) : this.joined(parts, i);
        if (rank < best) [best, place] = [rank, i];
      }
      if (best === Infinity) return parts;
      parts.splice(place, 2, this.joined(parts, place));
    }
  }

  // Return the id of the joined bytes of two neighbours, or undefined.
  joined(parts, i) {
    return this.ids.get(this.tokens[parts[i]] + this.tokens[parts[i + 1]]);
  }

  // Return the ids of a prompt.
  promptIds(text) {
    const ids = [...this.prefix, ...this.encode(text)];
    return ids.length ? ids : this.empty;
  }

  // Return the ids of a chat up to its next answer. If the last message is an answer, it is continued.
  chatIds(messages) {
    const {role: last, content: begun} = messages.at(-1);
    if (last === "assistant") {
      return [...this.chatIds(messages.slice(0, -1)), ...this.encode(begun && this.chat.leading + begun)];
    }
    const parts = []; // texts of the template at even places, and of messages at odd places
    let previous = "";
    for (const {role, content} of messages) {
      const between = this.chat[`${previous}>${role}`];
      if (between === undefined) throw new Error(`the chat template takes no ${role} message here; remove it`);
      // With leading spaces, the built-in template gives the same text.
      parts.push(between, role === "assistant" && this.chat.leading ? content.replace(/^ +/, "") : content);
      previous = role;
    }
    parts.push(this.chat[`${previous}>`]);

    // A special token of the template becomes its id, and a special token in a message stays text. Everything between
    // two special tokens is encoded together.
    let ids = [];
    let text = "";
    parts.forEach((part, i) => {
      for (const each of part.split(this.cuts)) {
        if (Object.hasOwn(this.special, each)) {
          const own = i % 2 ? this.encode(each) : [this.special[each]];
          ids = [...ids, ...this.encode(text), ...own];
          text = "";
        } else {
          text += each;
        }
      }
    });
    return [...ids, ...this.encode(text)];
  }

  // Return the text of an id. If its bytes are not UTF-8, return for example bytes:\xe2\x80, as the server does.
  textOf(id) {
    const bytes = this.tokens[id] ?? "";
    try {
      return new TextDecoder("utf-8", {fatal: true, ignoreBOM: true}).decode(bytesToArray(bytes));
    } catch {
      return "bytes:" + Array.from(bytesToArray(bytes), (byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("");
    }
  }
}
