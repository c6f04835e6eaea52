// The worker: reads the files, checks every certificate among them, and tells the page as it goes.

const MAX_FILES = 2000;
const MAX_TOGETHER = 512000000; // bytes of all files
const TOLD_EVERY = 100; // milliseconds

// A tick that tells how far a check is, now and then.
function ticker(post, name) {
  let last = 0;
  return (done, total) => {
    const now = Date.now();
    if (now - last < TOLD_EVERY) return;
    last = now;
    post({ progress: { name, done, total } });
  };
}

function isZip(bytes) {
  return bytes[0] === 0x50 && bytes[1] === 0x4b; // PK
}

// A model in a format of another program: neither a network that this page reads, nor a certificate.
const OTHER_FORMATS = /\.(onnx|keras|h5|pt|pth|safetensors)$/i;
const OTHER_FORMAT =
  "this page reads the network as a .npz file; “proplace ledger show --proof” writes it beside the certificate";

function digestOfBytes(bytes) {
  return new Sha256().update(bytes).hex();
}

// The digest of a certificate: that of its file, without the line end behind it.
function digestOfProof(bytes) {
  return digestOfBytes(bytes.at(-1) === 0x0a ? bytes.subarray(0, -1) : bytes);
}

async function modelOf(name, bytes) {
  try {
    const { network, shifts } = await readModel(bytes), thing = network || shifts;
    const layers = (network || shifts.low).layers, outputs = layers.at(-1).W.length;
    const sizes = [inputsOf(network || shifts.low), ...layers.map(({ W }) => W.length)].join("-");
    const kind = network ? "network" : "shift set";
    return { name, network, shifts, digest: digestOf(thing), words: `${kind}, ${sizes} (${plural(outputs, "output")})` };
  } catch (error) {
    if (!(error instanceof Rejected)) throw error;
    return { name, problem: error.message };
  }
}

// What a certificate names and the files do not hold, in words; empty if nothing is missing.
function missingOf(proofs, models) {
  const has = (digest) => models.some((model) => model.digest === digest);
  const wanted = new Map();
  for (const proof of proofs) {
    for (const [field, what] of [["network", "network"], ["shifts", "shift set (shifts.npz)"]]) {
      const digest = proof.get(field);
      if (typeof digest === "string" && /^[0-9a-f]{64}$/.test(digest) && !has(digest)) wanted.set(digest, what);
    }
  }
  return [...wanted].map(([digest, what]) => `Add the .npz file of the ${what} with the SHA-256 digest ${digest}.`);
}

// Check one file of a certificate or a bundle against the models that were given with it.
//
// Alone, or as a bundle, it must name all of them. Among several, a certificate by itself is checked against
// those that it names: the others are for other certificates. `unnamed` has what it says nothing of.
function proofOf(name, bytes, models, { alone, demand, tick }) {
  const found = { name, digest: digestOfProof(bytes), accepted: false, missing: [], unnamed: [], said: [] };
  let facts, proofs;
  try {
    facts = parse(bytes);
    proofs = certificatesOf(facts);
  } catch (error) {
    if (!(error instanceof Rejected)) throw error;
    return { ...found, reason: error.message };
  }
  const missing = models.some((model) => model.network) ? missingOf(proofs, models) : ["Add the .npz file of its network."];
  if (missing.length) return { ...found, missing, reason: "a file that it names is missing" };
  const names = new Set(proofs.flatMap((proof) => [proof.get("network"), proof.get("shifts")]));
  const named = models.filter((model) => names.has(model.digest));
  const all = alone || isBundle(facts);
  const given = all || !named.some((model) => model.network) ? models : named;
  const networks = given.filter((model) => model.network), boxes = given.filter((model) => model.shifts);
  const { accepted, reason, lacks, statements, sentence } = check(
    bytes,
    networks.map((model) => model.network),
    boxes.map((model) => model.shifts),
    { tick, demand },
  );
  const files = new Map(models.map((model) => [model.digest, model]));
  const unnamed = models.filter((model) => !names.has(model.digest)).map((model) => visible(model.name));
  return { ...found, accepted, reason, lacks, unnamed, sentence, said: statements.map((said) => wordsOf(said, files)) };
}

// Look at all files, and post what is found: models, proofs, and the end.
async function examine({ files, demand }, post) {
  if (files.length > MAX_FILES || sumOf(files.map((file) => file.size)) > MAX_TOGETHER) {
    post({ refused: `These are more than ${MAX_FILES} files, or more than ${MAX_TOGETHER / 1e6} MB. Check fewer at a time.` });
    return;
  }
  const models = [], proofs = [];
  for (const file of files) {
    const name = file.name;
    post({ progress: { name, done: 0, total: 0 } });
    if (OTHER_FORMATS.test(name)) {
      post({ model: { name: visible(name), problem: OTHER_FORMAT } });
      continue;
    }
    const bytes = new Uint8Array(await file.arrayBuffer());
    if (!isZip(bytes)) {
      proofs.push({ name, bytes });
      continue;
    }
    const model = await modelOf(name, bytes), { digest, problem, words } = model;
    post({ model: { name: visible(name), digest, problem, words } });
    if (!problem && !models.some((other) => other.digest === digest)) models.push(model);
  }
  for (const { name, bytes } of proofs) {
    const how = { alone: proofs.length === 1, demand, tick: ticker(post, name) };
    post({ proof: { ...proofOf(name, bytes, models, how), name: visible(name) } });
  }
  post({ end: { models: models.length } });
}

if (typeof WorkerGlobalScope !== "undefined") {
  self.onmessage = ({ data }) => examine(data, (found) => self.postMessage(found));
  // What is not foreseen must reach the page as an error, not as silence.
  self.onunhandledrejection = ({ reason }) => self.postMessage({ failed: String(reason) });
}
