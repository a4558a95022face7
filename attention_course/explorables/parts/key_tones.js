function explore(root) {
  const find = (selector) => root.querySelector(selector);
  const button = find("button");
  const slider = find("[type=range]");
  const sound = new Audio();
  const clips = data.clips.map((clip) => ({
    ...clip,
    spectrogram: bytes(clip.spectrogram),
    weights: bytes(clip.weights),
    said: clip.pairs.map(([said]) => said).filter((key) => key !== null),
  }));
  let at = 0;
  let key = 0;
  let colours = null;
  let rows = [];

  const clip = () => clips[at];
  const row = (k) => [...clip().weights.subarray(k * clip().states, (k + 1) * clip().states)];
  /** The share of the clip that lies before this state. */
  const before = (state) => Math.min(1, (state * clip().perState) / clip().frames);
  const seconds = (share) => `${two(share * clip().seconds)}\u00a0s`;
  const decibels = () => `${String(clip().decibels).replace("-", "−")}\u00a0dB`;

  /** Where a key looks: its largest weight and the neighbours of at least half as much. */
  function span(k) {
    const weights = row(k);
    const most = Math.max(...weights);
    let first = weights.indexOf(most);
    let last = first;
    while (weights[first - 1] >= most / 2) first -= 1;
    while (weights[last + 1] >= most / 2) last += 1;
    const share = weights.slice(first, last + 1).reduce((a, b) => a + b, 0) / 255;
    return { from: before(first), to: before(last + 1), share };
  }

  slider.max = clips.length - 1;
  slider.addEventListener("input", () => {
    stop();
    lay(Number(slider.value));
    say(`${decibels()}. ${find(".verdict").textContent}`);
  });

  function lay(number) {
    at = number;
    key = Math.min(key, Math.max(0, clip().said.length - 1));
    slider.value = at;
    slider.setAttribute("aria-valuetext", decibels());
    find(".level").textContent = decibels();
    find(".end").textContent = seconds(1);
    sound.src = `data:audio/wav;base64,${clip().wave}`;
    find(".rows").textContent = "";
    rows = clip().said.map((name, k) => {
      const label = put(find(".rows"), "label", { class: "lane" });
      const radio = put(label, "input", { type: "radio", name: "key", "aria-label": `key ${k + 1}: ${name}` });
      put(label, "span", { class: "name" }, name);
      const canvas = put(put(label, "span", { class: "box" }), "canvas");
      canvas.style.width = `${(100 * clip().states * clip().perState) / clip().frames}%`;
      radio.addEventListener("change", () => choose(k));
      return { radio, canvas };
    });
    for (const old of root.querySelectorAll("td")) old.remove();
    for (const [said, right] of clip().pairs) {
      const wrong = said !== right ? "wrong" : "";
      put(find(".right"), "td", {}, right ?? "–");
      put(find(".said"), "td", { class: `${wrong} ${said === null ? "gap" : ""}` }, said ?? "–");
    }
    const wrong = clip().pairs.filter(([said, right]) => said !== right).length;
    find(".verdict").textContent = wrong
      ? `✗ ${wrong} of ${clip().pairs.length} ${wrong === 1 ? "differs" : "differ"} (dashed; – is a gap).`
      : "✓ Every key is right.";
    paint();
    paintKey();
  }

  function paint() {
    const { spectrogram, frames, bands } = clip();
    // Time goes across and low tones lie below; in the data a frame's bands stand side by side.
    const turned = new Uint8Array(frames * bands);
    spectrogram.forEach((step, k) => (turned[(bands - 1 - (k % bands)) * frames + Math.floor(k / bands)] = step));
    paintBytes(find(".sound canvas"), turned, frames, bands, [colours.paper, colours.ink]);
    rows.forEach(({ canvas }, k) => paintBytes(canvas, row(k), clip().states, 1, colours.ramp));
  }

  function paintKey() {
    const frame = find(".frame");
    const line = find(".sum");
    line.textContent = "";
    frame.hidden = !rows.length;
    if (!rows.length) {
      line.textContent = "Nothing was said.";
      return;
    }
    rows.forEach(({ radio }, k) => (radio.checked = k === key));
    const { from, to, share } = span(key);
    Object.assign(frame.style, { left: `${100 * from}%`, width: `${100 * (to - from)}%` });
    put(line, "b", { class: "query" }, `Key ${key + 1}, ${clip().said[key]}`);
    line.append(`, looks most at ${seconds(from)} to ${seconds(to)}: ${two(share)} of its weight lies there.`);
  }

  function choose(k) {
    key = k;
    paintKey();
    say(find(".sum").textContent);
  }

  // ---- Sound ------------------------------------------------------------------------------------

  function stop() {
    sound.pause();
    find(".now").hidden = true;
    button.textContent = "▶ Play";
  }

  /** Move the line to where the sound is, as long as it plays. */
  function follow() {
    if (sound.paused || sound.ended) return;
    find(".now").hidden = false;
    find(".now").style.left = `${Math.min(100, (100 * sound.currentTime) / clip().seconds)}%`;
    requestAnimationFrame(follow);
  }

  button.addEventListener("click", async () => {
    if (!sound.paused) return stop();
    sound.currentTime = 0;
    button.textContent = "■ Stop";
    try {
      await sound.play();
      follow();
    } catch {
      stop(); // stopped before it began, or there is nothing here to play it on
    }
  });
  sound.addEventListener("ended", stop);

  function say(text) {
    find("[role=status]").textContent = text;
  }

  inColours(find("figure"), (found) => {
    colours = found;
    if (rows.length) paint();
  });
  stop();
  lay(0);
}
