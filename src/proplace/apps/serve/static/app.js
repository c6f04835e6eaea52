// What the page does beyond forms and links. Everything works without it but what is live.
"use strict";

const token = document.querySelector("meta[name=csrf]")?.content;

// -- login: a key behind the # of a link, which no server and no log ever sees ---------------------

// It is filled in, and whoever sees the page presses the button: a link may be anybody's. One from
// elsewhere comes without the cookie, so this page asks again whose session a login would end.

const login = document.getElementById("login");

const fillIn = async (key) => {
  try {
    const text = await (await fetch("/login")).text();
    const told = new DOMParser().parseFromString(text, "text/html").getElementById("running");
    const place = document.getElementById("running");
    place.textContent = told.textContent;
    place.hidden = told.hidden;
  } catch {}  // the login itself tells that the service is not there
  login.key.value = key;
  login.querySelector("button").focus();
};

const takeKey = () => {
  if (!login || !location.hash.startsWith("#pp_")) return;
  const key = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  fillIn(key);
};

takeKey();
addEventListener("hashchange", takeKey);  // a link that is followed where this page is open already

// -- forms: nothing that was entered is lost where the service is not there --------------------------

const alive = async () => {
  try {
    return (await fetch("/api/v1/health", {signal: AbortSignal.timeout(4000)})).status < 500;
  } catch {
    return false;
  }
};

const busy = (button) => {
  if (!button?.dataset.busy) return;
  button.dataset.rest ??= button.textContent;
  button.setAttribute("aria-disabled", "true");
  button.textContent = button.dataset.busy;
};

const rest = (button) => {
  button.removeAttribute("aria-disabled");
  if (button.dataset.rest) button.textContent = button.dataset.rest;
};

const gone = (form) => {
  form.querySelector(".gone")?.remove();
  const said = document.createElement("p");
  said.className = "problem gone";
  said.tabIndex = -1;
  said.setAttribute("role", "alert");
  said.textContent = document.body.dataset.gone;
  form.append(said);
  said.focus();
};

for (const form of document.forms) {
  if (form.classList.contains("try")) continue;
  let sure = false;
  form.addEventListener("submit", async (event) => {
    if (sure) { sure = false; return; }
    event.preventDefault();
    const button = event.submitter;
    if (button?.getAttribute("aria-disabled") === "true") return;
    busy(button);
    if (await alive()) {
      sure = true;
      form.requestSubmit(button);
    } else {
      if (button) rest(button);
      gone(form);
    }
  });
}

addEventListener("pageshow", (event) => {  // the page as it was left, with its buttons
  if (event.persisted) document.querySelectorAll("[data-busy]").forEach(rest);
});

for (const button of document.querySelectorAll("[data-print]")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const letter = window.open(button.dataset.print);
    if (letter) letter.addEventListener("load", () => letter.print());
    else location.href = button.dataset.print;  // where windows of their own are not allowed
  });
}

// -- values to try: the decision and the proved margin while they move -----------------------------

const PATIENCE = 150;  // milliseconds after which a question is given up for a newer one
const NUMBER = /^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?$/i;  // what the service reads as one

