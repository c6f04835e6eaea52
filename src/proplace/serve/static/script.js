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
  let sent = 0, timer = 0;

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

  const display = (kind, text) => {
    verdict.className = `verdict js ${kind}`;
    if (verdict.textContent !== text) verdict.textContent = text;
  };

  const decide = async () => {
    const number = ++sent, changes = {};
    for (const control of controls) changes[control.dataset.name] = control.value;
    try {
      const answer = await fetch(`${document.body.dataset.root}/api/v1/certify`, {
        method: "POST",
        headers: {"content-type": "application/json"},
        body: JSON.stringify({answer: bars.dataset.answer, changes}),
      });
      const found = await answer.json();
      if (number !== sent) return;
      if (!answer.ok) return display("not", Object.values(found.fields || {})[0] || found.error);
      display(!found.possible ? "not" : !found.accepted ? "no" : found.guaranteed ? "sure" : "now", found.sentence);
    } catch {
      if (number === sent) display("not", "The workbench does not respond.");
    }
  };

  const moved = control => {
    show(control);
    clearTimeout(timer);
    timer = setTimeout(decide, 40);
  };
  for (const control of controls) {
    show(control);
    control.addEventListener("input", () => moved(control));
  }
  document.getElementById("reset").addEventListener("click", () => {
    for (const [control, value] of first) { control.value = value; show(control); }
    decide();
  });
}
