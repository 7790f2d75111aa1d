// Sends requests to the server; errors become one line for the user.

export class Trouble extends Error {}

const GONE = "The server does not answer. Is it still running? Start it again with the same command.";
const TRIES = 4;

export async function about() {
  return answer(() => fetch("api/about"));
}

/** Ask the server; `signal` gives up when something newer was asked. */
export async function ask(what, question, signal) {
  return answer(() =>
    fetch(`api/${what}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(question),
      signal,
    }),
  );
}

async function answer(send) {
  for (let tries = 1; ; tries++) {
    let response, content;
    try {
      response = await send();
      content = await response.json();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Trouble(GONE);
    }
    if (response.ok) return content;
    if (response.status !== 429 || tries === TRIES) throw new Trouble(sentence(content.error));
    await new Promise((resolve) => setTimeout(resolve, 400 * tries)); // many others are asking
  }
}

function sentence(text) {
  return text ? `${text[0].toUpperCase()}${text.slice(1)}.` : GONE;
}