for (const form of document.querySelectorAll("form.try")) {
  const said = (name) => form.querySelector(`[data-live=${name}]`);
  const live = form.querySelector(".live"), words = form.dataset;
  const controls = [...form.querySelectorAll("[data-name]")];
  const sliders = [...form.querySelectorAll(".slider")];
  const outcomes = new Map(JSON.parse(words.outcomes));
  let wanted = 0;     // how often something moved
  let flight = null;  // the only question on its way
  let later = 0;      // the timer of a question that waits, after a failure
  let resting = 0, ended = false;

  const value = (control) => {
    if (control.tagName === "SELECT") {
      const choice = control.selectedOptions[0];
      return choice?.dataset.value === undefined ? null : JSON.parse(choice.dataset.value);
    }
    const text = control.value.trim();
    if (text === "") return null;
    return NUMBER.test(text) && Number.isFinite(Number(text)) ? Number(text) : text;
  };

  const person = () => {
    const known = {};
    for (const control of controls) {
      const found = value(control);
      if (found !== null) known[control.dataset.name] = found;
    }
    return known;
  };

  const stale = (is) => {
    live.classList.toggle("stale", is);
    live.setAttribute("aria-busy", String(is));
  };

  const show = (found) => {
    const answers = {true: words.yes, false: words.no, null: words.unknown};
    said("decision").textContent = outcomes.get(found.label);
    said("decision").className = found.accepted ? "yes" : "no";
    said("proved").textContent = answers[found.robust];
    said("proved").className = found.robust ? "yes" : "no";
    said("margin").textContent = found.margin.toPrecision(4);
    said("problem").textContent = "";
  };

  const aloud = () => {  // once it rests
    said("words").textContent = [...form.querySelectorAll(".live dl div")]
      .map((pair) => `${pair.querySelector("dt").textContent}: ${pair.querySelector("dd").textContent}`)
      .join(". ");
  };

  const fail = (text) => {
    for (const name of ["decision", "proved", "margin"]) {
      said(name).textContent = "–";
      said(name).className = "";
    }
    said("words").textContent = "";
    said("problem").textContent = text;
  };

  // What was answered; seconds until it is worth asking again, or 0.
  const heard = (answer, found) => {
    if (answer.ok) return show(found[0]), 0;
    if (answer.status === 401 || answer.status === 403) return ended = true, fail(words.ended), 0;
    if ([429, 503, 504].includes(answer.status)) {
      const seconds = Number(answer.headers.get("retry-after")) || 2;
      return fail(words.crowded.replace("{seconds}", seconds)), seconds;
    }
    return fail(words.failed.replace("{reason}", found.error.replace("person 0: ", ""))), 0;
  };

  const send = async () => {
    const number = wanted;
    let wait = 0;
    later = 0;
    flight = {since: performance.now(), controller: new AbortController()};
    try {
      const answer = await fetch(words.certify, {
        method: "POST",
        headers: {"content-type": "application/json", "x-csrf-token": token},
        body: JSON.stringify({people: [person()]}),
        signal: flight.controller.signal,
      });
      wait = heard(answer, await answer.json());
    } catch (error) {
      if (error.name !== "AbortError") { fail(words.offline); wait = 3; }
    }
    flight = null;
    if (ended) return stale(false);
    if (wait) later = setTimeout(send, 1000 * wait);
    else if (wanted !== number) send();
    else {
      stale(false);
      resting = setTimeout(aloud, 700);
    }
  };

  // Something moved: asked at once, or after the question on its way, which is given up if it is slow.
  const ask = () => {
    wanted += 1;
    clearTimeout(resting);
    if (ended) return;
    stale(true);
    if (flight) {
      const slow = flight, left = PATIENCE - (performance.now() - slow.since);
      setTimeout(() => slow.controller.abort(), Math.max(0, left));
    } else if (!later) send();
  };

  const follow = (slider) => {
    const own = document.getElementById(slider.dataset.for);
    slider.value = own.value;
    slider.setAttribute("aria-valuetext", `${own.value} ${slider.dataset.unit}`.trim());
  };

  for (const slider of sliders) {
    const own = document.getElementById(slider.dataset.for);
    slider.hidden = false;
    follow(slider);
    slider.addEventListener("input", () => { own.value = slider.value; follow(slider); ask(); });
    own.addEventListener("input", () => follow(slider));
  }
  form.addEventListener("input", (event) => { if (event.target.dataset.name) ask(); });
  form.addEventListener("submit", (event) => {  // who has to log in does so with what was entered
    if (!ended) { event.preventDefault(); ask(); }
  });

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
      sliders.forEach(follow);
      ask();
    });
  }
  ask();
}

// -- jobs: how far they are, until they end --------------------------------------------------------

for (const place of document.querySelectorAll("[data-job]")) {
  const said = place.querySelector("[data-gone]");
  const look = async () => {
    try {
      const answer = await fetch(place.dataset.job), job = await answer.json();
      const over = answer.ok && !["waiting", "running"].includes(job.state);
      if (over || [401, 403, 404].includes(answer.status)) return location.reload();
      const bar = place.querySelector("progress");
      if (answer.ok && job.total > 1 && bar) { bar.max = job.total; bar.value = job.done; }
      said.textContent = "";
    } catch {
      said.textContent = said.dataset.gone;  // it may come back, and then goes on
    }
    setTimeout(look, 1000);
  };
  setTimeout(look, 500);
}
