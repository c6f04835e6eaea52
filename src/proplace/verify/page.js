// The page around the checker: choose files, see what is found.
"use strict";

const at = (id) => document.getElementById(id);
const chosen = new Map(); // files by name, size and time
let worker = null;
let counts = null;

function element(tag, options = {}, ...children) {
  const { text, ...attributes } = options;
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function say(text) {
  at("status").textContent = text;
}

// -- running -------------------------------------------------------------------------------------------------

function stop() {
  if (worker) worker.terminate();
  worker = null;
  at("running").hidden = true;
}

function start() {
  stop();
  at("proofs").replaceChildren();
  at("models").replaceChildren();
  at("files").hidden = true;
  at("again").hidden = !chosen.size;
  counts = { accepted: 0, "not robust": 0, rejected: 0, missing: 0, models: 0, problems: 0 };
  const demand = chosen.size ? demanded() : null;
  if (!demand) return;
  say("Checking …");
  at("running").hidden = false;
  at("bar").removeAttribute("value");
  const address = URL.createObjectURL(new Blob([at("checker").textContent], { type: "text/javascript" }));
  worker = new Worker(address);
  URL.revokeObjectURL(address);
  worker.onmessage = ({ data }) => {
    for (const [kind, found] of Object.entries(data)) HEARD[kind](found);
  };
  worker.onerror = (event) => HEARD.failed(event.message || "the checker could not be started");
  worker.postMessage({ files: [...chosen.values()], demand });
}

const HEARD = {
  progress({ name, done, total }) {
    at("doing").textContent = total ? `${name}: step ${done} of ${total}` : `Reading ${name}`;
    if (total) at("bar").value = done / total;
    else at("bar").removeAttribute("value");
  },
  model: showModel,
  proof: showProof,
  refused(text) {
    stop();
    say(text);
  },
  failed(text) {
    stop();
    say(`The check broke off, so nothing is proved: ${text}`);
  },
  end() {
    stop();
    say(summary());
  },
};

function summary() {
  const { accepted, rejected, missing, models, problems } = counts, broken = counts["not robust"];
  const total = accepted + broken + rejected + missing;
  if (!total) {
    if (!models) return problems ? "None of these files can be checked; the reasons are below." : "";
    return "Now add the certificate: a .json file.";
  }
  const parts = [];
  if (accepted) parts.push(`${accepted} accepted`);
  if (broken) parts.push(`${broken} accepted as a proof that the input is not robust`);
  if (rejected) parts.push(`${rejected} rejected`);
  if (missing) parts.push(`${missing} not checked: a file is missing`);
  return `${total} certificate${total === 1 ? "" : "s"}: ${parts.join(", ")}.`;
}

// -- what is required -----------------------------------------------------------------------------------------

const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const number = (text) => (NUMBER.test(text) ? Number(text) : NaN);
const row = (text) => text.split(",").map((cell) => number(cell.trim()));
const good = (x) => Number.isFinite(x);

// How each demand is read, when it is right, and what it has to be.
const DEMANDS = {
  target: [(text) => (/^\d{1,9}$/.test(text) ? Number(text) : NaN), good, "a whole number, such as 1"],
  delta: [number, (x) => good(x) && x >= 0, "a number from 0 on, such as 0.02"],
  margin: [number, good, "a number, such as 0.5"],
  input: [row, (list) => list.every(good), "numbers with commas between them, such as 0.5,-1,2"],
  low: [row, (list) => list.every(good), "numbers with commas between them, such as 0.5,-1,2"],
  high: [row, (list) => list.every(good), "numbers with commas between them, such as 0.5,-1,2"],
  network: [(text) => text.toLowerCase(), (text) => /^[0-9a-f]{64}$/.test(text), "64 digits and letters from a to f"],
  digest: [(text) => text.toLowerCase(), (text) => /^[0-9a-f]{64}$/.test(text), "64 digits and letters from a to f"],
  shifts: [(text) => text.toLowerCase(), (text) => /^[0-9a-f]{64}$/.test(text), "64 digits and letters from a to f"],
};

// What is entered; null, and said, where something of it cannot be read.
function demanded() {
  const demand = {};
  let wrong = null;
  for (const [name, [read, right, what]] of Object.entries(DEMANDS)) {
    const field = at(name), text = field.value.trim();
    field.removeAttribute("aria-invalid");
    if (!text) continue;
    demand[name] = read(text);
    if (right(demand[name])) continue;
    field.setAttribute("aria-invalid", "true");
    wrong ||= { field, text: `${field.labels[0].textContent}: this must be ${what}. Nothing was checked.` };
  }
  if (!wrong) return demand;
  say(wrong.text);
  at("demands").querySelector("details").open = true;
  wrong.field.focus();
  return null;
}

at("demands").addEventListener("submit", (event) => {
  event.preventDefault();
  start();
  if (!chosen.size) {
    say("Choose the certificate and the file of its model first.");
    at("choose").focus();
  }
});

// -- what is found -------------------------------------------------------------------------------------------

function showModel({ name, digest, problem, words }) {
  counts[problem ? "problems" : "models"] += 1;
  at("files").hidden = false;
  const item = element("li", {}, element("strong", { text: name }));
  if (problem) item.append(element("span", { class: "problem", text: ` cannot be used: ${problem}` }));
  else item.append(` ${words}`, element("br"), element("code", { text: digest }));
  at("models").append(item);
}

function kindOf(proof) {
  if (proof.missing.length) return "missing";
  if (!proof.accepted) return "rejected";
  return proof.said.every((said) => said.verdict !== "not robust") ? "accepted" : "not robust";
}

const BADGES = {
  accepted: "✓ Accepted",
  "not robust": "! Accepted: not robust",
  rejected: "✗ Rejected",
  missing: "… Not checked",
};

const REDONE =
  "This page has encoded the values of this sentence again, and the proof covers them. Its words, its encoding and the " +
  "values of today are the sender's. Compare the SHA-256 below with the one in your letter.";
const NOT_REDONE = "The file has no values in original units, so only encoded numbers were checked.";

const HINTS = { rejected: " Give it without those files to see what it proves of the others." };

function showProof(proof) {
  const kind = kindOf(proof);
  counts[kind] += 1;
  const card = element("article", { class: kind.replace(" ", "-") });
  if (proof.sentence) card.append(element("p", { class: "sentence", text: proof.sentence }));
  card.append(element("h2", {}, element("span", { class: "badge", text: BADGES[kind] }), ` ${proof.name}`));
  if (kind === "missing") {
    proof.missing.forEach((line) => card.append(element("p", { text: line })));
  } else if (kind === "rejected") {
    card.append(element("p", { text: proof.lacks ? "It proves less than you demand." : "It proves nothing about these files." }));
    card.append(element("p", { class: "reason", text: `Why: ${proof.lacks || proof.reason}.` }));
    if (proof.lacks) card.append(element("p", { text: "What it proves is only this:" }));
  }
  if (proof.accepted && proof.said.length > 1) {
    card.append(element("p", { text: `A bundle of ${proof.said.length} certificates about one input; all of them hold.` }));
  }
  if (proof.accepted) card.append(element("p", { class: "small", text: proof.sentence ? REDONE : NOT_REDONE }));
  if (proof.sentence) {
    const details = element("details", {}, element("summary", { text: "For specialists: the proof in encoded values" }));
    proof.said.forEach((said) => showStatement(details, said));
    card.append(details);
  } else proof.said.forEach((said) => showStatement(card, said));
  if (proof.unnamed.length) card.append(element("p", { class: "small", text: `It says nothing about ${listed(proof.unnamed)}.${HINTS[kind] || ""}` }));
  card.append(element("p", { class: "small" }, "SHA-256 of this certificate: ", element("code", { text: proof.digest })));
  at("proofs").append(card);
}

// The first few names, and how many more there are.
function listed(names) {
  const more = names.length - 5;
  return more > 0 ? `${names.slice(0, 5).join(", ")} and ${more} more` : names.join(", ");
}

function showStatement(card, said) {
  card.append(element("p", { class: "sentence", text: said.sentence }));
  const facts = element("dl");
  for (const [name, value] of said.facts) {
    facts.append(element("div", {}, element("dt", { text: name }), element("dd", { text: value })));
  }
  card.append(facts);
  const head = element("tr", {}, ...said.table.names.map((text) => element("th", { scope: "col", text })));
  const rows = said.table.rows.map(([name, ...cells]) =>
    element("tr", {}, element("th", { scope: "row", text: name }), ...cells.map((text) => element("td", { text }))),
  );
  const table = element("table", {}, element("caption", { text: "Encoded inputs" }));
  table.append(element("thead", {}, head), element("tbody", {}, ...rows));
  const details = element("details", {}, element("summary", { text: "All numbers" }));
  // What scrolls can be reached by keyboard.
  details.append(element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Inputs" }, table));
  if (said.table.more) details.append(element("p", { text: `The certificate has ${said.table.more} columns more.` }));
  details.append(element("p", { class: "small" }, "In one line: ", element("code", { text: said.line })));
  if (said.table.rows.length <= 12) details.open = true;
  card.append(details);
}

// -- choosing files ------------------------------------------------------------------------------------------

function add(files) {
  for (const file of files) chosen.set([file.name, file.size, file.lastModified].join("/"), file);
  if (files.length) start();
}

at("choose").addEventListener("change", (event) => {
  add([...event.target.files]);
});
at("choose").addEventListener("click", (event) => {
  event.target.value = ""; // so that a file that was written anew can be chosen again
});
at("cancel").addEventListener("click", () => {
  stop();
  say("Cancelled. What was not yet shown is not checked.");
  at("choose").focus();
});
at("again").addEventListener("click", () => {
  chosen.clear();
  start();
  say("");
  at("choose").focus();
});
addEventListener("dragover", (event) => {
  event.preventDefault();
  at("drop").classList.add("over");
});
addEventListener("dragleave", () => at("drop").classList.remove("over"));
addEventListener("drop", (event) => {
  event.preventDefault();
  at("drop").classList.remove("over");
  add([...event.dataTransfer.files]);
});
