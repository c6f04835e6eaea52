// A reader of JSON that keeps what JSON.parse loses: fields given twice, and whether a number is whole.
//
// Objects become Maps, numbers with a point or an exponent doubles, other numbers BigInts.

const MAX_BYTES = 32000000;
const MAX_LISTS = 1000000; // and objects
const MAX_DEPTH = 64; // a certificate has some fifteen levels

const NUMBER = /-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?/y;
const PLAIN = /[^"\\\u0000-\u001f]*/y;
const SPACE = /[ \t\n\r]*/y;
const HEX = /[0-9a-fA-F]{4}/y;
const ESCAPES = { '"': '"', "\\": "\\", "/": "/", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };
const WORDS = [["true", true], ["false", false], ["null", null]];

class Reader {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.depth = 0;
  }

  fail(what) {
    reject(`not readable as JSON: ${what} at character ${this.at}`);
  }

  take(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found) this.at = pattern.lastIndex;
    return found;
  }

  next(mark) {
    this.take(SPACE);
    if (this.text[this.at] !== mark) return false;
    this.at += 1;
    return true;
  }

  whole() {
    const value = this.value();
    this.take(SPACE);
    if (this.at < this.text.length) this.fail("something behind the end");
    return value;
  }

  value() {
    if (this.next("{")) return this.nested(() => this.fields());
    if (this.next("[")) return this.nested(() => this.items());
    if (this.next('"')) return this.string();
    const word = WORDS.find(([name]) => this.text.startsWith(name, this.at));
    if (!word) return this.number();
    this.at += word[0].length;
    return word[1];
  }

  nested(read) {
    this.depth += 1;
    if (this.depth > MAX_DEPTH) this.fail(`more than ${MAX_DEPTH} levels of lists and objects`);
    const value = read();
    this.depth -= 1;
    return value;
  }

  fields() {
    const found = new Map();
    if (this.next("}")) return found;
    do {
      if (!this.next('"')) this.fail("no name of a field");
      const name = this.string();
      if (found.has(name)) reject("a field is given twice");
      if (!this.next(":")) this.fail("no colon");
      found.set(name, this.value());
    } while (this.next(","));
    if (!this.next("}")) this.fail("an object without an end");
    return found;
  }

  items() {
    const found = [];
    if (this.next("]")) return found;
    do found.push(this.value());
    while (this.next(","));
    if (!this.next("]")) this.fail("a list without an end");
    return found;
  }

  string() {
    const parts = [];
    for (;;) {
      parts.push(this.take(PLAIN)[0]);
      const mark = this.text[this.at++];
      if (mark === '"') return parts.join("");
      if (mark !== "\\") this.fail("a text without an end, or with a control character");
      parts.push(this.escaped());
    }
  }

  escaped() {
    const letter = this.text[this.at++];
    if (letter !== "u") return ESCAPES[letter] ?? this.fail("an unknown escape");
    const code = this.take(HEX) || this.fail("an unknown escape");
    return String.fromCharCode(parseInt(code[0], 16));
  }

  number() {
    const found = this.take(NUMBER) || this.fail("no value");
    const isWhole = found[1] === undefined && found[2] === undefined;
    // A whole number of more digits than the largest double has is none, whatever its digits are.
    return isWhole && found[0].length <= 310 ? BigInt(found[0]) : isWhole ? Infinity : Number(found[0]);
  }
}

// Read a file of JSON; what is not an object is rejected.
function parse(bytes) {
  let lists = 0;
  for (const byte of bytes) if (byte === 0x5b || byte === 0x7b) lists += 1;
  if (bytes.length > MAX_BYTES || lists > MAX_LISTS) {
    reject(`it is larger than ${MAX_BYTES} bytes or ${MAX_LISTS} lists and objects`);
  }
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    reject("not readable as JSON: it is not UTF-8");
  }
  const facts = new Reader(text).whole();
  return facts instanceof Map ? facts : reject("not a JSON object");
}

// -- values of the shapes that are wanted ---------------------------------------------------------------

function listOf(name, value, length = null) {
  if (!Array.isArray(value) || (length !== null && value.length !== length)) {
    reject(`${name} is not a list${length === null ? "" : ` of ${length}`}`);
  }
  return value;
}

// A number as a double; a whole number must be one.
function numberOf(name, value) {
  if (typeof value === "number" && Number.isFinite(value)) return value;
  if (typeof value !== "bigint" || !Number.isFinite(Number(value))) {
    reject(`${name} holds something that is not a finite number`);
  }
  const double = Number(value);
  return BigInt(double) === value ? double : reject(`${name} holds an integer that no double represents exactly`);
}

function numbersOf(name, value, length) {
  return Float64Array.from(listOf(name, value, length), (item) => numberOf(name, item));
}

function tableOf(name, value, lengths) {
  return listOf(name, value, lengths.length).map((row, i) => numbersOf(name, row, lengths[i]));
}

function indexOf(name, value, count) {
  if (typeof value !== "bigint" || value < 0n || value >= BigInt(count)) {
    reject(`${name} is not a whole number from 0 to ${count - 1}`);
  }
  return Number(value);
}

// Whether an object has these fields and no others.
function hasFields(value, names) {
  return value instanceof Map && value.size === names.length && names.every((name) => value.has(name));
}
