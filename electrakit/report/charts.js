/* A chart of one metric of all runs */

const START = 0.03;

class Chart {
  constructor(spec, panels, page) {
    Object.assign(this, { spec, page });
    this.panel = element("article", "panel", panels);
    const head = element("header", "", this.panel);
    const title = element("h4", "", head, spec.title);
    title.id = `chart-${spec.key}`;
    if (spec.unit) element("small", "", title, ` ${spec.unit}`);
    if (spec.can_log) this.logButton(head);
    this.about(head);
    this.svg = shape("svg", { role: "img", tabindex: "0", height: SIZE.height, "data-key": spec.key }, this.panel);
    this.tip = element("div", "tip", this.panel);
    this.tip.hidden = true;
    this.listen();
  }

  logButton(head) {
    const button = element("button", "log", head, "log");
    button.type = "button";
    button.title = "Logarithmic axis";
    button.setAttribute("aria-label", `${this.spec.title}: logarithmic axis`);
    button.setAttribute("aria-pressed", String(this.isLog));
    button.addEventListener("click", () => {
      this.page.state.logs[this.spec.key] = !this.isLog;
      button.setAttribute("aria-pressed", String(this.isLog));
      this.page.save();
      this.draw();
    });
  }

  about(head) {
    const button = element("button", "info", head, "?");
    button.type = "button";
    button.title = `${this.spec.shows}\n\nHealthy: ${this.spec.healthy}`;
    button.setAttribute("aria-label", `What ${this.spec.title} shows`);
    button.setAttribute("aria-expanded", "false");
    const words = element("p", "about", this.panel, `${this.spec.shows} `);
    element("b", "", words, "Healthy: ");
    words.append(this.spec.healthy);
    words.hidden = true;
    button.addEventListener("click", () => {
      words.hidden = !words.hidden;
      button.setAttribute("aria-expanded", String(!words.hidden));
    });
  }

  get isLog() {
    return this.page.state.logs[this.spec.key] ?? this.spec.is_log;
  }

