// Sliders with a live verdict, and forms that are sent once. Everything else works without this.
"use strict";

for (const form of document.querySelectorAll("form.once")) {
  form.addEventListener("submit", event => {
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "yes";
  });
}
addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form.once")) delete form.dataset.sent;
});

const bars = document.querySelector("[data-answer]");
if (bars) {
  document.body.classList.add("live");
  const controls = [...bars.querySelectorAll("[data-name]")];
  const first = new Map(controls.map(control => [control, control.value]));
  const verdict = document.getElementById("verdict");
  let asked = 0, timer = 0;

  const show = control => {
    const feature = control.closest(".feature"), you = feature.querySelector("svg.you");
    if (control.type !== "range") return;
    const share = (control.value - control.min) / (control.max - control.min);
    you.setAttribute("x", `${100 * share}%`);
    const value = Number(control.value), unit = control.dataset.unit;
    const text = Math.abs(value) >= 10000 ? value.toLocaleString("en") : String(Number(value.toPrecision(9)));
    const words = unit.startsWith("%") ? `${text}${unit}` : /^[$€£¥]$/.test(unit) ? `${unit}${text}` : `${text} ${unit}`;
    feature.querySelector("output").textContent = words.trim();
    control.setAttribute("aria-valuetext", words.trim());
  };

  const tell = (kind, text) => {
    verdict.className = `verdict js ${kind}`;
    if (verdict.textContent !== text) verdict.textContent = text;
  };

  const ask = async () => {
    const number = ++asked, changes = {};
    for (const control of controls) changes[control.dataset.name] = control.value;
    try {
      const answer = await fetch(`${document.body.dataset.root}/api/v1/certify`, {
        method: "POST",
        headers: {"content-type": "application/json"},
        body: JSON.stringify({answer: bars.dataset.answer, changes}),
      });
      const found = await answer.json();
      if (number !== asked) return;
      if (!answer.ok) return tell("not", Object.values(found.fields || {})[0] || found.error);
      tell(!found.possible ? "not" : !found.accepted ? "no" : found.guaranteed ? "sure" : "now", found.sentence);
    } catch {
      if (number === asked) tell("not", "The workbench does not answer.");
    }
  };

  const moved = control => {
    show(control);
    clearTimeout(timer);
    timer = setTimeout(ask, 40);
  };
  for (const control of controls) {
    show(control);
    control.addEventListener("input", () => moved(control));
  }
  document.getElementById("reset").addEventListener("click", () => {
    for (const [control, value] of first) { control.value = value; show(control); }
    ask();
  });
}
