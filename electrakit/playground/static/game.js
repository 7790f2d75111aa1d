// Plays a round of the training game.

import { ask, Trouble } from "./api.js";
import { gapsOf, make, percent } from "./tokens.js";

const find = (id) => document.getElementById(id);
const stage = find("stage");
const many = (count, what) => `${count < 0 ? "−" : ""}${Math.abs(count)} ${what}${count === 1 ? "" : "s"}`;

export class Game {
  constructor(about, { textOf, onError, onGood }) {
    Object.assign(this, { about, textOf, onError, onGood, round: null, isShown: false, isAsking: false });
    this.players = ["You", ...about.models.map((model) => model.name)];
    this.totals = this.players.map(() => ({ found: 0, alarms: 0 }));
    this.numRounds = this.numReplaced = 0;
    const generators = about.models.flatMap((model, number) => (model.generator ? [number] : []));
    find("player").append(...generators.map((number) => make("option", { value: number, textContent: about.models[number].name })));
    find("player-label").hidden = generators.length < 2;
    find("rule").parentElement.hidden = !about.models.some((model) => model.discriminator);
    find("seed").value = Math.floor(Math.random() * 10000);
    if (!generators.length) {
      for (const control of find("setup").elements) control.disabled = true;
      this.say("This needs a generator, and there is none beside this discriminator. Start the playground with --generator NAME, or with an exported pair.");
    } else {
      this.say("A few tokens are hidden, and the generator fills them. Find them before the discriminator tells.");
    }
    for (const [id, write] of [["rate", (value) => `${value} %`], ["temperature", (value) => Number(value).toFixed(1)]]) {
      find(id).addEventListener("input", () => (find(`${id}-shown`).value = write(find(id).value)));
    }
    find("setup").addEventListener("submit", (event) => {
      event.preventDefault();
      this.play();
    });
    find("show").addEventListener("click", () => (this.isShown ? this.again() : this.show()));
    stage.addEventListener("click", (event) => this.mark(event.target.closest("button.token")));
    stage.addEventListener("keydown", (event) => this.step(event));
  }

  say(text) {
    find("game-note").textContent = text;
  }

  /** The text has changed: an open round is about another one. */
  drop() {
    if (!this.round) return;
    this.round = null;
    stage.replaceChildren();
    find("scores").replaceChildren();
    find("actions").hidden = true;
    this.say("The text has changed: corrupt it again.");
  }

  async play() {
    if (this.isAsking) return;
    const seed = Number(find("seed").value);
    const question = {
      text: this.textOf(),
      model: Number(find("player").value),
      rate: Number(find("rate").value) / 100,
      temperature: Number(find("temperature").value),
      seed: find("seed").value === "" ? NaN : seed,
    };
    this.isAsking = find("corrupt").disabled = true;
    let round;
    try {
      round = await ask("round", question);
    } catch (error) {
      if (!(error instanceof Trouble)) throw error;
      this.onError(error.message);
      return;
    } finally {
      this.isAsking = find("corrupt").disabled = false;
    }
    this.onGood();
    if (this.textOf() !== question.text) return this.say("The text has changed: corrupt it again.");
    this.round = round;
    this.isShown = false;
    find("scores").replaceChildren();
    stage.classList.remove("shown");
    this.round.tokens.forEach((token, place) => (token.joins = place > 0 && !token.before));
    const gaps = gapsOf(this.round.tokens).map((gap) => make("span", { className: "gap", textContent: gap }));
    stage.replaceChildren(...this.round.tokens.flatMap((token, place) => [gaps[place], this.element(token, place)]));
    this.buttons()[0].tabIndex = 0;
    find("actions").hidden = false;
    find("show").textContent = "Show the answer";
    this.say("As the model sees it. Which tokens did the generator put in? Click them.");
    this.count();
  }

  element(token, place) {
    const button = make("button", { type: "button", className: "token pick", tabIndex: -1, disabled: token.is_special });
    button.dataset.place = place;
    button.setAttribute("aria-pressed", "false");
    button.classList.toggle("joins", token.joins);
    button.classList.toggle("joined", Boolean(this.round.tokens[place + 1]?.joins));
    button.append(make("span", { className: "text", textContent: token.text }));
    return button;
  }

  buttons() {
    return [...stage.querySelectorAll("button.token:not(:disabled)")];
  }

