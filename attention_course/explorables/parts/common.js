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
