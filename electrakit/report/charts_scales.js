"use strict";
/* What charts are made of: nodes, numbers for people, scales, and the points of a run. What comes from a run becomes text, never markup. */

const SVG = "http://www.w3.org/2000/svg";
const SIZE = { height: 214, left: 54, right: 12, top: 10, bottom: 34 };

function shape(name, attributes, parent, words) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (words !== undefined) node.textContent = words;
  if (parent) parent.append(node);
  return node;
}

function element(name, className, parent, words) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (words !== undefined) node.textContent = words;
  if (parent) parent.append(node);
  return node;
}

/* A long name: how it begins, and how it ends, where names of one family differ */
function cut(name) {
  return name.length > 26 ? `${name.slice(0, 11)}…${name.slice(-14)}` : name;
}

function colourOf(place) {
  return `run${place % 8}${place >= 8 ? " again" : ""}`;
}

/* Numbers for people */

function short(value, digits = 3) {
  const size = Math.abs(value);
  for (const [unit, factor] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (size >= factor * 0.9995) return `${Number((value / factor).toPrecision(digits))} ${unit}`;
  }
  return size > 0 && size < 1e-3 ? value.toExponential(1).replace(".0e", "e") : String(Number(value.toPrecision(digits)));
}

function shown(value, format) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (format === "percent") return `${(100 * value).toFixed(1)} %`;
  if (format === "count") return Math.round(value).toLocaleString("en");
  if (format === "rate") return Number(value.toPrecision(3)).toString();
  return Math.abs(value) >= 100 ? value.toFixed(1) : value.toFixed(3);
}

function onAxis(value, format) {
  return format === "percent" ? `${Number((100 * value).toPrecision(4))} %` : short(value, 4);
}

const TIMES = [["days", 86400], ["hours", 3600], ["minutes", 60], ["seconds", 1]];

function timeUnit(high) {
  return TIMES.find(([, seconds]) => high >= 2.5 * seconds) || TIMES[3];
}

