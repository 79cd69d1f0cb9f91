"use strict";
// Shows what /events sends. All texts go in by textContent: clients choose names, and names of metrics.

const $ = (id) => document.getElementById(id);
const state = { rounds: [], known: 0, status: null, page: 0, offset: 0, source: null };
const charts = {};

// Words and numbers.

const bytes = (count) => {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (count >= size) return `${(count / size).toPrecision(3)} ${unit}`;
  return `${count} B`;
};
const duration = (seconds) => {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
};
const now = () => Date.now() / 1000 + state.offset; // by the server's clock
const ago = (time) => (time ? `${duration(Math.max(0, now() - time))} ago` : "");
const day = (time) => (time ? new Date(1000 * time).toISOString().slice(0, 10) : "");
const clock = (time) => new Date(1000 * time).toLocaleTimeString();
const number = (value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(4)).toString());

function put(parent, name, text, kind) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  parent.append(element);
  return element;
}
function fill(id, items, make) {
  const parent = $(id);
  const scroll = parent.scrollTop;
  parent.replaceChildren();
  for (const item of items) make(parent, item);
  parent.scrollTop = scroll;
}
function say(id, text) { // only what has changed: screen readers read it again
  if ($(id).textContent !== text) $(id).textContent = text;
}

// The head.

function showHead() {
  const found = state.status;
  const done = state.rounds.reduce((most, each) => Math.max(most, each.clients ? each.round : 0), found.done);
  const total = found.rounds ? ` of ${found.rounds}` : "";
  let text = done ? `round ${done}${total} is done` : found.live ? "waiting for the first round" : "no round";
  if (found.round !== null) text = `round ${found.round}${total} is running, for ${duration(Math.max(0, now() - found.since))}`;
  if (found.waits) text += `, waiting for clients: ${found.waits} are connected`;
  say("round", text);
  document.title = `${done}${total}: federation`;
  say("subtitle", [found.strategy, found.federation, `netq ${found.version}`].filter(Boolean).join(" · "));
  $("progress").hidden = !found.rounds;
  if (found.rounds) { $("progress").max = found.rounds; $("progress").value = Math.min(done, found.rounds); }
  const left = found.left === null ? null : Math.max(0, found.left - (now() - found.time));
  say("left", !left ? "" : `about ${duration(left)} left, as the last rounds took`);
  say("privacy", found.privacy);
  const stages = JSON.stringify([found.stages, found.attention]);
  if (state.stages === stages) return;
  state.stages = stages;
  fill("stages", Object.entries(found.stages), (parent, [stage, count]) => {
    const button = put(put(parent, "li"), "button", `${count} ${stage}`);
    button.type = "button";
    button.addEventListener("click", () => { $("stage").value = stage; state.page = 0; showClients(); });
  });
  const chosen = $("stage").value;
  $("stage").replaceChildren(new Option("all", ""));
  for (const stage of new Set([...Object.keys(found.stages), ...(chosen ? [chosen] : [])]))
    $("stage").append(new Option(stage, stage));
  $("stage").value = chosen;
}

// The table of clients. The first rows come with each event; others are asked for.

async function showClients() {
  const stage = $("stage").value, find = $("find").value.trim();
  if (!stage && !find && !state.page) return showRows(state.status.table, state.status.clients, 50);
  const query = new URLSearchParams({ stage, text: find, page: state.page });
  try {
    const found = await (await fetch(`/clients.json?${query}`)).json();
    showRows(found.clients, found.total, found.rows);
  } catch { /* the stream says that the server is away */ }
}
function showRows(clients, total, size) {
  const first = state.page * size;
  say("shown", total ? `${Math.min(first + 1, total)} to ${Math.min(first + size, total)} of ${total}` : "none");
  $("previous").disabled = !state.page;
  $("next").disabled = first + size >= total;
  fill("rows", clients, (parent, each) => {
    const row = put(parent, "tr");
    const name = put(row, "th", each.name);
    name.scope = "row";
    name.title = each.id;
    put(row, "td", each.stage, each.warnings.includes(each.stage) ? "bad" : each.stage === "done" ? "good" : "");
    put(row, "td", ago(each.since));
    const others = each.warnings.filter((word) => word !== each.stage);
    put(row, "td", [...others, each.reason].filter(Boolean).join("; "), others.length ? "why warn" : "why");
    put(row, "td", each.updates);
    put(row, "td", each.failures, each.failures ? "warn" : "");
    put(row, "td", each.seconds === null ? "" : duration(each.seconds));
    put(row, "td", bytes(each.bytes_in));
    put(row, "td", bytes(each.bytes_out));
    put(row, "td", day(each.certificate_end));
    put(row, "td", each.version);
    put(row, "td", each.address);
  });
}

