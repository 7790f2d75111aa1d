// The page: one text, as each model reads it, and a game about it.

import { about as askAbout, ask, Trouble } from "./api.js";
import { Game } from "./game.js";
import * as predictions from "./predictions.js";
import { Line, make, percent } from "./tokens.js";

const DEBOUNCE = 120; // milliseconds without a key
const NO_GENERATOR = "To predict what could stand here takes a generator, and there is none beside this discriminator. Start the playground with --generator NAME, or with an exported pair.";
const NO_DISCRIMINATOR = "There is no discriminator here, so that no token is coloured. Click one to see what the generator would say.";

const find = (id) => document.getElementById(id);
const text = find("text");
const history = []; // texts before each swap or example
let readings = [];
let answers = [];
let about = null;
let game = null;
let asked = null;
let timer = 0;

start();

async function start() {
  wireTheme();
  wireTabs();
  try {
    about = await askAbout();
  } catch (error) {
    return complain(error.message);
  }
  find("models").append(...about.models.map((model, number) => make("li", { title: describe(model) }, badge(number), model.name)));
  find("examples").append(...about.examples.map(exampleButton));
  readings = about.models.map(makeReading);
  find("readings").classList.toggle("two", readings.length === 2);
  game = new Game(about, { textOf: () => text.value, onError: complain, onGood: calm });
  text.addEventListener("input", () => {
    game.drop();
    predictions.close(false);
    grow();
    clearTimeout(timer);
    timer = setTimeout(read, DEBOUNCE);
  });
  find("relative").addEventListener("change", () => readings.forEach(({ line }) => line.colour(find("relative").checked)));
  find("undo").addEventListener("click", undo);
  document.addEventListener("keydown", (event) => {
    const isField = ["TEXTAREA", "INPUT"].includes(event.target.tagName);
    if ((event.ctrlKey || event.metaKey) && event.key === "z" && !isField) {
      event.preventDefault();
      undo();
    }
  });
  if (!text.value) text.value = about.examples[0];
  grow();
  read();
  document.body.dataset.ready = "true";
}

// --- reading ---

function makeReading(model, number) {
  const summary = make("p", { className: "note", ariaLive: "polite" });
  const element = make("div", { className: "line", role: "group", ariaLabel: `The text as ${model.name} reads it` });
  const header = make("header", {}, make("h2", {}, badge(number), model.name), make("span", { className: "note", textContent: describe(model) }));
  const notice = make("p", { className: "notice", hidden: true });
  find("readings").append(make("article", { className: "card reading" }, header, element, notice, summary));
  const line = new Line(element, (place, button) => openPredictions(number, place, button));
  return { line, summary, notice };
}

async function read() {
  asked?.abort();
  asked = new AbortController();
  find("status").classList.add("busy");
  let answer;
  try {
    answer = await ask("tokens", { text: text.value }, asked.signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    find("status").classList.remove("busy");
    if (!(error instanceof Trouble)) throw error;
    return complain(error.message);
  }
  calm();
  answers = answer.models;
  answers.forEach((one, number) => show(one, number));
  const counts = answers.map((one) => one.tokens.length).filter((count, number, all) => all.indexOf(count) === number);
  find("status").classList.remove("busy");
  find("status").textContent = `${counts.join(" and ")} tokens, read in ${answers.map((one) => `${Math.max(1, Math.round(one.ms))} ms`).join(" and ")}`;
}

function show(answer, number) {
  const { line, summary, notice } = readings[number];
  const model = about.models[number];
  line.show(answer, find("relative").checked);
  const scored = answer.tokens.filter((token) => token.p !== null).sort((one, other) => other.p - one.p);
  const suspects = scored.filter((token) => token.p >= 0.5).length;
  summary.replaceChildren();
  if (scored.length) {
    summary.append(
      `${suspects || "No"} ${suspects === 1 ? "token looks" : "tokens look"} replaced (above 50 %). Most suspicious: `,
      make("b", { textContent: scored[0].text.trim() || scored[0].token }),
      `, ${percent(scored[0].p)}.`,
    );
  }
  const notes = [];
  if (!model.discriminator) notes.push(NO_DISCRIMINATOR);
  if (answer.num_cut) notes.push(`This model reads ${model.max_tokens} tokens: the last ${answer.num_cut}, in grey, are not read.`);
  notice.textContent = notes.join(" ");
  notice.hidden = !notes.length;
}

function openPredictions(number, place, button) {
  const model = about.models[number];
  readings[number].line.focus(place);
  predictions.open({
    button,
    token: answers[number].tokens[place],
    question: { text: joined(answers[number]), model: number, place },
    reason: model.generator ? null : NO_GENERATOR,
    vocabSize: model.vocab_size,
    onPut: (changed) => {
      change(changed);
      readings[number].line.focus(Math.min(place, readings[number].line.shown.length - 1));
    },
  });
}

/** The text that was read: what is in the box may be newer. */
function joined({ tokens, tail }) {
  return tokens.map((token) => token.before + token.text).join("") + tail;
}

// --- the text ---

function change(to) {
  if (to === text.value) return;
  history.push(text.value);
  write(to);
}

function undo() {
  if (history.length) write(history.pop());
}

function write(to) {
  text.value = to;
  find("undo").disabled = !history.length;
  game.drop();
  predictions.close(false);
  grow();
  clearTimeout(timer);
  read();
}

function exampleButton(example) {
  const button = make("button", { type: "button", className: "chip", textContent: example, title: example });
  button.addEventListener("click", () => change(example));
  return button;
}

/** The box is as high as its text. */
function grow() {
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight + 2}px`;
  const isTooLong = text.value.length > about.max_characters;
  text.setAttribute("aria-invalid", String(isTooLong));
}

// --- around it ---

function badge(number) {
  return about.models.length > 1 ? make("span", { className: `badge badge-${number}`, textContent: "AB"[number] }) : "";
}

function describe(model) {
  const roles = ["discriminator", "generator"];
  const families = new Set(roles.flatMap((role) => model[role]?.family ?? []));
  const size = (network) => `${(network.parameters / 1e6).toFixed(1)} M`;
  return [...families, ...roles.map((role) => (model[role] ? `${role} ${size(model[role])}` : `no ${role}`))].join(" · ");
}

function complain(message) {
  find("error").textContent = message;
  find("error").hidden = false;
  find("readings").classList.add("stale");
}

function calm() {
  find("error").hidden = true;
  find("readings").classList.remove("stale");
}

function wireTabs() {
  const tabs = [find("tab-read"), find("tab-game")];
  const select = (tab) => {
    predictions.close(false);
    for (const one of tabs) {
      one.setAttribute("aria-selected", String(one === tab));
      one.tabIndex = one === tab ? 0 : -1;
      find(one.getAttribute("aria-controls")).hidden = one !== tab;
    }
  };
  for (const [number, tab] of tabs.entries()) {
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", (event) => {
      if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      select(tabs[1 - number]);
      tabs[1 - number].focus();
    });
  }
}

function wireTheme() {
  const root = document.documentElement;
  const stored = () => {
    try {
      return localStorage.getItem("theme");
    } catch {
      return null; // a browser that keeps nothing
    }
  };
  if (["light", "dark"].includes(stored())) root.dataset.theme = stored();
  find("theme").addEventListener("click", () => {
    const isDark = getComputedStyle(root).colorScheme === "light dark" ? matchMedia("(prefers-color-scheme: dark)").matches : root.dataset.theme === "dark";
    root.dataset.theme = isDark ? "light" : "dark";
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch {
      // then only until the page is closed
    }
  });
}