  step(event) {
    const buttons = this.buttons();
    const number = buttons.indexOf(document.activeElement);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || number < 0) return;
    event.preventDefault();
    const next = buttons[Math.max(0, Math.min(buttons.length - 1, number + step))];
    buttons.forEach((button) => (button.tabIndex = button === next ? 0 : -1));
    next.focus();
  }

  mark(button) {
    if (!button || this.isShown) return;
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    this.count();
  }

  marks() {
    const pressed = [...stage.querySelectorAll('[aria-pressed="true"]')];
    return new Set(pressed.map((button) => Number(button.dataset.place)));
  }

  count() {
    const number = this.marks().size;
    find("marked").textContent = number ? `You have marked ${number}.` : "";
  }

  /** What each discriminator marks, by the rule that was chosen; null where there is none. */
  answers(numMarks) {
    return this.about.models.map((model, number) => {
      if (!model.discriminator) return null;
      const scored = this.round.tokens.map((token, place) => [token.p[number], place]).filter(([p]) => p !== null);
      if (find("rule").value === "half") return new Set(scored.filter(([p]) => p >= 0.5).map(([, place]) => place));
      scored.sort((one, other) => other[0] - one[0]);
      return new Set(scored.slice(0, numMarks).map(([, place]) => place));
    });
  }

  show() {
    this.isShown = true;
    const mine = this.marks();
    const marks = [mine, ...this.answers(mine.size)];
    const truth = this.round.tokens.flatMap((token, place) => (token.is_replaced ? [place] : []));
    stage.classList.add("shown");
    stage.querySelectorAll("button.token").forEach((button) => {
      const place = Number(button.dataset.place);
      this.reveal(button, this.round.tokens[place], marks.map((set) => set?.has(place)));
    });
    this.numRounds++;
    this.numReplaced += truth.length;
    const results = marks.map((set, number) => set && this.result(set, truth, this.totals[number]));
    find("scores").replaceChildren(...this.board(results, truth.length));
    find("show").textContent = "Next round";
    find("marked").textContent = "";
    const right = this.round.tokens.filter((token) => token.is_chosen && !token.is_replaced).length;
    const predicted = right ? ` At ${right} more the generator predicted the very word that was there, which counts as original.` : "";
    this.say(`${many(truth.length, "token")} ${truth.length === 1 ? "was" : "were"} replaced: ✓ found, – missed, ✗ a false alarm.${predicted}`);
  }

  result(set, truth, total) {
    const found = truth.filter((place) => set.has(place)).length;
    const alarms = set.size - found;
    total.found += found;
    total.alarms += alarms;
    return { found, alarms };
  }

  reveal(button, token, isMarked) {
    button.classList.toggle("replaced", token.is_replaced);
    button.classList.toggle("mistaken", Boolean(isMarked[0]) && !token.is_replaced);
    const verdicts = isMarked.map((marked, number) => {
      if (marked === undefined || token.is_special) return null;
      const letter = this.about.models.length > 1 ? "AB"[number - 1] + " " : "";
      const who = number ? letter + percent(token.p[number - 1]) : "you";
      const sign = marked ? (token.is_replaced ? "✓" : "✗") : token.is_replaced ? "–" : "";
      return number || sign ? make("span", { className: number ? "model" : "you", textContent: `${who} ${sign}`.trim() }) : null;
    });
    if (token.is_replaced) button.append(make("span", { className: "was", textContent: `was ${token.original}` }));
    button.append(...verdicts.filter(Boolean));
    const said = [
      token.text,
      token.is_replaced ? `replaced, was ${token.original}` : "original",
      ...isMarked.map((marked, number) => marked && `marked by ${this.players[number]}`).filter(Boolean),
    ];
    button.setAttribute("aria-label", said.join(", "));
  }

  board(results, numReplaced) {
    const points = ({ found, alarms }) => found - alarms;
    const all = results.filter(Boolean).map(points);
    const best = Math.max(...all);
    const hasWinner = best > 0 && all.filter((each) => each === best).length === 1;
    return this.players.flatMap((name, number) => {
      const result = results[number];
      if (!result) return [];
      const total = this.totals[number];
      const alarms = (count) => many(count, "false alarm");
      const card = make("div", { className: "score" });
      card.classList.toggle("wins", hasWinner && points(result) === best);
      card.append(
        make("h3", { textContent: number ? name : "You" }),
        make("p", { className: "figure" }, make("b", { textContent: String(result.found) }), ` of ${numReplaced} found`),
        make("p", { className: "note", textContent: alarms(result.alarms) }),
        make("p", { className: "total", textContent: `${many(points(total), "point")} after ${many(this.numRounds, "round")}: ${total.found} of ${this.numReplaced} found, ${alarms(total.alarms)}` }),
      );
      return [card];
    });
  }

  again() {
    find("seed").value = (Number(find("seed").value) + 1) % Number.MAX_SAFE_INTEGER;
    this.play();
  }
}