function duration(seconds) {
  const [whole, rest] = [Math.floor(seconds / 60), Math.round(seconds % 60)];
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${whole} min ${rest} s`;
  return `${Math.floor(whole / 60)} h ${whole % 60} min`;
}

function atX(value, axis) {
  if (axis === "time") return duration(value);
  return axis === "tokens" ? `${short(value)} tokens` : `step ${Math.round(value).toLocaleString("en")}`;
}

/* Scales */

function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= rough * 0.999) || 10 * power;
  const found = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place += 1) found.push(place * step);
  return found;
}

function logTicks(low, high) {
  const found = [];
  const factors = high / low > 1e3 ? [1] : high / low > 20 ? [1, 3] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of factors) {
      const value = factor * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  }
  return found.length >= 2 ? found : ticks(low, high, 4).filter((value) => value > 0);
}

function scale(low, high, from, to, isLog) {
  const [turn, start, end] = isLog ? [Math.log, Math.log(low), Math.log(high)] : [(value) => value, low, high];
  const factor = (to - from) / (end - start || 1);
  const forward = (value) => from + (turn(value) - start) * factor;
  forward.back = (place) => { const value = start + (place - from) / factor; return isLog ? Math.exp(value) : value; };
  return forward;
}

function rangeOf(lists, isLog) {
  let [low, high] = [Infinity, -Infinity];
  for (const values of lists) {
    for (const value of values) {
      if (value === null || (isLog && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low === Infinity) return null;
  const isFlat = high - low <= 1e-6 * Math.max(Math.abs(low), Math.abs(high)); /* a mean of equal numbers is not quite equal */
  if (isLog) return isFlat ? [low / 2, high * 2] : [low / (high / low) ** 0.05, high * (high / low) ** 0.05];
  const room = isFlat ? Math.abs(low) * 0.1 || 1 : (high - low) * 0.06;
  return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
}

function nearest(values, wanted) {
  let [low, high] = [0, values.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle; else high = middle;
  }
  return Math.abs(values[low] - wanted) <= Math.abs(values[high] - wanted) ? low : high;
}

/* Gaussian smoothing over neighbours on both sides, so many points wide: nothing lags behind */
function smooth(values, sigma) {
  if (sigma < 0.3) return values;
  const reach = Math.min(values.length - 1, Math.ceil(3 * sigma));
  const kernel = Array.from({ length: reach + 1 }, (_, far) => Math.exp(-0.5 * (far / sigma) ** 2));
  return values.map((value, place) => {
    if (value === null) return null;
    let [sum, weight] = [0, 0];
    for (let other = Math.max(0, place - reach); other <= Math.min(values.length - 1, place + reach); other += 1) {
      if (values[other] === null) continue;
      const own = kernel[Math.abs(other - place)];
      sum += own * values[other];
      weight += own;
    }
    return sum / weight;
  });
}

/* A run: its points in the unit of the x axis */

class Run {
  constructor(data, place) {
    Object.assign(this, data);
    this.place = place;
    this.at = data.at || data.clock.step;
    const known = data.clock.step.map((step, index) => [step, data.clock.seconds[index]]).filter(([, seconds]) => seconds !== null);
    this.times = [[0, 0], ...known.filter(([step]) => step > 0)];
    this.cache = new Map();
  }

  kept(key, compute) {
    if (!this.cache.has(key)) this.cache.set(key, compute());
    return this.cache.get(key);
  }

  seconds(step) {
    const times = this.times;
    if (times.length < 2) return 0;
    let [low, high] = [0, times.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (times[middle][0] <= step) low = middle; else high = middle;
    }
    const [[fromStep, from], [toStep, to]] = [times[low], times[high]];
    return from + ((step - fromStep) / (toStep - fromStep)) * (to - from);
  }

  xs(steps, axis) {
    if (axis === "steps") return steps;
    if (axis === "tokens") return steps.map((step) => step * this.tokens_per_step);
    return steps.map((step) => this.seconds(step));
  }

  /* Everything that is drawn of one metric; smoothed over so many steps, the same in all runs. */
  lines(chart, axis, numSteps) {
    return this.kept(`${chart.key} ${axis} ${numSteps}`, () => {
      const sigma = !chart.can_smooth ? 0 : (numSteps * (this.at.length - 1)) / (this.at[this.at.length - 1] - this.at[0] || 1);
      const [train, valid] = [this.train[chart.key], this.valid[chart.key]];
      const found = { run: this, train: null, raw: null, valid: null, base: null };
      if (train) {
        found.train = [this.xs(this.at, axis), smooth(train.mean, sigma)];
        found.raw = train.raw ? [this.xs(train.raw[0], axis), train.raw[1]] : [found.train[0], train.mean];
      }
      if (valid) { /* before the first step there is nothing to compare with */
        const kept = valid[0].map((step, place) => place).filter((place) => !train || valid[0][place] > 0);
        found.valid = kept.length ? [this.xs(kept.map((place) => valid[0][place]), axis), kept.map((place) => valid[1][place])] : null;
      }
      const rates = this.base_rate && this.train[this.base_rate];
      if (rates && (chart.baseline === "entropy" || chart.baseline === "majority")) {
        const baseline = chart.baseline === "entropy" ? entropy : (rate) => Math.max(rate, 1 - rate);
        found.base = [this.xs(this.at, axis), smooth(rates.mean, Math.max(sigma, 1)).map((rate) => (rate === null ? null : baseline(rate)))];
      }
      return found;
    });
  }

  last(axis) {
    const steps = [...this.clock.step.slice(-1), ...Object.values(this.valid).map(([at]) => at[at.length - 1])];
    return steps.length ? Math.max(...this.xs(steps, axis)) : 0;
  }
}

function entropy(rate) {
  return rate <= 0 || rate >= 1 ? 0 : -rate * Math.log(rate) - (1 - rate) * Math.log(1 - rate);
}
