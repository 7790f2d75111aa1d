// Draws tokens as coloured buttons; what has not changed stays in place.

const LONGEST = 20; // letters on a phone
const MAY_BREAK = "\u200b"; // a space without width

export function make(tag, properties = {}, ...children) {
  const { dataset, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  Object.assign(element.dataset, dataset);
  element.append(...children);
  return element;
}

export function percent(share) {
  if (share === null) return "–";
  const value = share * 100;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  return `${value < 9.95 ? value.toFixed(1) : Math.round(value)} %`;
}

/** What to write before each token: pieces of a word stay on one line, and a comma with its word, as long as that is short. */
export function gapsOf(tokens) {
  let length = 0; // of what must stay on one line so far
  return tokens.map(({ before, text, joins }) => {
    const width = text.length + 2; // with its edges
    const sticks = !before && (joins || /^\p{P}+$/u.test(text)) && length + width <= LONGEST;
    length = sticks ? length + width : width;
    return before || (sticks ? "" : MAY_BREAK);
  });
}

/** One reading of a text by one model. */
export class Line {
  constructor(element, onToken) {
    this.element = element;
    this.shown = []; // { token, gap, button }, in the order of the text
    this.tail = make("span", { className: "tail" });
    element.append(this.tail);
    element.addEventListener("click", (event) => {
      const button = event.target.closest("button.token");
      if (button) onToken(this.shown.findIndex((one) => one.button === button), button);
    });
    element.addEventListener("keydown", (event) => this.step(event));
  }

  /** Arrow keys go from token to token, as in a text. */
  step(event) {
    const place = this.shown.findIndex((one) => one.button === document.activeElement);
    const target = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: this.shown.length - 1 }[event.key];
    if (place < 0 || target === undefined) return;
    event.preventDefault();
    this.focus(Math.max(0, Math.min(this.shown.length - 1, target)));
  }

  focus(place) {
    this.shown.forEach((one, number) => (one.button.tabIndex = number === place ? 0 : -1));
    this.shown[place]?.button.focus();
  }

  show({ tokens, tail }, isRelative) {
    const isSame = (one, token) => ["token", "text", "gap", "joins"].every((name) => one.token[name] === token[name]);
    const marked = tokens.map((token, place) => ({ ...token, joins: place > 0 && tokens[place - 1].word === token.word }));
    const gaps = gapsOf(marked);
    const wanted = marked.map((token, place) => ({ ...token, gap: gaps[place] }));
    let start = 0;
    while (start < this.shown.length && start < wanted.length && isSame(this.shown[start], wanted[start])) start++;
    let kept = 0;
    const most = Math.min(this.shown.length, wanted.length) - start;
    while (kept < most && isSame(this.shown.at(-1 - kept), wanted.at(-1 - kept))) kept++;
    const old = this.shown.slice(start, this.shown.length - kept);
    const next = this.shown[this.shown.length - kept]?.gap ?? this.tail;
    const hadFocus = old.findIndex((one) => one.button === document.activeElement);
    for (const { gap, button } of old) {
      gap.remove();
      button.remove();
    }
    const fresh = wanted.slice(start, wanted.length - kept).map((token) => {
      const gap = make("span", { className: "gap", textContent: token.gap });
      const button = make("button", { className: "token fresh", type: "button", tabIndex: -1 });
      button.append(make("span", { className: "text", textContent: token.text || token.token }), make("span", { className: "number" }));
      next.before(gap, button);
      return { token, gap, button };
    });
    this.shown.splice(start, old.length, ...fresh);
    wanted.forEach((token, place) => (this.shown[place].token = token));
    this.tail.textContent = tail;
    if (this.shown.length && !this.shown.some((one) => one.button.tabIndex === 0)) this.shown[0].button.tabIndex = 0;
    if (hadFocus >= 0 && this.shown.length) this.focus(Math.min(start + hadFocus, this.shown.length - 1));
    this.colour(isRelative);
  }

  colour(isRelative) {
    const known = this.shown.map((one) => one.token.p).filter((p) => p !== null);
    const [low, high] = isRelative && known.length > 1 ? [Math.min(...known), Math.max(...known)] : [0, 1];
    this.shown.forEach(({ token, button }, place) => {
      const isScored = token.p !== null;
      const heat = isScored ? (token.p - low) / (high - low || 1) : 0;
      button.style.setProperty("--p", heat.toFixed(4));
      button.classList.toggle("joins", token.joins);
      button.classList.toggle("joined", Boolean(this.shown[place + 1]?.token.joins));
      button.classList.toggle("suspect", isScored && token.p >= 0.5);
      button.lastChild.textContent = isScored ? Math.round(token.p * 100) : "·";
      const name = token.text.trim() || token.token;
      const odds = isScored ? `${percent(token.p)} replaced` : "not scored";
      button.title = token.token === name ? `${odds}` : `${token.token}: ${odds}`;
      button.setAttribute("aria-label", `${name}, ${odds}`);
      button.setAttribute("aria-haspopup", "dialog");
    });
  }
}
