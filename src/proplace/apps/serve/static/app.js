// What the page does beyond forms and links. Everything works without it but what is live.
"use strict";

const token = document.querySelector("meta[name=csrf]")?.content;

// -- login: a key behind the # of a link, which no server and no log ever sees ---------------------

const login = document.getElementById("login");
if (login && location.hash.startsWith("#pp_")) {
  login.key.value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  login.submit();
}

// -- buttons ---------------------------------------------------------------------------------------

for (const form of document.forms) {
  form.addEventListener("submit", (event) => {
    const button = event.submitter;
    if (!button?.dataset.busy) return;
    if (button.getAttribute("aria-disabled") === "true") return event.preventDefault();
    button.setAttribute("aria-disabled", "true");
    button.textContent = button.dataset.busy;
  });
}

for (const button of document.querySelectorAll("[data-print]")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const letter = window.open(button.dataset.print);
    letter?.addEventListener("load", () => letter.print());
  });
}

// -- values to try: the decision and the proved margin while they move -----------------------------

for (const form of document.querySelectorAll("form.try")) {
  const said = (name) => form.querySelector(`[data-live=${name}]`);
  const controls = [...form.querySelectorAll("[data-name]")];
  const sliders = [...form.querySelectorAll(".slider")];
  let asking = false, again = false, waiting = 0;

  const value = (control) => {
    if (control.tagName === "SELECT") {
      const choice = control.selectedOptions[0];
      return choice?.dataset.value === undefined ? null : JSON.parse(choice.dataset.value);
    }
    const text = control.value.trim();
    return text === "" ? null : Number.isFinite(Number(text)) ? Number(text) : text;
  };

  const person = () => {
    const known = {};
    for (const control of controls) {
      const found = value(control);
      if (found !== null) known[control.dataset.name] = found;
    }
    return known;
  };

  const show = (found) => {
    const answers = {true: form.dataset.yes, false: form.dataset.no, null: form.dataset.unknown};
    said("decision").textContent = found.accepted ? form.dataset.accepted : form.dataset.other;
    said("decision").className = found.accepted ? "yes" : "no";
    said("proved").textContent = answers[found.robust];
    said("proved").className = found.robust ? "yes" : "no";
    said("margin").textContent = found.margin.toPrecision(4);
    said("problem").textContent = "";
    clearTimeout(waiting);  // read aloud once it rests
    waiting = setTimeout(() => {
      said("words").textContent = [...form.querySelectorAll(".live dl div")]
        .map((pair) => `${pair.querySelector("dt").textContent}: ${pair.querySelector("dd").textContent}`)
        .join(". ");
    }, 700);
  };

  const fail = (text) => {
    for (const name of ["decision", "proved", "margin"]) {
      said(name).textContent = "–";
      said(name).className = "";
    }
    said("problem").textContent = text;
  };

  // One question at a time; what moved meanwhile is asked next.
  const ask = async () => {
    if (asking) { again = true; return; }
    asking = true;
    try {
      do {
        again = false;
        const answer = await fetch(form.dataset.certify, {
          method: "POST",
          headers: {"content-type": "application/json", "x-csrf-token": token},
          body: JSON.stringify({people: [person()]}),
        });
        const found = await answer.json();
        if (again) continue;
        if (answer.ok) show(found[0]);
        else fail(form.dataset.failed.replace("{reason}", found.error.replace("person 0: ", "")));
        if (answer.status === 429) break;
      } while (again);
    } catch {
      fail(form.dataset.offline);
    } finally {
      asking = false;
    }
  };

  for (const slider of sliders) {
    const own = document.getElementById(slider.dataset.for);
    slider.hidden = false;
    slider.addEventListener("input", () => { own.value = slider.value; ask(); });
    own.addEventListener("input", () => { slider.value = own.value; });
  }
  form.addEventListener("input", (event) => { if (event.target.dataset.name) ask(); });
  form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });

  const starts = form.querySelector(".starts");
  if (starts) starts.hidden = false;
  for (const button of form.querySelectorAll("[data-start]")) {
    button.addEventListener("click", () => {
      const start = JSON.parse(button.dataset.start);
      for (const control of controls) {
        const given = start[control.dataset.name] ?? null;
        if (control.tagName === "SELECT") {
          for (const choice of control.options) {
            choice.selected = choice.dataset.value !== undefined && JSON.parse(choice.dataset.value) == given;
          }
        } else control.value = given ?? "";
      }
      for (const slider of sliders) slider.value = document.getElementById(slider.dataset.for).value;
      ask();
    });
  }
  ask();
}

// -- jobs: how far they are, until they end --------------------------------------------------------

for (const place of document.querySelectorAll("[data-job]")) {
  const look = async () => {
    try {
      const answer = await fetch(place.dataset.job);
      const job = await answer.json();
      if (answer.ok && !["waiting", "running"].includes(job.state)) return location.reload();
      const bar = place.querySelector("progress");
      if (answer.ok && job.total > 1 && bar) { bar.max = job.total; bar.value = job.done; }
    } catch { /* the service may come back */ }
    setTimeout(look, 1000);
  };
  setTimeout(look, 500);
}
