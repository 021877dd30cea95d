// Live views. The server renders every page whole; this patches a job's counts in place from its event stream, and
// swaps the regions marked data-swap where more than counts changed. Without it, the pages work and reload by hand.

const html = document.documentElement.dataset;
const root = html.root;
const skew = Date.parse(html.now) - Date.now(); // the service's clock against the browser's
const POLL_MS = 5000;
const SWAP_MS = 1500;
const FAILURES = 3;
const byId = (id) => document.getElementById(id);

// --- words, as service/pages/text.py and progress.py have them ---

const words = JSON.parse(byId("job")?.dataset.outcomes ?? "{}"); // of each outcome, in the order of a table
const tones = JSON.parse(byId("job")?.dataset.tones ?? "{}");
const sum = (counts) => Object.values(counts).reduce((all, count) => all + count, 0);
const parts = (counts) => Object.keys(words).filter((outcome) => counts[outcome]).map((outcome) => [outcome, `${counts[outcome]} ${words[outcome]}`]);
const countsText = (counts) => parts(counts).map(([, text]) => text).join(", ");
const number = (count, one) => `${count.toLocaleString("en")} ${one}${count === 1 ? "" : "s"}`;

function middle(text, width) {
  if (text.length <= width) return text;
  const head = Math.floor((width - 1) / 3);
  return `${text.slice(0, head)}…${text.slice(text.length - (width - 1 - head))}`;
}

