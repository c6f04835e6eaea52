// What is proved, in plain words: { sentence, facts: [[name, value]], table, line } for the page to show.

function plural(n, word) {
  return `${n} ${word}${n === 1 ? "" : "s"}`;
}

// A file name as it is seen: what is invisible, or turns the order of letters, is spelt out.
function visible(text) {
  return text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

// The radii of a delta that move anything: a layer without a bias has only that of its weights.
function radiiOf(delta, layers) {
  return delta.map(([w, b], i) => (layers[i].b ? [w, b] : [w]));
}

// The shift set, as the end of "every network ...".
function networksWords(said, layers, boxName) {
  if (said.shifts !== null) {
    return `whose weights and biases lie between the ends in the file ${boxName}`;
  }
  const all = new Set(radiiOf(said.delta, layers).flat());
  if (all.size === 1 && all.has(0)) return "with exactly these weights and biases";
  if (all.size === 1) return `whose weights and biases each differ by at most ${written(said.delta[0][0])} from those of the network`;
  return "whose weights and biases each differ from those of the network by no more than is listed below";
}

function sentenceOf(said, layers, boxName) {
  const networks = networksWords(said, layers, boxName), margin = written(said.margin);
  if (said.verdict === "fixed") {
    const where = said.spaces.length > 1 ? `the ${said.spaces.length} spaces` : "the space";
    return `No network ${networks} gives class ${said.target} to any input of ${where} of inputs below.`;
  }
  if (said.verdict === "robust") {
    const where = said.low ? "every input in the box below" : "the input below";
    return `Every network ${networks} gives class ${said.target} to ${where}, with a margin of at least ${margin}.`;
  }
  const where = said.low ? "a point of the input box below" : "the input below";
  return (
    `Class ${said.target} does not keep a margin of ${margin}: the certificate holds a network ${networks}, ` +
    `and at ${where} its margin for class ${said.target} is below ${margin}.`
  );
}

const MAX_ROWS = 500; // of a table
const MAX_LETTERS = 20000; // of a line

// The ranges of inputs, one row a column.
function tableWords(said) {
  const low = said.low || said.input, high = said.high || said.input, box = Boolean(said.low);
  const rows = Array.from(low.slice(0, MAX_ROWS), (v, j) => {
    const ends = box ? [written(v), written(high[j])] : [];
    return [String(j + 1), ...(said.input.length ? [written(said.input[j])] : []), ...ends];
  });
  const names = ["column", ...(said.input.length ? ["input"] : []), ...(box ? ["from", "to"] : [])];
  return { names, rows, more: low.length - rows.length };
}

function deltaWords(delta, layers) {
  const radii = radiiOf(delta, layers), all = radii.flat();
  if (new Set(all).size === 1) return `${written(all[0])} for every weight and bias`;
  const bias = (b) => (b === undefined ? "" : `, biases ${written(b)}`);
  return radii.map(([w, b], i) => `layer ${i + 1}: weights ${written(w)}${bias(b)}`).join("; ");
}

// What a statement says; `files` maps digests to the files that were read.
function wordsOf(said, files) {
  const { name, network } = files.get(said.network), layers = network.layers;
  const box = said.shifts && visible(files.get(said.shifts).name);
  const facts = [["Class", String(said.target)]];
  if (said.verdict === "fixed") facts.push(["Another class wins by at least", written(said.margin)]);
  else facts.push([said.verdict === "robust" ? "Margin, at least" : "Margin, below", written(said.margin)]);
  if (said.shifts !== null) {
    facts.push(["Box of networks", `${box}, SHA-256 ${said.shifts}`]);
    facts.push(["The network itself", said.inside ? "lies in the box" : "does not lie in the box"]);
  } else facts.push(["Delta", deltaWords(said.delta, layers)]);
  if (said.spaces) {
    const choices = said.spaces.flatMap((space) => space.choices);
    const count = plural(said.spaces.length, "space");
    facts.push(["Inputs", choices.length ? `${count}, with ${plural(choices.length, "set")} of values that columns take` : count]);
  } else if (said.low) {
    const free = said.input.filter((_, j) => said.low[j] < said.high[j]).length;
    facts.push(["Inputs", `a box: ${plural(free, "column")} of ${said.input.length} may be missed within the ends below`]);
  } else facts.push(["Input", `one point, ${plural(said.input.length, "column")}`]);
  facts.push(["Network", `${visible(name)}, SHA-256 ${said.network}`]);
  return { sentence: sentenceOf(said, layers, box), facts, table: tableWords(said), line: lineOf(said).slice(0, MAX_LETTERS), verdict: said.verdict };
}
