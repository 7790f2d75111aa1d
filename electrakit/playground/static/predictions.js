// Shows the generator's predictions for a token; a click inserts one.

import { ask, Trouble } from "./api.js";
import { make, percent } from "./tokens.js";

const box = document.getElementById("predictions");
let anchor = null;
let asked = null; // what is under way

export function isOpen() {
  return !box.hidden;
}

export function close(givesFocusBack = true) {
  if (box.hidden) return;
  asked?.abort();
  box.hidden = true;
  anchor?.setAttribute("aria-expanded", "false");
  if (givesFocusBack && anchor?.isConnected) anchor.focus();
}

/** `reason` says why there is no generator to ask; `onPut` gets the whole new text. */
export async function open({ button, token, question, reason, vocabSize, onPut }) {
  close(false);
  anchor = button;
  button.setAttribute("aria-expanded", "true");
  const name = token.text.trim() || token.token;
  const cross = make("button", { className: "quiet round", type: "button", textContent: "×", ariaLabel: "Close" });
  cross.addEventListener("click", () => close());
  const odds = token.p === null ? "not scored" : `${percent(token.p)} replaced`;
  const title = make("h2", { id: "predictions-title" }, make("q", { textContent: name }));
  const content = make("div", { className: "content" });
  box.replaceChildren(make("header", {}, title, make("span", { className: "odds", textContent: odds }), cross), content);
  box.hidden = false;
  place();
  if (reason) {
    content.append(make("p", { className: "note", textContent: reason }));
    cross.focus();
    return;
  }
  content.append(make("p", { className: "note", textContent: "Asking the generator …" }));
  cross.focus({ preventScroll: true });
  asked = new AbortController();
  try {
    show(content, await ask("predictions", question, asked.signal), token, vocabSize, onPut);
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof Trouble)) throw error;
    content.replaceChildren(make("p", { className: "note", role: "alert", textContent: error.message }));
  }
  place();
}

function show(content, { predictions, here }, token, vocabSize, onPut) {
  const top = predictions[0]?.p || 1;
  const buttons = predictions.map((prediction) => {
    const isContinued = prediction.word !== prediction.token && prediction.token.startsWith("##");
    const word = make("span", { className: "word", textContent: (isContinued ? "…" : "") + prediction.word, title: prediction.token });
    const bar = make("span", { className: "bar" });
    bar.style.setProperty("--share", (prediction.p / top).toFixed(4));
    const button = make("button", { type: "button", className: "prediction" }, bar, word, make("span", { textContent: percent(prediction.p) }));
    button.dataset.token = prediction.token;
    button.classList.toggle("is-here", prediction.token === token.token);
    button.addEventListener("click", () => {
      close(false);
      onPut(prediction.text);
    });
    return button;
  });
  const list = make("div", { className: "list", role: "group", ariaLabel: "Predictions of the generator" }, ...buttons);
  list.addEventListener("keydown", (event) => {
    const number = buttons.indexOf(document.activeElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || number < 0) return;
    event.preventDefault();
    buttons[(number + step + buttons.length) % buttons.length].focus();
  });
  const rank = `rank ${here.rank.toLocaleString("en")} of ${vocabSize.toLocaleString("en")}`;
  content.replaceChildren(
    make("p", { className: "note", textContent: "With this token hidden, the generator says:" }),
    list,
    make("p", { className: "note here" }, make("b", { textContent: here.token }), ` has ${percent(here.p)} (${rank})`),
  );
  buttons[0]?.focus({ preventScroll: true });
  reveal();
}

/** Both the token and what is said about it are in sight. */
function reveal() {
  place();
  if (getComputedStyle(box).position === "fixed") anchor.scrollIntoView({ block: "start" });
  else box.scrollIntoView({ block: "nearest" });
}

/** Below the token, and inside the window; on a phone the style sheet puts it at the bottom. */
function place() {
  const token = anchor.getBoundingClientRect();
  const left = Math.min(token.left + token.width / 2 - box.offsetWidth / 2, window.innerWidth - box.offsetWidth - 16);
  box.style.setProperty("--left", `${Math.max(16, left) + window.scrollX}px`);
  box.style.setProperty("--top", `${token.bottom + 10 + window.scrollY}px`);
}

document.addEventListener("keydown", (event) => event.key === "Escape" && close());
document.addEventListener("pointerdown", (event) => {
  if (!box.contains(event.target) && !event.target.closest?.("button.token")) close(false);
});
window.addEventListener("resize", () => isOpen() && place());
