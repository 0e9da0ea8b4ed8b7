"use strict";
const state = JSON.parse(document.getElementById("state").textContent);
const token = new URLSearchParams(location.search).get("token");
const at = (id) => document.getElementById(id);
const ask = (what, body, signal) => fetch(what, {method: "POST", signal,
  headers: {"Content-Type": "application/json", "X-Token": token}, body: JSON.stringify(body)});

// Tables: a click on a heading sorts its rows, or an upright one's columns, numbers by their value; a second click turns
// the order.
document.addEventListener("click", (event) => {
  const head = event.target.closest("th button")?.parentElement;
  if (!head) return;
  const table = head.closest("table"), body = table.tBodies[0], upright = table.classList.contains("upright");
  const down = head.getAttribute("aria-sort") === "ascending", sign = down ? -1 : 1;
  for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const compare = (a, b) => a !== "" && b !== "" && !isNaN(a) && !isNaN(b) ? a - b : a.localeCompare(b);
  const by = (key) => (a, b) => sign * compare(key(a), key(b));
  if (!upright) body.append(...[...body.rows].sort(by((row) => row.cells[head.cellIndex].dataset.key)));
  else {
    const order = [...head.parentElement.cells].slice(1).sort(by((cell) => cell.dataset.key)).map((cell) => cell.cellIndex);
    for (const row of body.rows) { const cells = [...row.cells]; row.append(...order.map((place) => cells[place])); }
  }
});

// The timeline: marks of the window that is shown come from the server, which joins what is shorter than a pixel.
let timeline = state.timeline, waiting = 0, latest = 0;
const dark = matchMedia("(prefers-color-scheme: dark)");
async function draw() {
  at("timeline-section").hidden = !timeline;
  if (!timeline) return;
  const ink = getComputedStyle(document.body).color, axis = {labelColor: ink, titleColor: ink, gridColor: "#8884", domainColor: "#888", tickColor: "#888"};
  const width = at("timeline").clientWidth;  // of which names of tracks take a third at most, and a kind in the legend about 110 pixels
  const config = {background: "transparent", axis, axisY: {labelLimit: Math.min(260, width / 3)}, legend: {labelColor: ink, titleColor: ink, columns: Math.max(2, Math.floor(width / 110))}, view: {stroke: "#8888"}};
  const {view} = await vegaEmbed("#timeline", timeline.chart, {actions: false, renderer: "canvas", config, tooltip: {theme: dark.matches ? "dark" : "light"}});
  at("drawn").textContent = timeline.words + ".";
  const select = at("processes");
  select.replaceChildren(...timeline.processes.map((name) => new Option(name, name, false, timeline.shown.includes(name))));
  select.size = Math.min(4, timeline.processes.length);
  view.addSignalListener("zoom", (name, value) => {
    const window = value.start;
    if (window) later(() => show(window.map((each) => each / timeline.scale), timeline.shown));
  });
}
function later(action) { clearTimeout(waiting); waiting = setTimeout(action, 250); }
async function show(window, processes) {
  const mine = ++latest, answer = await ask("timeline", {of: timeline.of ?? 0, window, processes});
  const found = await answer.json();
  if (mine === latest && answer.ok) { timeline = found; await draw(); }
}
dark.addEventListener("change", draw);
addEventListener("resize", () => later(draw));
at("processes").addEventListener("change", (event) =>
  show(timeline.window, [...event.target.selectedOptions].map((option) => option.value)));
for (const button of document.querySelectorAll("[data-zoom], [data-move]")) button.addEventListener("click", () => {
  const [first, last] = timeline.window, length = last - first, {zoom, move} = button.dataset;
  if (move) show([first + move * length, last + move * length], timeline.shown);
  else if (zoom === "0") show(null, timeline.shown);
  else show([(first + last) / 2 - zoom * length / 2, (first + last) / 2 + zoom * length / 2], timeline.shown);
});

// What if: each control is a slider or a choice; the newest question is answered, those before it are given up.
let controls = state.controls, asked = null;
function build() {
  at("controls").replaceChildren(...controls.map((each) => {
    const label = document.createElement("label"), words = document.createElement("output");
    const input = document.createElement(each.slider ? "input" : "select");
    input.name = each.name;
    if (each.slider) Object.assign(input, {type: "range", min: 0, max: each.values.length - 1, value: each.at});
    else input.append(...each.labels.map((text, place) => new Option(text, place, false, place === each.at)));
    const tell = () => { words.textContent = each.slider ? each.labels[input.value] : ""; if (each.slider) input.setAttribute("aria-valuetext", words.textContent); };
    tell();
    input.addEventListener("input", () => { tell(); clearTimeout(asked?.timer); asked = {...asked, timer: setTimeout(simulate, 250)}; });
    label.append(each.label, words, input);
    return label;
  }));
}
async function simulate() {
  asked?.abort?.abort();
  const abort = new AbortController(), begun = Date.now(), mine = asked = {abort};
  let words = "simulating";
  const clock = setInterval(() => { const s = (Date.now() - begun) / 1000; if (s > 2) at("status").textContent = `${words}, ${s.toFixed(0)} s`; }, 500);
  const changes = {};
  for (const each of controls) { const place = Number(document.getElementsByName(each.name)[0].value); if (place !== each.at) changes[each.name] = place; }
  at("of-file").hidden = !Object.keys(changes).length;
  at("answer").setAttribute("aria-busy", "true");
  try {
    const answer = await ask("simulate", {job: Number(at("job")?.value ?? 0), changes}, abort.signal);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = "";;) {
      const {done, value} = await reader.read();
      if (done) break;
      const lines = (text += value).split("\n");
      text = lines.pop();
      for (const line of lines.map((each) => JSON.parse(each))) {
        if (mine !== asked) return;
        if (line.words) words = line.words;
        if (line.error) { at("status").textContent = line.error; at("answer").replaceChildren(); }
        if (line.parts) {
          for (const [id, part] of Object.entries(line.parts)) if (at(id)) at(id).innerHTML = part;
          at("status").textContent = line.done;
          for (const each of at("detail").querySelectorAll("[role=region]")) each.ariaLabel += ", of the what-if";
          at("detail").hidden = false;
          timeline = line.timeline ?? timeline; await draw();
        }
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") at("status").textContent = "no answer: scaleout view has ended; start it again";
  } finally { clearInterval(clock); if (mine === asked) at("answer").removeAttribute("aria-busy"); }
}
if (at("what-if")) {
  build();
  at("what-if").addEventListener("submit", (event) => event.preventDefault());
  at("reset").addEventListener("click", () => { build(); simulate(); });
  at("job")?.addEventListener("change", async (event) => {
    controls = await (await ask("controls", {job: Number(event.target.value)})).json(); build(); simulate();
  });
  if (!timeline) simulate();
}
draw();
