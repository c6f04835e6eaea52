// What a certificate must prove to be of use, and what it lacks of that.
//
// A demand has any of: target, delta, margin (numbers), input, low, high (lists of numbers), shifts and network
// (digests), and digest, that of the file. What is proved of an input box reaches from `low` to `high`; a `delta` is proved of a box of
// networks that holds all networks within it.

// It proves something, but less than is required; `said` is what.
class Lacking extends Rejected {
  constructor(lacks, said) {
    super(`${lacks}. The certificate proves only: ${lineOf(said)}`);
    Object.assign(this, { lacks, said });
  }
}

// Whether low + d <= v <= high - d, exactly.
function isWithin(low, v, high, d) {
  const all = [low, v, high, d], p = Math.max(...all.map(placesOf));
  const [from, at, to, by] = all.map((x) => inUnits(x, p));
  return from + by <= at && at <= to - by;
}

// Whether all networks within delta of the network lie in the box.
function holdsAround(box, network, delta) {
  if (!(delta >= 0 && delta < Infinity)) return false;
  const low = rowsOf(box.low), high = rowsOf(box.high);
  return rowsOf(network).every((row, i) => row.every((v, j) => isWithin(low[i][j], v, high[i][j], delta)));
}

// Whether the networks within delta, by its radii, are all those within the demanded one.
function coversDelta(said, delta, network, box) {
  if (box) return holdsAround(box, network, delta);
  return Math.min(...radiiOf(said.delta, network.layers).flat()) >= delta;
}

// What is required and not proved; empty if nothing is.
function lackOf(said, demand, network, box) {
  const asked = Object.keys(demand).filter((name) => name !== "network" && name !== "digest");
  const about = said.verdict === "fixed" ? asked.filter((name) => name !== "delta" && name !== "shifts") : asked;
  if (said.verdict !== "robust" && about.length) return "the certificate has another verdict than the required one";
  const has = (name) => demand[name] !== undefined;
  if (has("target") && demand.target !== said.target) return `class ${demand.target} is required`;
  if (has("delta") && !coversDelta(said, demand.delta, network, box)) return `delta ${written(demand.delta)} is required`;
  if (has("input") && !sameNumbers(demand.input, said.input)) return "another input is required";
  if (has("margin") && !(said.margin >= demand.margin)) return `a margin of ${written(demand.margin)} is required`;
  if (has("shifts") && demand.shifts !== said.shifts) return `the shift set ${demand.shifts} is required`;
  const n = said.input.length, low = said.low || said.input, high = said.high || said.input;
  if (has("low") && (demand.low.length !== n || outside(low, demand.low, demand.low))) {
    return "an input box that reaches further down is required";
  }
  if (has("high") && (demand.high.length !== n || outside(demand.high, demand.high, high))) {
    return "an input box that reaches further up is required";
  }
  return "";
}

// Throw where one certificate proves less than is required.
function checkDemand(said, demand, network, box) {
  const lacks = lackOf(said, demand, network, said.shifts === null ? null : box);
  if (lacks) throw new Lacking(lacks, said);
}

// Throw where no certificate is about the network whose digest is required.
function checkNetworkDemand(statements, demand) {
  if (demand.network === undefined || statements.some((said) => said.network === demand.network)) return;
  throw new Lacking(`the network ${demand.network} is required`, statements[0]);
}

// Throw where another file is required, by its digest.
function checkDigestDemand(bytes, demand) {
  const found = digestOfProof(bytes);
  if (demand.digest !== undefined && demand.digest !== found) {
    reject(`another file is required: the SHA-256 digest of this one is ${found}`);
  }
}
