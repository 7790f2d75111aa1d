/* GLUE against compute */

function drawCompute(place) {
  place.replaceChildren();
  const width = Math.max(260, place.clientWidth - 24);
  const isNarrow = width < 560;
  const height = isNarrow ? 300 : 340;
  const mine = data.points.filter((point) => !page.state.hidden.includes(point.run));
  const all = [...data.published, ...mine];
  const flops = all.map((point) => point.flops);
  const scores = all.map((point) => point.score).filter((score) => score !== null);
  const words = `GLUE against compute: ${data.published.map((point) => `${point.name} ${point.score}`).join(", ")}`;
  const svg = shape("svg", { role: "img", "aria-label": words, height, viewBox: `0 0 ${width} ${height}` }, place);
  const [left, bottom] = [44, height - 42];
  const x = scale(Math.min(...flops) / 2, Math.max(...flops) * 3, left, width - 12, true);
  const low = Math.floor(Math.min(...scores) / 5) * 5;
  const y = scale(low, Math.ceil(Math.max(...scores) / 5) * 5 + 1, bottom, 12, false);
  for (const value of ticks(low, Math.max(...scores), 5)) {
    shape("line", { class: "rule", x1: left, x2: width - 12, y1: y(value), y2: y(value) }, svg);
    shape("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, svg, String(value));
  }
  const [first, last] = [Math.ceil(Math.log10(x.back(left))), Math.floor(Math.log10(x.back(width - 12)))];
  const every = Math.ceil((last - first + 1) / (width / 60));
  for (let power = first; power <= last; power += every) {
    shape("line", { class: "frame", x1: x(10 ** power), x2: x(10 ** power), y1: bottom, y2: bottom + 4 }, svg);
    const label = shape("text", { x: x(10 ** power), y: bottom + 18, "text-anchor": "middle" }, svg, "10");
    shape("tspan", { dy: -4, "font-size": "8" }, label, String(power));
  }
  shape("line", { class: "frame", x1: left, x2: width - 12, y1: bottom, y2: bottom }, svg);
  shape("text", { x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, svg, "training compute, FLOPs");
  const theirs = shape("g", {}, svg); /* below ours, which find a place for their names first */
  const taken = all.filter((point) => point.score !== null).map((point) => [x(point.flops) - 5, y(point.score) - 5, 10, 10]);
  for (const point of mine) drawMine(svg, point, x, y, width, bottom, taken);
  drawPublished(theirs, x, y, width, isNarrow, taken);
}

function drawPublished(svg, x, y, width, isNarrow, taken) {
  const steps = data.published.filter((point) => point.fraction !== null);
  shape("path", { class: "theirs", d: steps.map((point, place) => `${place ? "L" : "M"}${x(point.flops)} ${y(point.score)}`).join("") }, svg);
  for (const point of data.published) {
    const dot = shape("circle", { class: "theirs dotmark", cx: x(point.flops), cy: y(point.score), r: 4 }, svg);
    shape("title", {}, dot, `${point.name} (published: ${point.source}): ${point.score}, ${point.flops.toExponential(2)} FLOPs`);
    if (isNarrow && point.fraction === null && !point.is_of_paper) continue;
    label(svg, "name", isNarrow ? point.label : `${point.label}${point.fraction === null && !point.is_of_paper ? ` (${point.source})` : ""}`,
      x(point.flops), y(point.score), width, taken);
  }
}

function drawMine(svg, point, x, y, width, bottom, taken) {
  const group = shape("g", { class: colourOf(point.run) }, svg);
  const across = x(point.flops);
  if (point.score === null) {
    shape("line", { class: "reach", x1: across, x2: across, y1: 12, y2: bottom }, group);
    label(group, "name mine", `${cut(point.name)}: no GLUE yet`, across, bottom - 12 - 16 * point.run, width, taken);
    return;
  }
  const dot = shape("circle", { class: "dot", cx: across, cy: y(point.score), r: 6 }, group);
  shape("title", {}, dot, `${point.name}: ${point.score.toFixed(1)}, ${point.flops.toExponential(2)} FLOPs`);
  label(group, "name mine", `${cut(point.name)} ${point.score.toFixed(1)}`, across, y(point.score), width, taken);
}

/* Beside its point, on the first side where it covers nothing */
function label(parent, name, words, x, y, width, taken) {
  const long = words.length * 6.1;
  const sides = [[9, 4, "start"], [-9, 4, "end"], [0, -9, "middle"], [0, 18, "middle"], [9, -9, "start"], [9, 17, "start"], [-9, -9, "end"], [-9, 17, "end"]];
  const boxes = sides.map(([dx, dy, anchor]) => [x + dx - (anchor === "end" ? long : anchor === "middle" ? long / 2 : 0), y + dy - 11, long, 14]);
  const isFree = (box) => box[0] > 40 && box[0] + box[2] < width
    && !taken.some((other) => box[0] < other[0] + other[2] && other[0] < box[0] + box[2] && box[1] < other[1] + other[3] && other[1] < box[1] + box[3]);
  const found = boxes.findIndex(isFree);
  if (found < 0) return;
  taken.push(boxes[found]);
  const [dx, dy, anchor] = sides[found];
  shape("text", { class: name, x: x + dx, y: y + dy, "text-anchor": anchor }, parent, words);
}