function brief(text, width) {
  const line = text.split(/[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/).map((one) => one.split(/\s+/).filter(Boolean).join(" ")).find(Boolean) ?? "";
  if (line.length <= width) return line;
  const head = line.slice(0, width - 1);
  const words = line[width - 1] === " " ? head : head.slice(0, Math.max(0, head.lastIndexOf(" ")));
  return `${(words.length > Math.floor(width / 2) ? words : head).trimEnd()}…`;
}

function visible(text) {
  return text.replace(/[\0-\x08\x0b-\x1f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/[\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function span(seconds) {
  const at = Math.max(0, seconds);
  if (at < 1) return `${Math.round(at * 1000)} ms`;
  if (at < 9.95) return `${(Math.floor(at * 10 + 0.5) / 10).toFixed(1)} s`;
  const whole = Math.round(at);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

function ago(then) {
  const seconds = (Date.now() + skew - then) / 1000;
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return new Date(then).toISOString().slice(0, 10);
}

// --- patching ---

function say(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

function badge(element, word) {
  say(element, word);
  if (element && element.dataset.state !== word) element.dataset.state = word;
}

function hide(element, hidden) {
  if (element && element.hidden !== hidden) element.hidden = hidden;
}

function toneOf(outcome) {
  return Object.keys(tones).find((tone) => tones[tone].includes(outcome)) ?? "calm";
}

function sayCounts(element, counts, none = "") {
  if (element.textContent === (countsText(counts) || none)) return;
  const shown = parts(counts).flatMap(([outcome, textContent], index) => {
    const part = Object.assign(document.createElement("span"), { className: `n ${toneOf(outcome)}`, textContent });
    return index ? [", ", part] : [part];
  });
  element.replaceChildren(...(shown.length ? shown : [none]));
}

function drawBar(svg, counts, total) {
  const sums = Object.entries(tones).map(([tone, of]) => [tone, of.reduce((all, outcome) => all + (counts[outcome] ?? 0), 0)]);
  const whole = Math.max(total, sum(counts));
  const widths = sums.filter(([, count]) => count).map(([tone, count]) => [tone, Math.max(2, (100 * count) / whole)]);
  const scale = Math.min(1, 100 / widths.reduce((all, [, width]) => all + width, 0));
  let start = 0;
  svg.replaceChildren(...widths.map(([tone, width]) => {
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [key, value] of Object.entries({ class: tone, x: start.toFixed(2), width: (width * scale).toFixed(2), height: 4 })) rect.setAttribute(key, value);
    start += width * scale;
    return rect;
  }));
}

function lasted(holder, start, end) {
  if (!holder) return;
  if (!start) return holder.replaceChildren();
  let time = holder.querySelector("time");
  if (!time) holder.append((time = document.createElement("time")));
  time.dataset.since = start;
  if (end) time.dataset.until = end;
  else delete time.dataset.until;
  tickOne(time);
}

function reported(cell) {
  const done = sum(cell.counts) - (cell.counts["not-observed"] ?? 0);
  if (!cell.collected && !done) return "";
  return done < cell.collected ? `${done.toLocaleString("en")} of ${number(cell.collected, "case")}` : number(done, "case");
}

function showCell(cell) {
  const holder = byId(`cell-${cell.id}`);
  if (!holder) return false;
  if (Number(holder.dataset.revision) > cell.revision) return true; // an older word, arriving late
  holder.dataset.revision = cell.revision;
  const field = (name) => holder.querySelector(`[data-field="${name}"]`);
  const word = cell.state === "ended" && cell.verdict ? cell.verdict : cell.state;
  const reason = (cell.state === "queued" ? cell.waiting_reason : cell.detail) ?? "";
  if (holder.dataset.state !== word) flash(holder);
  holder.dataset.state = word;
  badge(field("word"), word);
  sayCounts(field("counts"), cell.counts);
  say(field("reported"), reported(cell));
  say(field("gpu"), visible(cell.gpu ?? ""));
  say(field("attempts"), cell.attempts > 1 ? `${cell.attempts} attempts` : "");
  say(field("running").firstElementChild, visible(middle(cell.running_case ?? "", 56)));
  field("running").firstElementChild.title = visible((cell.running_case ?? "").slice(0, 2000));
  say(field("reason"), visible(brief(reason, 300)));
  hide(field("running"), !cell.running_case);
  hide(field("reason"), !reason);
  hide(field("flaky"), !cell.flaky);
  lasted(field("time"), cell.state === "queued" ? null : cell.started_at, cell.ended_at);
  const bar = field("bar");
  drawBar(bar, cell.counts, cell.collected);
  bar.setAttribute("aria-label", reported(cell));
  return true;
}

function flash(element) {
  element.classList.remove("fresh");
  requestAnimationFrame(() => element.classList.add("fresh"));
}

const UNDER_WAY = ["queued", "claimed", "preparing", "running"];
const ENDED = ["passed", "failed", "broken", "cancelled"];

function summary(cells, detail) {
  const whole = sum(cells);
  if (!whole) return detail || "No cells yet: the trees are being read.";
  const waiting = UNDER_WAY.reduce((all, state) => all + (cells[state] ?? 0), 0);
  const told = Object.entries(cells).filter(([key, count]) => count && !UNDER_WAY.includes(key) && key !== "ended").map(([key, count]) => `${count} ${key}`);
  return `${whole - waiting} of ${number(whole, "cell")} ended${told.length ? `: ${told.join(", ")}` : ""}`;
}

let collected = new Map();

function showJob(job) {
  badge(byId("job-state"), job.state);
  sayCounts(byId("job-counts"), job.counts, ENDED.includes(job.state) ? "No case ran" : "Nothing reported yet");
  say(byId("job-summary"), summary(job.cells, job.detail));
  lasted(byId("job-time"), job.started_at, job.ended_at);
  const bar = document.querySelector(".hero .bar");
  drawBar(bar, job.counts, [...collected.values()].reduce((all, count) => all + count, 0));
  bar.setAttribute("aria-label", countsText(job.counts));
  document.title = `Job ${job.id} ${job.state} · Replaybench`;
}

function showSnapshot({ job, cells }) {
  for (const cell of cells) collected.set(cell.id, cell.collected);
  const known = cells.map(showCell);
  showJob(job);
  if (known.includes(false)) swapSoon(); // planned only now: the table itself is new
}

// --- swapping regions with the page as the server would now render it ---

let swapTimer = null;
let swapping = false;

function swapSoon(delay = SWAP_MS) {
  swapTimer ??= setTimeout(swap, delay);
}

async function swap() {
  swapTimer = null;
  if (swapping) return swapSoon();
  swapping = true;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!answer.ok || answer.redirected) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if ([...fresh.querySelectorAll("[data-swap]")].every(({ id }) => byId(id))) {
      for (const old of document.querySelectorAll("[data-swap]")) replace(old, fresh.getElementById(old.id));
    } else {
      byId("main").replaceChildren(...fresh.getElementById("main").childNodes); // a first attempt brings new regions
      live(...lastLive);
    }
    document.title = fresh.title;
    tick();
  } catch { /* the service is away; the next change or period tries again */ } finally {
    swapping = false;
  }
}

function replace(old, fresh) {
  if (!fresh || old.innerHTML === fresh.innerHTML || holdsSelection(old)) return;
  for (const open of old.querySelectorAll("details[open][id]")) fresh.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
  const log = old.querySelector("[data-stick]");
  const stuck = !log || log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  const at = log?.scrollTop ?? 0;
  const focus = old.contains(document.activeElement) ? path(old, document.activeElement) : null;
  old.replaceChildren(...fresh.childNodes);
  const next = old.querySelector("[data-stick]");
  if (next) next.scrollTop = stuck ? next.scrollHeight : at;
  if (focus) focus.reduce((node, index) => node?.children[index], old)?.focus({ preventScroll: true });
}

function path(top, element) {
  const steps = [];
  for (let at = element; at !== top; at = at.parentElement) steps.unshift([...at.parentElement.children].indexOf(at));
  return steps;
}

function holdsSelection(element) {
  const selection = getSelection();
  return selection && !selection.isCollapsed && element.contains(selection.anchorNode);
}

// --- a job's stream: one a tab, none while the tab is hidden, polling where it does not come through ---

class Follower {
  constructor(job, show) {
    this.api = `${root}/api/v1/jobs/${job}`;
    this.show = show;
    this.failures = 0;
    this.ended = false;
    this.source = null;
    this.timer = null;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.start()));
  }

  start() {
    this.stop();
    if (document.hidden) return;
    if (this.ended) return void this.poll(); // somebody may have run cells again
    this.source = new EventSource(`${this.api}/stream`);
    this.source.onopen = () => live("on", "live");
    for (const name of ["snapshot", "change"]) this.source.addEventListener(name, (event) => this.take(JSON.parse(event.data)));
    this.source.addEventListener("end", () => this.end());
    this.source.onerror = () => this.failed();
  }

  stop() {
    this.source?.close();
    clearTimeout(this.timer);
    this.source = this.timer = null;
  }

  take(snapshot) {
    this.failures = 0;
    this.show(snapshot);
  }

  failed() {
    this.failures += 1;
    live("off", "connecting again");
    if (this.failures < FAILURES && this.source?.readyState !== EventSource.CLOSED) return;
    this.stop();
    this.polls = 0;
    this.poll();
  }

  async poll() {
    try {
      const [job, cells] = await Promise.all([this.get(""), this.get("/cells")]);
      this.show({ job, cells });
      if (job.ended_at) return this.end(false);
      if (this.ended) return this.again();
      live("poll", `every ${POLL_MS / 1000} s`);
    } catch (error) {
      if (error.status === 401) return live("off", "signed out: reload to sign in");
      live("off", "the service does not answer");
    }
    this.polls = (this.polls ?? 0) + 1;
    if (this.polls % 12 === 0) return this.start(); // the way may be open again
    this.timer = setTimeout(() => this.poll(), POLL_MS);
  }

  async get(rest) {
    const answer = await fetch(this.api + rest);
    if (!answer.ok) throw Object.assign(new Error(answer.statusText), { status: answer.status });
    return answer.json();
  }

  again() {
    this.ended = false;
    this.failures = 0;
    this.start();
  }

  end(look = true) {
    this.stop();
    this.ended = true;
    live("ended", "");
    if (look) this.poll();
  }
}

let lastLive = ["off", ""];

function live(state, text) {
  lastLive = [state, text];
  const holder = byId("live");
  if (!holder) return;
  holder.dataset.live = state;
  say(holder, text);
}

// --- clocks, copying, starting ---

function tickOne(time) {
  const until = time.dataset.until ? Date.parse(time.dataset.until) : Date.now() + skew;
  say(time, span((until - Date.parse(time.dataset.since)) / 1000));
}

function tick() {
  for (const time of document.querySelectorAll("time[data-since]:not([data-until])")) tickOne(time);
  for (const time of document.querySelectorAll("time[data-ago]")) say(time, ago(Date.parse(time.dateTime)));
}

async function copy(button) {
  const answer = await fetch(button.dataset.copy);
  if (!answer.ok) return say(button, "The table could not be read");
  await navigator.clipboard.writeText(await answer.text());
  const label = button.textContent;
  say(button, "Copied");
  setTimeout(() => say(button, label), 2000);
}

function startPage() {
  const job = byId("job");
  const cell = byId("cell");
  if (job) {
    const follower = new Follower(job.dataset.job, showSnapshot);
    follower.ended = job.dataset.ended === "yes";
    if (!follower.ended) follower.start();
  } else if (cell) {
    const follower = new Follower(cell.dataset.job, ({ cells }) => cells.some(({ id }) => id === Number(cell.dataset.follow)) && swapSoon());
    follower.ended = cell.dataset.ended === "yes";
    if (!follower.ended) follower.start();
  }
  for (const region of document.querySelectorAll("[data-every]")) setInterval(() => document.hidden || swap(), region.dataset.every * 1000);
  for (const log of document.querySelectorAll("[data-stick]")) log.scrollTop = log.scrollHeight;
  // Only secure contexts (https, loopback) may write to the clipboard; elsewhere the link beside it does.
  for (const button of document.querySelectorAll("[data-copy]")) hide(button, !navigator.clipboard);
  document.addEventListener("click", (event) => event.target.closest("[data-copy]") && copy(event.target.closest("[data-copy]")));
  const signIn = byId("sign-in");
  if (signIn && location.hash.startsWith("#token=")) enter(signIn);
  else if (signIn?.dataset.next) void goOn(signIn.dataset.next);
  setInterval(tick, 1000);
  tick();
}

// A link from another site brings no SameSite=Strict cookie along, so a signed-in reader lands on the sign-in page. A
// request from this page carries it: if it is let in, so is the reader. Where all may read that would say nothing, and
// the page names no way on.
async function goOn(next) {
  const answer = await fetch(next, { method: "GET", redirect: "manual" }).catch(() => null);
  if (answer?.ok) location.replace(next);
}

// A token behind "#" never reaches a server's log, a proxy or a Referer, as one in the query would.
function enter(signIn) {
  const form = signIn.querySelector("form");
  form.elements.token.value = decodeURIComponent(location.hash.slice("#token=".length));
  history.replaceState(null, "", location.pathname + location.search);
  form.submit();
}

startPage();
