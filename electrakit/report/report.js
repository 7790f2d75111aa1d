/* The page: what is shown of which run, over which axis; it stays the same when the page reloads itself. */

const data = JSON.parse(document.getElementById("data").textContent);
const SHARES = [0, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1];

const page = {
  runs: data.runs.map((run, place) => new Run(run, place)),
  charts: [],
  state: { axis: "steps", smooth: 3, raw: true, hidden: [], theme: null, zoom: null, logs: {}, open: [], place: null },
  memory: `electra report ${location.pathname}`,

  longest: Math.max(1, ...data.runs.map((run) => run.clock.step[run.clock.step.length - 1] || 0)),

  visible() { return this.runs.filter((run) => !this.state.hidden.includes(run.place)); },
  share() { return SHARES[this.state.smooth]; },

  range() {
    if (this.state.zoom) return this.state.zoom;
    return [0, Math.max(...this.visible().map((run) => run.last(this.state.axis)), 0) || 1];
  },

  zoom(range) {
    if (range) range[0] = Math.max(0, range[0]);
    if (range && !(range[1] > range[0])) return;
    this.state.zoom = range;
    this.save();
    this.draw();
  },

  point(wanted, source) { for (const chart of this.charts) chart.follow(wanted, chart === source); },

  draw() {
    document.getElementById("unzoom").hidden = !this.state.zoom;
    for (const chart of this.charts) chart.draw();
    drawCompute(document.getElementById("compute"));
  },

  /* It lives as long as the tab: a file on a disk has no other memory. */
  save() {
    try { sessionStorage.setItem(this.memory, JSON.stringify(this.state)); } catch { /* then the page begins anew */ }
  },

  load() {
    try { Object.assign(this.state, JSON.parse(sessionStorage.getItem(this.memory) || "{}")); } catch { /* as above */ }
    this.state.hidden = this.state.hidden.filter((place) => place < this.runs.length);
  },
};

/* Controls */

function showState() {
  const { state } = page;
  if (state.theme) document.documentElement.dataset.theme = state.theme;
  for (const input of document.querySelectorAll("input[name=axis]")) input.checked = input.value === state.axis;
  document.getElementById("smooth").value = state.smooth;
  const words = page.share() ? `${Number((100 * page.share()).toPrecision(2))} %` : "off";
  document.getElementById("smooth-value").textContent = words;
  document.getElementById("raw").checked = state.raw;
  for (const button of document.querySelectorAll(".legend .run")) {
    button.setAttribute("aria-pressed", String(!state.hidden.includes(Number(button.dataset.run))));
  }
}

function change(changes) {
  Object.assign(page.state, changes);
  page.save();
  showState();
  page.draw();
}

function listen() {
  for (const input of document.querySelectorAll("input[name=axis]")) {
    input.addEventListener("change", () => change({ axis: input.value, zoom: null }));
  }
  document.getElementById("smooth").addEventListener("input", (event) => change({ smooth: Number(event.target.value) }));
  document.getElementById("raw").addEventListener("change", (event) => change({ raw: event.target.checked }));
  document.getElementById("unzoom").addEventListener("click", () => page.zoom(null));
  document.getElementById("theme").addEventListener("click", () => {
    const isDark = page.state.theme ? page.state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    change({ theme: isDark ? "light" : "dark" });
  });
  for (const button of document.querySelectorAll(".legend .run")) {
    const place = Number(button.dataset.run);
    button.addEventListener("click", () => {
      const { hidden } = page.state;
      change({ hidden: hidden.includes(place) ? hidden.filter((one) => one !== place) : [...hidden, place] });
    });
  }
  let waiting = 0;
  new ResizeObserver(() => { clearTimeout(waiting); waiting = setTimeout(() => page.draw(), 60); }).observe(document.querySelector("main"));
  addEventListener("beforeprint", () => {
    for (const one of document.querySelectorAll("details")) one.open = true;
    page.draw();
  });
}

function drawGroups() {
  for (const group of document.querySelectorAll(".group[data-group]")) {
    const specs = data.charts.filter((spec) => spec.group === group.dataset.group)
      .filter((spec) => page.runs.some((run) => run.train[spec.key] || run.valid[spec.key]));
    if (!specs.length) group.remove();
    for (const spec of specs) page.charts.push(new Chart(spec, group.querySelector(".panels"), page));
  }
  if (!page.charts.length) {
    document.getElementById("controls").hidden = true;
    document.querySelector(".key").textContent = "No metrics yet: curves come with the first line of the log.";
  }
}

/* Live: a page that reloads looks as it did. The browser would restore the distance from the top, some time after loading; what stands
   above may have grown, so the position is kept here, and only here. */

function keepPlace() {
  const { state } = page;
  for (const key of state.open) {
    const one = document.getElementById(key);
    if (one) one.open = true;
  }
  const anchor = state.place && document.getElementById(state.place[0]);
  if (anchor) scrollBy({ top: anchor.getBoundingClientRect().top - state.place[1], behavior: "instant" });
  state.place = null;
  page.save();
}

function rememberPlace() {
  page.state.open = [...document.querySelectorAll("details[open]")].map((one) => one.id);
  const anchor = [...document.querySelectorAll("section")].find((one) => one.getBoundingClientRect().bottom > 0);
  page.state.place = anchor ? [anchor.id, anchor.getBoundingClientRect().top] : null;
  page.save();
}

function again() {
  if (document.hidden) document.addEventListener("visibilitychange", again, { once: true });
  else location.reload();
}

page.load();
document.documentElement.classList.add("has-script");
drawGroups();
listen();
showState();
page.draw();
history.scrollRestoration = "manual";
keepPlace();
addEventListener("pagehide", rememberPlace);
if (data.live) setTimeout(again, 1000 * data.live);
document.documentElement.dataset.drawn = "yes";
