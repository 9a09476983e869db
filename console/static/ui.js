// The parts that pages are made of.
import { html, navigate, useEffect, useRef, useState, withQuery, count, plural } from "./lib.js";

export const STATES = {
  healthy: "good", live: "good", Stable: "good", committed: "good", met: "good", Ongoing: "busy",
  critical: "bad", fenced: "bad", aborted: "bad", Dead: "bad", failed: "bad", missed: "bad",
  warning: "warn", stopping: "warn", open: "warn", Prepared: "warn", PreparingRebalance: "warn", CompletingRebalance: "warn",
};

/** A word for a state. The word says it; the colour only helps. */
export const Tag = ({ text, kind }) => html`<span class=${`tag ${kind ?? STATES[text] ?? ""}`}>${text}</span>`;

export function Problem({ trouble }) {
  if (!trouble) return null;
  const title = trouble.status === 403 ? "You may not see or do this" : trouble.status === 404 ? "It is not there" : "That did not work";
  return html`<div class="problem" role="alert"><strong>${title}</strong> <span>${trouble.message}</span> <code>${trouble.code}</code></div>`;
}

/** What a live answer shows, or why there is none. */
export function Live({ found, children }) {
  if (!found.data) {
    if (found.trouble) return html`<div class="live"><${Problem} trouble=${found.trouble} /></div>`;
    return html`<div class="live"><p class="quiet" role="status">${found.lost ? "The console does not answer; trying again …" : "Asking the cluster …"}</p></div>`;
  }
  const stale = found.trouble ?? (found.lost ? { message: "The console does not answer; what you see is old.", code: "AWAY" } : null);
  return html`<div class="live">${stale && html`<${Problem} trouble=${stale} />`}${children(found.data)}</div>`;
}

