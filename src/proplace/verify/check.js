// Certificates and bundles of them: their fields, what they prove, and that in one line.

const FORMAT_DELTA = "proplace-certificate-1"; // the networks within delta
const FORMAT_BOX = "proplace-certificate-2"; // the networks of a file of shifts
const FORMAT_INPUTS = "proplace-certificate-3"; // either of them, at every point of an input box
const FORMAT_BUNDLE = "proplace-bundle-1";
const FORMAT_STATED = "proplace-bundle-2"; // with a statement in original units
const FORMAT_FIXED = "proplace-fixed-1";

function checkFields(facts, names) {
  if (hasFields(facts, names)) return;
  const wrong = [...names.filter((name) => !facts.has(name)), ...[...facts.keys()].filter((name) => !names.includes(name))];
  reject(`fields missing or unknown: ${wrong.map((name) => JSON.stringify(name)).sort().join(", ").slice(0, 200)}`);
}

function checkNetwork(facts, network) {
  if (facts.get("network") !== digestOf(network)) {
    reject("the certificate names another network: the digests differ");
  }
}

// The box that a certificate names, unless it is another one or does not fit the network.
function boxOf(name, network, shifts) {
  if (!shifts) reject("the certificate names a shift set: its file is needed");
  const { low, high } = shifts;
  if (shapeOf(low) === shapeOf(high) && name !== digestOf(shifts)) {
    reject("the certificate names another shift set: the digests differ");
  }
  if ([low, high].some((end) => shapeOf(end) !== shapeOf(network) || !sameFront(end, network))) {
    reject("the shifts have other shapes, biases or input maps than the network");
  }
  const upper = rowsOf(high);
  if (rowsOf(low).some((row, i) => outside(row, row, upper[i]))) {
    reject("a lower end of the shifts lies above its upper end");
  }
  return shifts;
}

// Whether the network lies in the box.
function holds(box, network) {
  const low = rowsOf(box.low), high = rowsOf(box.high);
  return rowsOf(network).every((row, i) => !outside(low[i], row, high[i]));
}

// Check one certificate with at most so much work; what is wrong is thrown.
function checkOne(facts, network, shifts, most, tick) {
  const kind = facts.get("format"), verdict = facts.get("verdict");
  if (kind === FORMAT_FIXED) return new Fixed(facts, network, shifts, most, tick).check();
  const known = [FORMAT_DELTA, FORMAT_BOX, FORMAT_INPUTS].includes(kind);
  if (!known || !["robust", "not robust"].includes(verdict)) {
    reject(`format must be one of ${FORMAT_DELTA}, ${FORMAT_BOX}, ${FORMAT_INPUTS}, and verdict robust or not robust`);
  }
  const wide = kind === FORMAT_INPUTS, robust = verdict === "robust";
  const named = kind === FORMAT_BOX || (wide && !facts.has("delta"));
  checkFields(facts, [
    ...["format", "network", "input", "target", "margin", "verdict", named ? "shifts" : "delta"],
    ...(robust ? ["tighten", "lower", "upper", "trees"] : ["shifted"]),
    ...(wide ? ["low", "high"] : []),
    ...(wide && !robust ? ["point"] : []),
  ]);
  checkNetwork(facts, network);
  const box = named ? boxOf(facts.get("shifts"), network, shifts) : null;
  const claim = new Claim(facts, network, box, most, tick);
  if (robust) claim.robust();
  else claim.notRobust();
  return {
    work: claim.work,
    statement: {
      verdict,
      target: claim.target,
      delta: claim.delta,
      input: [...claim.x],
      margin: claim.asked,
      shifts: box ? facts.get("shifts") : null,
      inside: !box || holds(box, network),
      network: facts.get("network"),
      low: claim.low && [...claim.low],
      high: claim.high && [...claim.high],
      spaces: null,
    },
  };
}

function isBundle(facts) {
  return [FORMAT_BUNDLE, FORMAT_STATED].includes(facts.get("format"));
}

// The certificates in a file: those of a bundle, or the one that it is.
function certificatesOf(facts) {
  if (!isBundle(facts)) return [facts];
  const more = facts.get("format") === FORMAT_STATED ? ["statement"] : [];
  if (!hasFields(facts, ["format", "certificates", ...more])) {
    reject("a bundle must have exactly the fields format and certificates, and in format 2 statement");
  }
  const proofs = listOf("certificates", facts.get("certificates"));
  if (!proofs.length || !proofs.every((proof) => proof instanceof Map)) {
    reject("certificates of a bundle must be a list of one or more certificates");
  }
  return proofs;
}