  draw() {
    const { spec, page } = this;
    const width = Math.max(240, this.panel.clientWidth - 24);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${SIZE.height}`);
    this.svg.replaceChildren();
    this.found = page.visible().map((run) => run.lines(spec, page.state.axis, page.share() * page.longest)).filter((one) => one.train || one.valid);
    const [from, to] = page.range();
    const drawn = this.found.flatMap((one) => [one.train, page.state.raw ? one.raw : null, one.valid, one.base].filter(Boolean));
    if (spec.baseline === "chance") drawn.push([[from, to], [0.5, 0.5]]);
    const range = this.found.length ? this.rangeOfY(drawn, from, to) : null;
    this.svg.setAttribute("aria-label", this.inWords());
    if (!range) {
      this.x = null;
      shape("text", { x: width / 2, y: SIZE.height / 2, "text-anchor": "middle" }, this.svg, page.visible().length ? "no values" : "all runs are hidden");
      return;
    }
    this.x = scale(from, to, SIZE.left, width - SIZE.right, false);
    this.y = scale(...range, SIZE.height - SIZE.bottom, SIZE.top, this.isLog);
    drawAxes(this.svg, width, this, spec.format, page.state.axis, range, [from, to]);
    this.drawLines(width);
    if (this.isCut) shape("text", { class: "cut", x: width - SIZE.right, y: SIZE.top + 9, "text-anchor": "end" }, this.svg, spec.can_log ? "the start lies outside (log shows it)" : "the start lies outside");
    this.cross = shape("line", { class: "cross", y1: SIZE.top, y2: SIZE.height - SIZE.bottom, visibility: "hidden" }, this.svg);
    this.box = shape("rect", { class: "chosen", y: SIZE.top, height: SIZE.height - SIZE.bottom - SIZE.top, visibility: "hidden" }, this.svg);
  }

  /* The first moments of a run are often far from all that follows: then they leave the frame, which says so. */
  rangeOfY(drawn, from, to) {
    const inside = (start) => rangeOf(drawn.map(([xs, ys]) => ys.filter((_, place) => xs[place] >= start && xs[place] <= to)), this.isLog);
    const [whole, later] = [inside(from) || rangeOf(drawn.map(([, ys]) => ys), this.isLog), inside(to * START)];
    this.isCut = !this.page.state.zoom && !this.isLog && whole && later && later[1] - later[0] < 0.4 * (whole[1] - whole[0]);
    return this.isCut ? later : whole;
  }

  drawLines(width) {
    const clip = `clip-${this.spec.key}`;
    const frame = shape("clipPath", { id: clip }, this.svg);
    shape("rect", { x: SIZE.left - 5, y: SIZE.top - 4, width: width - SIZE.left - SIZE.right + 10, height: SIZE.height - SIZE.bottom - SIZE.top + 8 }, frame);
    const all = shape("g", { "clip-path": `url(#${clip})` }, this.svg);
    if (this.spec.baseline === "chance") {
      shape("line", { class: "baseline all", x1: SIZE.left, x2: width, y1: this.y(0.5), y2: this.y(0.5) }, all);
    }
    for (const { run, train, raw, valid, base } of this.found) {
      const group = shape("g", { class: colourOf(run.place) }, all);
      if (base) this.path(base, "baseline", group);
      if (raw && this.page.state.raw && this.page.share() > 0) this.path(raw, "rawline", group);
      if (train) this.path(this.page.share() > 0 ? train : raw, "curve", group);
      if (valid) this.drawValid(valid, run, group, Boolean(train));
    }
  }

  drawValid([xs, ys], run, group, isBeside) {
    this.path([xs, ys], isBeside ? "validline" : "curve", group);
    if (xs.length > 80) return;
    xs.forEach((x, place) => {
      if (this.isLog && ys[place] <= 0) return;
      shape("path", { class: "mark", d: mark(run.place, this.x(x), this.y(ys[place])) }, group);
    });
  }

  path([xs, ys], name, group) {
    let [words, isOpen] = ["", false];
    for (let place = 0; place < xs.length; place += 1) {
      const value = ys[place];
      if (value === null || (this.isLog && value <= 0)) { isOpen = false; continue; }
      words += `${isOpen ? "L" : "M"}${this.x(xs[place]).toFixed(1)} ${this.y(value).toFixed(1)}`;
      isOpen = true;
    }
    if (words) shape("path", { class: name, d: words }, group);
  }

  inWords() {
    const parts = this.found.map(({ run, train, valid }) => {
      const [, ys] = train || valid;
      const known = ys.filter((value) => value !== null);
      return `${run.name}: from ${shown(known[0], this.spec.format)} to ${shown(known[known.length - 1], this.spec.format)}`;
    });
    return `${this.spec.title}. ${parts.join("; ")}. Arrow keys read values.`;
  }

  /* Values under the pointer, or at the arrow keys' place */

  listen() {
    const place = (event) => {
      const frame = this.svg.getBoundingClientRect();
      return ((event.clientX - frame.left) / frame.width) * this.svg.viewBox.baseVal.width;
    };
    let start = null;
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse" && event.button === 0 && this.x) start = place(event);
      if (event.pointerType !== "mouse") this.point(place(event));
    });
    this.svg.addEventListener("pointermove", (event) => {
      this.point(place(event));
      if (start !== null && this.x) {
        const now = place(event);
        this.box.setAttribute("x", Math.min(start, now));
        this.box.setAttribute("width", Math.abs(now - start));
        this.box.setAttribute("visibility", "visible");
      }
    });
    this.svg.addEventListener("pointerup", (event) => {
      const end = place(event);
      if (start !== null && Math.abs(end - start) > 8) this.page.zoom([start, end].sort((one, two) => one - two).map(this.x.back));
      start = null;
    });
    this.svg.addEventListener("pointerleave", (event) => {
      start = null;
      if (this.box) this.box.setAttribute("visibility", "hidden");
      if (event.pointerType === "mouse") this.page.point(null);
    });
    this.svg.addEventListener("dblclick", () => this.page.zoom(null));
    this.svg.addEventListener("blur", () => this.page.point(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (event.key === "Escape") { this.page.point(null); this.page.zoom(null); return; }
    const far = { ArrowLeft: -1, ArrowRight: 1, PageUp: 20, PageDown: -20 }[event.key];
    if (!far || !this.x) return;
    event.preventDefault();
    const [xs] = this.found[0].train || this.found[0].valid;
    this.at = Math.max(0, Math.min(xs.length - 1, (this.at ?? (far > 0 ? -1 : xs.length)) + far));
    this.point(this.x(xs[this.at]));
    document.getElementById("announce").textContent = this.tip.textContent;
  }

  point(place) {
    if (!this.x || place < SIZE.left - 4) { this.page.point(null); return; }
    const wanted = this.x.back(place);
    this.page.point(wanted, this);
    this.tip.replaceChildren();
    let isFirst = true;
    for (const { run, train, raw, valid } of this.found) {
      const [xs, ys] = train || valid;
      const index = nearest(xs, wanted);
      if (isFirst) element("p", "x", this.tip, atX(xs[index], this.page.state.axis));
      isFirst = false;
      const line = element("p", colourOf(run.place), this.tip);
      element("span", "chip", line);
      line.append(`${cut(run.name)} `);
      element("b", "", line, shown(ys[index], this.spec.format));
      if (train && this.page.share() > 0 && this.found.length < 6) {
        const own = raw[1][nearest(raw[0], xs[index])];
        if (own !== ys[index]) line.append(` (raw ${shown(own, this.spec.format)})`);
      }
      if (train && valid) {
        const near = nearest(valid[0], wanted);
        line.append(` · validation ${shown(valid[1][near], this.spec.format)}`);
      }
    }
    this.tip.hidden = isFirst;
    const [frame, panel] = [this.svg.getBoundingClientRect(), this.panel.getBoundingClientRect()];
    const across = frame.left - panel.left + (place * frame.width) / this.svg.viewBox.baseVal.width;
    const isRight = across > panel.width / 2;
    this.tip.style.top = `${frame.top - panel.top + SIZE.top}px`;
    this.tip.style.left = isRight ? "auto" : `${across + 14}px`;
    this.tip.style.right = isRight ? `${panel.width - across + 14}px` : "auto";
  }

  follow(wanted, isOwn) {
    if (!isOwn) this.tip.hidden = true;
    if (!this.x) return;
    this.cross.setAttribute("visibility", wanted === null ? "hidden" : "visible");
    if (wanted === null) return;
    this.cross.setAttribute("x1", this.x(wanted));
    this.cross.setAttribute("x2", this.x(wanted));
  }
}

/* The marks of validations differ in shape too */
function mark(place, x, y) {
  const [a, b, r] = [x.toFixed(1), y.toFixed(1), 3.2];
  const square = `M${x - r + 0.4} ${y - r + 0.4}h5.6v5.6h-5.6z`;
  const diamond = `M${a} ${y - 4}L${x + 4} ${b}L${a} ${y + 4}L${x - 4} ${b}z`;
  const triangle = `M${a} ${y - 4}L${x + 3.8} ${y + 3}L${x - 3.8} ${y + 3}z`;
  return [`M${x - r} ${b}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`, square, diamond, triangle][place % 4];
}

function drawAxes(svg, width, { x, y, isLog }, format, axis, range, [from, to]) {
  const bottom = SIZE.height - SIZE.bottom;
  for (const value of isLog ? logTicks(...range) : ticks(...range, 4)) {
    shape("line", { class: "rule", x1: SIZE.left, x2: width - SIZE.right, y1: y(value), y2: y(value) }, svg);
    shape("text", { x: SIZE.left - 6, y: y(value) + 4, "text-anchor": "end" }, svg, onAxis(value, format));
  }
  const [unit, size] = axis === "time" ? timeUnit(to) : [axis, 1];
  for (const value of ticks(from / size, to / size, Math.max(2, Math.min(6, width / 85)))) {
    const place = x(value * size);
    shape("line", { class: "frame", x1: place, x2: place, y1: bottom, y2: bottom + 4 }, svg);
    shape("text", { x: place, y: bottom + 16, "text-anchor": place > width - 26 ? "end" : "middle" }, svg, short(value, 4));
  }
  shape("line", { class: "frame", x1: SIZE.left, x2: width - SIZE.right, y1: bottom, y2: bottom }, svg);
  shape("text", { x: (SIZE.left + width - SIZE.right) / 2, y: SIZE.height - 4, "text-anchor": "middle" }, svg, unit);
}