/** A table whose rows the server has sorted. Columns: name, cell(row), and if it sorts, sort; num aligns right. */
export function Table({ caption, columns, rows, about, empty, rowKey }) {
  const shown = columns.filter(Boolean);
  const head = (column) => {
    if (!column.name) return html`<td></td>`;
    if (!column.sort) return html`<th scope="col" class=${column.num ? "num" : ""}>${column.name}</th>`;
    const active = about.sort === column.sort;
    const next = active && about.order === "up" ? "down" : "up";
    return html`<th scope="col" class=${column.num ? "num" : ""} aria-sort=${active ? (about.order === "up" ? "ascending" : "descending") : "none"}>
      <button type="button" class="sort" onClick=${() => navigate(withQuery({ sort: column.sort, order: next, page: "" }), true)}>
        ${column.name}<span aria-hidden="true">${active ? (about.order === "up" ? " ▲" : " ▼") : ""}</span></button></th>`;
  };
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table><caption class="hidden">${caption}</caption>
      <thead><tr>${shown.map(head)}</tr></thead>
      <tbody>${rows.map((row, number) => html`<tr key=${rowKey ? rowKey(row) : number}>${shown.map((column, at) =>
        at === 0 ? html`<th scope="row">${column.cell(row)}</th>` : html`<td class=${column.num ? "num" : ""}>${column.cell(row)}</td>`)}</tr>`)}
      ${rows.length === 0 && html`<tr><td class="quiet" colspan=${shown.length}>${empty ?? "There are none."}</td></tr>`}</tbody>
    </table></div>`;
}

export function Pager({ about, noun }) {
  const go = (page) => () => navigate(withQuery({ page: page === 1 ? "" : page }), true);
  const matching = about.matching === about.total ? count(about.total) : `${count(about.matching)} of ${count(about.total)}`;
  return html`<div class="pager"><span class="quiet">${matching} ${plural(about.total, noun).replace(/^[\d,]+ /, "")}</span>${about.pages > 1 && html`
    <button type="button" disabled=${about.page <= 1} onClick=${go(about.page - 1)}>Back</button>
    <span>page ${about.page} of ${about.pages}</span>
    <button type="button" disabled=${about.page >= about.pages} onClick=${go(about.page + 1)}>Next</button>`}</div>`;
}

/** A field that changes the address a moment after the last key. */
export function Search({ label, name = "search", query }) {
  const waiting = useRef(0);
  const [text, set] = useState(query.get(name) ?? "");
  const change = (event) => {
    set(event.target.value);
    clearTimeout(waiting.current);
    const value = event.target.value;
    waiting.current = setTimeout(() => navigate(withQuery({ [name]: value, page: "" }), true), 250);
  };
  return html`<label class="field"><span>${label}</span><input type="search" value=${text} onInput=${change} /></label>`;
}

export const Field = ({ label, hint, children }) => html`<label class="field"><span>${label}</span>${children}${hint && html`<small>${hint}</small>`}</label>`;

export function Dialog({ title, onClose, children }) {
  const dialog = useRef(null);
  useEffect(() => {
    dialog.current.showModal();
    return () => dialog.current?.close();
  }, []);
  return html`<dialog ref=${dialog} aria-label=${title} onCancel=${(event) => (event.preventDefault(), onClose())}>
    <div class="dialog-head"><h2>${title}</h2><button type="button" class="plain" aria-label="Close" onClick=${onClose}>✕</button></div>${children}</dialog>`;
}

/** A form in a dialog: does `act`, shows why it failed, closes when it worked (unless it is to `stay`). `typed`: a name to be typed once more. */
export function ActDialog({ title, button, danger, typed, what, act, onClose, onDone, ready = true, stay = false, children }) {
  const [trouble, setTrouble] = useState(null);
  const [busy, setBusy] = useState(false);
  const [name, setName] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setTrouble(null);
    try {
      const found = await act(name);
      if (!stay) onClose();
      onDone?.(found);
    } catch (failed) {
      setTrouble(failed);
      setBusy(false);
    }
  };
  const wrong = typed !== undefined && name !== typed;
  return html`<${Dialog} title=${title} onClose=${onClose}><form onSubmit=${submit}>
    ${children}
    ${typed !== undefined && html`<p>This cannot be undone. Type <code class="name">${typed}</code> to confirm.</p>
      <${Field} label=${what ?? "Name"}><input autocomplete="off" spellcheck="false" value=${name} onInput=${(event) => setName(event.target.value)} /></${Field}>`}
    <${Problem} trouble=${trouble} />
    <div class="buttons"><button type="button" onClick=${onClose}>Cancel</button>
      <button type="submit" class=${danger ? "danger" : "main"} disabled=${busy || wrong || !ready}>${button}</button></div></form></${Dialog}>`;
}

/** A button that opens a dialog. */
export function Opens({ label, danger, children }) {
  const [open, set] = useState(false);
  return html`<button type="button" class=${danger ? "danger" : ""} onClick=${() => set(true)}>${label}</button>${open && children(() => set(false))}`;
}

export function Meter({ share, label, warn = 0.7, bad = 0.9 }) {
  if (share === null || share === undefined) return html`<span class="quiet">–</span>`;
  const kind = share >= bad ? "bad" : share >= warn ? "warn" : "good";
  const bounded = Math.min(1, Math.max(0, share));
  return html`<span class="metered"><svg class=${`meter ${kind}`} viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
    <rect class="rail" width="100" height="8" rx="4" /><rect class="bar" width=${Math.max(2, bounded * 100)} height="8" rx="4" /></svg><span>${label}</span></span>`;
}

/** The replicas of a partition, drawn: leader, in sync, behind, offline. */
export function Replicas({ one }) {
  const eligible = new Set(one.elr ?? []);
  const state = (node) =>
    node === one.leader ? "leader" : one.isr.includes(node) ? "in sync" : one.offline.includes(node) ? "offline" : eligible.has(node) ? "may lead" : "behind";
  const said = one.replicas.map((node) => `node ${node} ${state(node)}`).join(", ");
  return html`<span class="replicas" role="img" aria-label=${said} title=${said}>${one.replicas.map((node) => html`<span class=${`replica ${state(node).replace(" ", "-")}`}>${node}</span>`)}</span>`;
}

export const ReplicaKey = () => html`<p class="key" aria-hidden="true"><span class="replica leader">1</span> leads
  <span class="replica in-sync">2</span> in sync <span class="replica behind">3</span> behind <span class="replica offline">4</span> offline</p>`;

export const Tabs = ({ label, items, here }) => html`<nav class="tabs" aria-label=${label}>${items.map(([to, name]) =>
  html`<a href=${to} aria-current=${here === to ? "page" : undefined}>${name}</a>`)}</nav>`;

let plotting = null;

/** uPlot, loaded with the first chart. */
function loadPlot() {
  plotting ??= new Promise((resolve, reject) => {
    const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: "/static/vendor/uplot.css" });
    const script = Object.assign(document.createElement("script"), { src: scriptUrl("/static/vendor/uplot.js") });
    script.onload = () => resolve(window.uPlot);
    script.onerror = reject;
    document.head.append(style, script);
  });
  return plotting;
}

/** The browser refuses to load a script from a mere text: only this policy makes addresses of scripts. */
const policy = window.trustedTypes?.createPolicy("tidelog", {
  createScriptURL: (url) => {
    if (url !== "/static/vendor/uplot.js") throw new TypeError(`expected a script of ours, found ${url}`);
    return url;
  },
});
const scriptUrl = (url) => policy?.createScriptURL(url) ?? url;

/** Lines over time. `points`: [seconds, value, …]; `show`: a value for people. */
export function Chart({ title, names, points, show, x = "time" }) {
  const place = useRef(null);
  const plot = useRef(null);
  const data = points.length ? points[0].map((_, at) => points.map((point) => point[at])) : null;
  const latest = points.at(-1);
  useEffect(() => {
    let wanted = true;
    loadPlot().then((uPlot) => {
      if (!wanted || !place.current || !data || points.length < 2) return;
      if (plot.current) return plot.current.setData(data);
      const axis = { stroke: resolved("--quiet"), grid: { stroke: resolved("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
      plot.current = new uPlot({
        width: place.current.clientWidth, height: 140, legend: { show: false }, cursor: { show: false }, scales: { x: { time: x === "time" }, y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.1 : 1] } },
        axes: [{ ...axis, size: 26, space: 80, values: (_, ticks) => ticks.map((tick) => (x === "time" ? clock(tick) : x === "times" ? `×${tick}` : plural(tick, "month"))) }, { ...axis, size: 64, values: (_, ticks) => ticks.map(show) }],
        series: [{}, ...names.map((name, at) => ({ label: name, stroke: resolved(`--series-${at + 1}`), width: 2, points: { show: x !== "time" } }))],
      }, data, place.current);
    });
    return () => (wanted = false);
  });
  useEffect(() => {
    const fit = () => plot.current?.setSize({ width: place.current.clientWidth, height: 140 });
    const redraw = () => (plot.current?.destroy(), (plot.current = null));
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("resize", fit);
    addEventListener("themed", redraw);
    scheme.addEventListener("change", redraw);
    return () => (removeEventListener("resize", fit), removeEventListener("themed", redraw), scheme.removeEventListener("change", redraw), plot.current?.destroy(), (plot.current = null));
  }, []);
  const said = latest ? names.map((name, at) => `${name} ${show(latest[at + 1])}`).join(", ") : "no value yet";
  return html`<figure class="chart"><figcaption><strong>${title}</strong>${names.map((name, at) => html`<span class=${`legend series-${at + 1}`}>${name} <b>${latest ? show(latest[at + 1]) : "–"}</b></span>`)}</figcaption>
    <div ref=${place} class="plot" role="img" aria-label=${`${title}: ${said}`}></div></figure>`;
}

const clock = (seconds) => new Date(seconds * 1000).toTimeString().slice(0, 8);

/** A colour of the style sheet as a canvas takes it. */
function resolved(name) {
  const probe = document.createElement("span");
  probe.className = `colour${name}`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

export const Value = ({ part }) => {
  if (part === null) return html`<span class="quiet">null</span>`;
  const mark = html`${part.masked && html`<${Tag} text="hidden in part" kind="busy" /> `}${part.why && html`<${Tag} text="not decoded" kind="warn" /> `}`;
  if (part.decoded !== undefined) return html`${mark}<span class="text">${part.decoded}${part.cut ? " …" : ""}</span>`;
  if (part.hex !== undefined) return html`${mark}<code class="bytes">${part.hex.replace(/(..)/g, "$1 ").trim()}${part.cut ? " …" : ""}</code>`;
  return html`${mark}<span class="text">${part.text}${part.cut ? " …" : ""}</span>`;
};