// Curves.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function draw(id, label, series, data, { bands = [], fromZero = true } = {}) {
  const place = $(id);
  const last = series.map((each, index) => [each.label, data[index + 1].at(-1)]).filter(([, value]) => value != null);
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", `${label}: ${last.map(([name, value]) => `${name} ${number(value)}`).join(", ") || "no value"}`);
  const key = JSON.stringify([series.map((each) => each.label), $("axis").value, place.clientWidth, colour("--text")]);
  if (charts[id] && charts[id].key === key) return charts[id].plot.setData(data);
  if (charts[id]) charts[id].plot.destroy();
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 0.5 }, ticks: { stroke: colour("--line") } };
  const isTime = $("axis").value === "time";
  const options = {
    width: Math.max(200, place.clientWidth), height: 220, title: label, bands,
    scales: { x: { time: isTime }, y: fromZero ? { range: (plot, least, most) => [0, 1.1 * (most || 1)] } : {} },
    axes: [{ ...axis, ...(isTime ? {} : { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] }) }, { ...axis, size: 60 }],
    series: [{ label: isTime ? "time" : "round" }, ...series],
  };
  charts[id] = { key, plot: new uPlot(options, data, place) };
}
function showCharts() {
  const rounds = state.rounds;
  const names = new Set();
  for (const each of rounds) {
    for (const name of Object.keys(each.evaluation)) names.add(`evaluation/${name}`);
    for (const name of Object.keys(each.metrics)) names.add(`metrics/${name}`);
  }
  const list = [...names].slice(0, 200), select = $("metric");
  if (select.dataset.names !== JSON.stringify(list)) {
    const chosen = select.value;
    select.dataset.names = JSON.stringify(list);
    select.replaceChildren(...list.map((name) => new Option(name, name)));
    if (names.has(chosen)) select.value = chosen;
  }
  const x = rounds.map((each) => ($("axis").value === "time" ? each.time : each.round));
  const blue = colour("--blue"), line = (label, name) => ({ label, stroke: colour(name), width: 2, points: { size: 4 } });
  if (select.value) {
    const [kind, name] = [select.value.split("/", 1)[0], select.value.slice(select.value.indexOf("/") + 1)];
    const values = rounds.map((each) => each[kind][name] ?? null);
    const five = rounds.map((each) => each.spread[select.value] || null);
    const series = [{ label: name, stroke: blue, width: 2, points: { size: 4 } }], data = [x, values];
    let bands;
    if ($("spread").checked && five.some(Boolean)) {
      for (const [index, label] of [[0, "least"], [1, "lower quarter"], [3, "upper quarter"], [4, "most"]]) {
        series.push({ label, stroke: colour("--soft"), width: index % 4 ? 0 : 0.7, dash: [3, 3], points: { show: false } });
        data.push(five.map((each) => (each ? each[index] : null)));
      }
      bands = [{ series: [4, 3], fill: colour("--band") }];
    }
    draw("curve", select.value, series, data, { bands, fromZero: false });
  }
  draw("seconds", "seconds", [line("seconds", "--blue")], [x, rounds.map((each) => each.seconds)]);
  draw("bytes", "MB", [line("in", "--blue"), line("out", "--warn")],
    [x, rounds.map((each) => each.bytes_in / 1e6), rounds.map((each) => each.bytes_out / 1e6)]);
  fill("rounds", rounds.slice(-20).reverse(), (parent, each) => {
    const row = put(parent, "tr"), name = each.attempt > 1 ? `${each.round} (attempt ${each.attempt})` : `${each.round}`;
    put(row, "th", each.clients ? name : `${name}: does not count`, each.clients ? "" : "bad").scope = "row";
    put(row, "td", each.clients);
    put(row, "td", each.failed, each.failed ? "warn" : "");
    put(row, "td", each.stale ? `${each.stale}, up to ${each.stalest} rounds` : "");
    put(row, "td", each.seconds.toFixed(2));
    put(row, "td", bytes(each.bytes_in));
    put(row, "td", bytes(each.bytes_out));
    put(row, "td", Object.entries(each.failures).slice(0, 3).map(([who, why]) => `${who}: ${why}`).join("; "), "why");
  });
}