// Check a certificate, or a bundle, against all the networks and shift sets that it names.
//
// Each certificate finds its network and its box by their digests, and each network and each box that is given
// must be named. A bundle promises one class to one input, so its certificates must all be about these, and
// robust. `most` limits the work of each; each must meet the `demand`. Returns { accepted, reason, lacks,
// statements, bundle, sentence }: where something is proved, but less than is required, what it lacks and what it
// proves. The sentence states in original units what an accepted bundle proves; it is empty if nothing was encoded again.
function check(bytes, networks, boxes, { tick = () => {}, most = MAX_WORK, demand = {} } = {}) {
  const statements = [];
  let bundle = false, sentence = "";
  try {
    checkDigestDemand(bytes, demand);
    const facts = parse(bytes);
    bundle = isBundle(facts);
    const nets = new Map(networks.map((network) => [digestOf(network), network]));
    const sets = new Map(boxes.map((box) => [digestOf(box), box]));
    const unnamed = new Set([...nets.keys(), ...sets.keys()]);
    let left = most * (networks.length + boxes.length);
    for (const proof of certificatesOf(facts)) {
      const named = [proof.get("network"), proof.get("shifts")];
      const network = nets.get(named[0]) || networks[0], box = sets.get(named[1]) || boxes[0] || null;
      const { statement, work } = checkOne(proof, network, box, Math.min(left, most), tick);
      checkDemand(statement, demand, network, box);
      statements.push(statement);
      named.forEach((name) => unnamed.delete(name));
      left -= work;
    }
    if (unnamed.size) reject(`no certificate is about the network or box ${[...unnamed].sort()[0]}`);
    if (bundle) checkBundle(statements);
    if (facts.get("format") === FORMAT_STATED) {
      const outputs = nets.get(statements[0].network).layers.at(-1).W.length;
      sentence = statedSentence(facts.get("statement"), statements[0], Math.max(2, outputs));
    }
    checkNetworkDemand(statements, demand);
  } catch (error) {
    if (!(error instanceof Rejected)) throw error;
    return { accepted: false, reason: error.message, lacks: error.lacks, statements: error.said ? [error.said] : [], bundle, sentence: "" };
  }
  const lines = statements.map((said) => (bundle ? `network ${said.network}: ${lineOf(said)}` : lineOf(said)));
  return { accepted: true, reason: lines.join("; "), statements, bundle, sentence };
}

function checkBundle(statements) {
  if (statements.some((said) => said.verdict !== "robust")) {
    reject("each certificate of a bundle must have the verdict robust");
  }
  const first = statements[0];
  const same = (said) =>
    said.target === first.target &&
    sameNumbers(said.input, first.input) &&
    sameNumbers(said.low || said.input, first.low || first.input) &&
    sameNumbers(said.high || said.input, first.high || first.input);
  if (!statements.every(same)) reject("the certificates of the bundle have different inputs or classes");
}

// -- what is proved, in one line (that of the Python checker) ------------------------------------------------

function boxLine(low, high) {
  return Array.from(low, (v, i) => (v < high[i] ? `[${written(v)}, ${written(high[i])}]` : written(v))).join(", ");
}

function deltaLine(delta) {
  const all = new Set(delta.flatMap((pair) => [...pair])); // 0 and -0 are one
  if (all.size === 1) return written(delta[0][0]);
  return `(weights, biases of each layer: ${delta.map(([w, b]) => `${written(w)}, ${written(b)}`).join("; ")})`;
}

function spacesLine({ spaces, low, high }) {
  const choices = spaces.flatMap((space) => space.choices).filter(({ values }) => values.length > 1).length;
  if (spaces.length === 1 && !choices) return `the box ${boxLine(low, high)}`;
  const count = spaces.length > 1 ? `${spaces.length} spaces` : "the space";
  return `${count} in the box ${boxLine(low, high)}, of certain values in ${choices} choices`;
}

function lineOf(said) {
  const { verdict, target, margin, input, shifts, inside, low, high } = said;
  const where = shifts === null
    ? `within delta ${deltaLine(said.delta)}`
    : `of the shift set ${shifts} (the network itself ${inside ? "lies" : "does not lie"} in it)`;
  if (said.spaces) {
    return `${verdict}: no network ${where} gives class ${target} at any input of ${spacesLine(said)}`;
  }
  const robust = verdict === "robust", some = robust ? "every" : "a";
  const claim = robust ? `gives class ${target} with a margin of at least` : `has for class ${target} a margin below`;
  const what = `${verdict}: ${some} network ${where} ${claim} ${written(margin)}`;
  const x = input.map(written).join(", ");
  return low ? `${what} at ${some} point of the box ${boxLine(low, high)} around input ${x}` : `${what} at input ${x}`;
}
