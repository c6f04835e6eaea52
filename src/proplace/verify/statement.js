// The statement of a bundle in original units: what is enough, and how it is encoded.
//
// A number v becomes (v - offset) / scale, both rounded to the nearest double as in the encoder; a label becomes
// one number, or a column of 0 and 1 for each label from `first` on. The code of each value must be the entry of
// the input that was proved, and those of the ends of a range must lie in its box. There is no other tolerance.

const VALUES = ["name", "today", "missing", "value"];
const CODES = {
  number: ["unit", "offset", "scale", "low", "high", "end"],
  columns: ["labels", "first"],
  ordinal: ["labels", "numbers", "offset", "scale"],
};
const MAX_TEXT = 200; // characters of a name, a label or a unit

// Characters that are not seen, or turn the order of others.
const UNSEEN = /[\0-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u{d800}-\u{dfff}\ufeff\ufff0-\uffff\u{e0000}-\u{e0fff}]/u;

// A text that can be read on one line.
function textOf(name, value, least = 1) {
  const length = typeof value === "string" ? [...value].length : -1;
  if (length >= least && length <= MAX_TEXT && !UNSEEN.test(value)) return value;
  return reject(`${name} is not a text of ${least} to ${MAX_TEXT} visible characters`);
}

// A number with its unit; a bare one only with a sign that stands at it.
function amountOf(v, [one, many], bare = false) {
  let text = written(v === 0 ? 0 : v).replace(/\.0$/, "");
  if (Math.abs(v) >= 10000 && !text.includes("e")) {
    const [whole, ...more] = text.split(".");
    text = [whole.replace(/\B(?=(\d{3})+$)/g, ","), ...more].join(".");
  }
  const unit = Math.abs(v) === 1 ? one : many;
  if (["$", "€", "£", "¥"].includes(unit)) return text.startsWith("-") ? `-${unit}${text.slice(1)}` : `${unit}${text}`;
  if (unit && "%‰°".includes(unit[0])) return text + (bare ? unit[0] : unit);
  return bare || !unit ? text : `${text} ${unit}`;
}

function goalOf(low, value, high, end, unit) {
  if (end === "high") return `${amountOf(low, unit)} or more (up to ${amountOf(high, unit)})`;
  if (end === "low") return `${amountOf(high, unit)} or less (down to ${amountOf(low, unit)})`;
  if (end !== "") reject("the end of a stated range must be low, high or empty");
  return low < high ? `${amountOf(low, unit, true)} to ${amountOf(high, unit)}` : amountOf(value, unit);
}

// A stated feature: { name, today, goal, changes, codes }, the codes those of the lower end, the value and the upper end.
function featureOf(facts) {
  const known = Object.entries(CODES).find(([, fields]) => hasFields(facts, [...VALUES, ...fields]));
  if (!known) reject("a stated feature has missing or unknown fields");
  const [kind] = known, name = textOf("a name", facts.get("name")), missing = facts.get("missing");
  if (typeof missing !== "boolean") reject("missing is neither true nor false");
  const today = (text) => (missing ? `missing, the model uses ${text}` : text);
  let scaled = null;
  if (facts.has("scale")) {
    const [offset, scale] = ["offset", "scale"].map((field) => numberOf(field, facts.get(field)));
    if (!(scale > 0)) reject("a scale is not positive");
    scaled = (v) => (v - offset) / scale;
  }
  if (kind === "number") {
    const [before, after, low, high] = ["today", "value", "low", "high"].map((field) => numberOf(field, facts.get(field)));
    if (!(low <= high)) reject("the low end of a stated range lies above its high end");
    const unit = listOf("unit", facts.get("unit"), 2).map((form) => textOf("a unit", form, 0));
    const goal = goalOf(low, after, high, facts.get("end"), unit);
    const codes = [low, after, high].map((v) => [scaled(v)]);
    return { name, goal, today: today(amountOf(before, unit)), changes: before !== after, codes };
  }
  const labels = listOf("labels", facts.get("labels")).map((label) => textOf("a label", label));
  if (new Set(labels).size < labels.length) reject("two labels are the same");
  for (const field of ["today", "value"]) if (!labels.includes(facts.get(field))) reject(`${field} is none of the labels`);
  const value = facts.get("value"), place = labels.indexOf(value);
  const code = kind === "columns"
    ? labels.map((_, k) => (k === place ? 1 : 0)).slice(indexOf("first", facts.get("first"), Math.min(2, labels.length)))
    : [scaled(numbersOf("numbers", facts.get("numbers"), labels.length)[place])];
  return { name, goal: value, today: today(facts.get("today")), changes: facts.get("today") !== value, codes: [code, code, code] };
}

// The statement of a bundle in one sentence, when what was proved covers it.
function statedSentence(facts, said, classes) {
  if (!hasFields(facts, ["subject", "outcomes", "features"])) reject("a statement must have exactly the fields subject, outcomes and features");
  const words = listOf("outcomes", facts.get("outcomes"), classes);
  const subject = textOf("the subject", facts.get("subject"));
  const outcomes = words.map((word) => textOf("an outcome", word));
  const features = listOf("features", facts.get("features")).map(featureOf);
  const low = said.low || said.input, high = said.high || said.input;
  let at = 0;
  for (const { name, codes: [down, code, up] } of features) {
    for (let k = 0; k < code.length; k++, at++) {
      if (at >= low.length || code[k] !== said.input[at]) reject(`the stated ${JSON.stringify(name)} is not the certified input`);
      if (!(low[at] <= down[k] && down[k] <= up[k] && up[k] <= high[at])) {
        reject(`the stated range of ${JSON.stringify(name)} was not proved`);
      }
    }
  }
  if (at < low.length) reject(`the statement has ${at} encoded columns, and the input ${low.length}`);
  const changes = features.filter((each) => each.changes).map((each) => `${each.name}: ${each.goal} (today: ${each.today})`);
  const rest = features.filter((each) => !each.changes).map((each) => `${each.name}: ${each.goal}`);
  const made = changes.length ? ` with ${changes.join("; ")}.` : " without any change.";
  return `${subject}: ${outcomes[said.target]}${made}${rest.length ? ` Everything else must stay as stated: ${rest.join("; ")}.` : ""}`;
}