function showRest() {
  fill("slowest", state.status.slowest, (parent, each) => put(parent, "li", `${each.client}: ${duration(each.seconds)}`));
  const none = [{ time: 0, address: "none", reason: "" }];
  fill("refused", state.status.refused.length ? state.status.refused : none, (parent, each) =>
    put(parent, "li", each.time ? `${clock(each.time)} ${each.address}: ${each.reason}` : "no connection was turned away"));
  fill("log", state.status.log, (parent, each) => {
    const item = put(parent, "li", undefined, each.level === "info" ? "" : each.level === "warning" ? "warn" : "bad");
    put(item, "time", clock(each.time));
    item.append(each.text);
  });
}

// What comes.

function addRound(round) {
  while (state.rounds.length && state.rounds.at(-1).round >= round.round) {
    const last = state.rounds.at(-1);
    if (last.round === round.round && last.attempt < round.attempt) break; // both are shown
    state.rounds.pop(); // the server has been started again, without its last checkpoint
  }
  state.rounds.push(round);
  if (state.rounds.length > 10000) state.rounds.shift();
}
let due = false;
function soon() { // one drawing for all that comes at once
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    if (!state.status) return;
    showHead();
    showClients();
    showRest();
    showCharts();
  });
}
async function begin() {
  if (!state.known) {
    const found = await (await fetch("/rounds.json")).json();
    state.known = found.count;
    found.rounds.forEach(addRound);
  }
  state.source = new EventSource(`/events?after=${state.known}`);
  state.source.addEventListener("open", () => { say("connection", "live"); $("connection").className = ""; });
  state.source.addEventListener("error", () => {
    say("connection", "no connection to the server; trying again");
    $("connection").className = "lost";
    if (state.source.readyState === EventSource.CLOSED) setTimeout(begin, 3000);
  });
  state.source.addEventListener("round", (event) => {
    state.known = Number(event.lastEventId);
    addRound(JSON.parse(event.data));
    soon();
  });
  state.source.addEventListener("status", (event) => {
    state.status = JSON.parse(event.data);
    state.offset = state.status.time - Date.now() / 1000;
    soon();
  });
}
function retry() {
  begin().catch(() => { say("connection", "no connection to the server; trying again"); $("connection").className = "lost"; setTimeout(retry, 3000); });
}

document.addEventListener("visibilitychange", () => { // a browser has six connections to a server, for all its tabs
  if (document.hidden && state.source) { state.source.close(); state.source = null; }
  else if (!document.hidden && !state.source) retry();
});
for (const id of ["metric", "axis", "spread"]) $(id).addEventListener("change", soon);
$("stage").addEventListener("change", () => { state.page = 0; showClients(); });
$("find").addEventListener("input", () => { state.page = 0; showClients(); });
$("previous").addEventListener("click", () => { state.page -= 1; showClients(); });
$("next").addEventListener("click", () => { state.page += 1; showClients(); });
window.addEventListener("resize", soon);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", soon);
setInterval(() => { if (state.status && !document.hidden) showHead(); }, 1000);
retry();
