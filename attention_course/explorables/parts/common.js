// Shared by all explorables. `uid` and `data` are set above; `explore` is defined below.

const SVG = "http://www.w3.org/2000/svg";
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** Fill the figure's shadow tree, hand it to `explore`; a notebook may attach the figure late. */
function begin(explore, tries = 100) {
  const host = document.getElementById(uid);
  if (!host) {
    if (tries) setTimeout(begin, 50, explore, tries - 1);
    return;
  }
  if (host.shadowRoot) return;
  const root = host.attachShadow({ mode: "open" });
  root.append(host.querySelector("template").content.cloneNode(true));
  explore(root);
}

/** Append an SVG element to `parent` and return it. */
function draw(parent, name, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, name);
  set(element, attributes);
  element.textContent = text;
  parent.append(element);
  return element;
}

/** Append an HTML element to `parent` and return it. */
function put(parent, name, attributes = {}, text = "") {
  const element = document.createElement(name);
  set(element, attributes);
  element.textContent = text;
  parent.append(element);
  return element;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
}

/** Show a number with two decimals, and keep all of it in `data-value`. */
function show(element, number) {
  element.dataset.value = number;
  element.textContent = two(number);
}

function two(number) {
  const text = number.toFixed(2);
  return text === "-0.00" ? "0.00" : text.replace("-", "−");
}

/** Call `frame(t)` with t from 0 to 1, eased; at once with t = 1 where motion is unwelcome. */
function glide(milliseconds, frame) {
  if (calm.matches) {
    frame(1);
    return () => {};
  }
  let request;
  let start;
  const step = (now) => {
    start ??= now;
    const t = Math.min(1, (now - start) / milliseconds);
    frame(t * t * (3 - 2 * t));
    if (t < 1) request = requestAnimationFrame(step);
  };
  request = requestAnimationFrame(step);
  return () => cancelAnimationFrame(request);
}

/** The sum that makes a context, the largest share first: "0.49 · cat + 0.35 · mat + …". */
function mixture(weights, tokens) {
  const order = [...tokens.keys()].sort((a, b) => weights[b] - weights[a]);
  return order.map((i) => `${two(weights[i])}\u00a0·\u00a0${tokens[i]}`).join(" + ");
}

/** A name for each word that tells the two "the" apart. */
function named(tokens) {
  return tokens.map((token, i) =>
    tokens.indexOf(token) === tokens.lastIndexOf(token) ? token : `${token} (word ${i + 1})`,
  );
}

/** What Python packed: a byte each. */
function bytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/** Paint a canvas, a byte a pixel: 0 is the first colour, 255 the last. */
function paintBytes(canvas, steps, width, height, colours) {
  set(canvas, { width, height });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(width, height);
  const last = colours.length - 1;
  steps.forEach((step, k) => {
    const at = (step / 255) * last;
    const near = Math.min(last - 1, Math.floor(at));
    for (const c of [0, 1, 2]) {
      image.data[4 * k + c] = colours[near][c] + (at - near) * (colours[near + 1][c] - colours[near][c]);
    }
    image.data[4 * k + 3] = 255;
  });
  pen.putImageData(image, 0, 0);
}

/** The colours of 256 weights from 0 to 1: from the page's ground to `weights`, its knee, and on to `deep`. */
function weightColours({ paper, weights, deep }, knee) {
  const between = (a, b, t) => a.map((from, c) => from + t * (b[c] - from));
  return [...Array(256).keys()].map((step) => {
    const w = step / 255;
    return w < knee ? between(paper, weights, w / knee) : between(weights, deep, (w - knee) / (1 - knee));
  });
}

/**
 * Call `paint({ paper: [r, g, b], …, ramp: [[r, g, b], …] })` now, and again when the page or the system
 * changes its colours.
 */
function inColours(element, paint) {
  let seen = "";
  const look = () => {
    const style = getComputedStyle(element);
    const read = (name) => style.getPropertyValue(`--ac-${name}`).trim();
    const found = ["paper", "ink", "weights", "deep"].map((name) => [name, read(name)]);
    if (found.join() === seen) return;
    seen = found.join();
    const parts = (hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
    const colours = Object.fromEntries(found.map(([name, hex]) => [name, parts(hex)]));
    paint({ ...colours, ramp: weightColours(colours, Number(read("knee"))) });
  };
  const watch = new MutationObserver(look);
  for (const page of [document.documentElement, document.body]) watch.observe(page, { attributes: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", look);
  look();
}
