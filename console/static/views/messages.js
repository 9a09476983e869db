// Messages of a topic: a search that the address holds, a live tail, one record whole, one produced.
import { at, bytes, count, get, html, navigate, plural, post, time, useEffect, useRef, useState, withQuery } from "../lib.js";
import { ActDialog, Dialog, Field, Opens, Problem, Table, Tag, Value } from "../ui.js";

const KEPT_MAX = 1000;
const STOPS = { records: "100,000 records were read", bytes: "64 MiB were read", seconds: "20 seconds are over", rows: "there is a page of them", end: "the end was reached" };
const FIELDS = ["partition", "from", "at", "key", "value", "header", "mode", "since", "until", "control"];

export function Messages({ topic, address }) {
  const { query } = address;
  const [form, setForm] = useState(() => Object.fromEntries(FIELDS.map((name) => [name, query.get(name) ?? ""])));
  const field = (name) => ({ value: form[name], onInput: (event) => setForm({ ...form, [name]: event.target.value }) });
  const live = query.get("live") === "yes";
  const go = (event) => {
    event.preventDefault();
    const at = form.from === "time" || form.from === "offset" ? form.at : "";
    navigate(withQuery({ ...form, at: form.from === "time" ? asMs(at) : at, since: asMs(form.since), until: asMs(form.until), live: "", again: String(Date.now() % 1e6) }), true);
  };
  return html`<form class="filters" onSubmit=${go} aria-label="Search">
      <${Field} label="From"><select ...${field("from")}><option value="">newest first</option><option value="oldest">the beginning</option><option value="offset">an offset</option><option value="time">a time</option></select></${Field}>
      ${form.from === "offset" && html`<${Field} label="Offset"><input required inputmode="numeric" pattern="[0-9]+" ...${field("at")} /></${Field}>`}
      ${form.from === "time" && html`<${Field} label="Time"><input required type="datetime-local" step="1" ...${field("at")} value=${asLocal(form.at)} /></${Field}>`}
      <${Field} label="Partition"><input inputmode="numeric" pattern="[0-9]*" placeholder="all" ...${field("partition")} /></${Field}>
      <${Field} label="Key has"><input spellcheck="false" ...${field("key")} /></${Field}>
      <${Field} label="Value has"><input spellcheck="false" ...${field("value")} /></${Field}>
      <${Field} label="A header has"><input spellcheck="false" placeholder="name=value" ...${field("header")} /></${Field}>
      <${Field} label="As"><select ...${field("mode")}><option value="">text</option><option value="re2">pattern (RE2)</option></select></${Field}>
      <${Field} label="Not before"><input type="datetime-local" step="1" ...${field("since")} value=${asLocal(form.since)} /></${Field}>
      <${Field} label="Before"><input type="datetime-local" step="1" ...${field("until")} value=${asLocal(form.until)} /></${Field}>
      <label class="check"><input type="checkbox" checked=${form.control === "yes"} onChange=${(event) => setForm({ ...form, control: event.target.checked ? "yes" : "" })} /> markers too</label>
      <span class="buttons"><button type="submit" class="main">Search</button>
        <button type="button" aria-pressed=${live} onClick=${() => navigate(withQuery({ ...form, since: asMs(form.since), until: asMs(form.until), live: live ? "" : "yes" }), true)}>${live ? "Stop the tail" : "Live tail"}</button>
        <${Opens} label="Produce">${(close) => html`<${Produce} topic=${topic} onClose=${close} />`}</${Opens}></span></form>
    ${live ? html`<${Tail} key=${`t${query}`} topic=${topic} query=${query} />` : html`<${Search} key=${`s${query}`} topic=${topic} query=${query} />`}`;
}

const asMs = (text) => (/^\d{4}-/.test(text) ? String(new Date(text).getTime()) : text);

function asLocal(text) {
  if (!/^\d+$/.test(text)) return text;
  const found = new Date(Number(text));
  return new Date(found.getTime() - found.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}

function Search({ topic, query }) {
  const [found, set] = useState({ rows: [], scanned: null, going: true });
  const source = useRef(null);
  const total = useRef({ records: 0, bytes: 0 });
  const stop = () => {
    source.current?.close();
    source.current = null;
    set((before) => ({ ...before, going: false, stopped: before.going ? "you stopped it" : before.stopped }));
  };
  const start = (more) => {
    source.current?.close();
    const fields = new URLSearchParams(query);
    if (more) for (const [name, value] of Object.entries(more)) fields.set(name, value);
    const stream = (source.current = new EventSource(`${at("api", "topics", topic, "messages")}?${fields}`));
    stream.addEventListener("rows", (event) => {
      const { rows, scanned, left } = JSON.parse(event.data);
      set((before) => ({ ...before, rows: [...before.rows, ...rows].slice(-KEPT_MAX), scanned, left }));
    });
    stream.addEventListener("done", (event) => {
      const { scanned, left, leaderless, positions, order } = JSON.parse(event.data);
      stream.close();
      total.current = { records: total.current.records + scanned.records, bytes: total.current.bytes + scanned.bytes };
      set((before) => ({ ...before, going: false, scanned: null, left, leaderless, stopped: STOPS[scanned.stopped], more: scanned.stopped === "end" ? null : { from: "go-on", positions, order } }));
    });
    stream.addEventListener("trouble", (event) => {
      const told = JSON.parse(event.data);
      stream.close();
      set((before) => ({ ...before, going: false, trouble: { ...told, code: told.error } }));
    });
    stream.onerror = () => {
      if (source.current !== stream) return;
      stream.close();
      set((before) => (before.going ? { ...before, going: false, stopped: "the console no longer answers" } : before));
    };
  };
  const goOn = () => {
    const { more } = found;
    set((before) => ({ ...before, going: true, more: null, stopped: null, trouble: null }));
    start(more);
  };
  useEffect(() => {
    start();
    return () => source.current?.close();
  }, []);
  const read = { records: total.current.records + (found.scanned?.records ?? 0), bytes: total.current.bytes + (found.scanned?.bytes ?? 0) };
  return html`<div class="bar" role="status"><span>${found.going ? "Reading: " : ""}${plural(found.rows.length, "message")} shown; ${plural(read.records, "record")}, ${bytes(read.bytes)} read${!found.going && found.stopped ? `; ${found.stopped}` : ""}${found.left > 0 ? `; ${plural(found.left, "offset")} left` : ""}.</span>
      <span class="buttons">${found.going && html`<button type="button" onClick=${stop}>Stop</button>`}${found.more && html`<button type="button" onClick=${goOn}>Go on</button>`}</span></div>
    <${Problem} trouble=${found.trouble} /><${Leaderless} partitions=${found.leaderless} />
    <${Rows} topic=${topic} rows=${found.rows} empty=${found.going ? "Nothing found so far." : "Nothing was found."} />`;
}

function Tail({ topic, query }) {
  const [found, set] = useState({ rows: [], shown: 0, passed: 0 });
  useEffect(() => {
    const stream = new EventSource(`${at("api", "topics", topic, "tail")}?${query}`);
    stream.addEventListener("rows", (event) => {
      const { rows, passed, leaderless } = JSON.parse(event.data);
      set((before) => ({ ...before, lost: false, trouble: null, leaderless, rows: [...rows.reverse(), ...before.rows].slice(0, 200), shown: before.shown + rows.length, passed: before.passed + passed }));
    });
    stream.addEventListener("trouble", (event) => {
      const told = JSON.parse(event.data);
      stream.close();
      set((before) => ({ ...before, trouble: { ...told, code: told.error } }));
    });
    stream.onerror = () => set((before) => ({ ...before, lost: true }));
    return () => stream.close();
  }, []);
  return html`<p role="status">${found.lost ? "Connection lost; trying again." : "Waiting for new messages."} ${plural(found.shown, "message")} came${found.passed > 0 ? `; ${count(found.passed)} more were too many to show` : ""}.</p>
    <${Problem} trouble=${found.trouble} /><${Leaderless} partitions=${found.leaderless} /><${Rows} topic=${topic} rows=${found.rows} empty="Nothing came so far." />`;
}

const Leaderless = ({ partitions }) => partitions?.length ? html`<div class="problem" role="alert"><strong>Not all of it</strong> <span>Without a leader, and so left out: ${plural(partitions.length, "partition")} (${partitions.slice(0, 20).join(", ")}${partitions.length > 20 ? ", …" : ""}).</span></div>` : null;

function Rows({ topic, rows, empty }) {
  const [open, set] = useState(null);
  return html`<${Table} caption="Messages" rows=${rows} rowKey=${(row) => `${row.partition}:${row.offset}`} empty=${empty} columns=${[
      { name: "Place", cell: (row) => html`<button type="button" class="plain link" aria-label=${`Message ${row.partition}:${row.offset}`} onClick=${() => set(row)}>${row.partition}:${row.offset}</button>` },
      { name: "Time", cell: (row) => html`<span class="nowrap">${time(row.time)}</span>` },
      { name: "Key", cell: (row) => (row.control || row.unreadable ? "" : html`<${Value} part=${row.key} />`) },
      { name: "Value", cell: (row) => row.control ? html`<${Tag} text=${`marker: ${row.control}`} kind="busy" /> <span class="quiet">of producer ${row.producer.id}</span>` : row.unreadable ? html`<${Tag} text="cannot be read" kind="bad" /> ${row.unreadable}` : html`<div class="value"><${Value} part=${row.value} /></div>` },
      { name: "Headers", cell: (row) => row.headers?.length ? html`<ul class="headers">${row.headers.slice(0, 4).map(([name, value]) => html`<li><b>${name}</b> <${Value} part=${value} /></li>`)}${row.headers.length + row.headers_more > 4 && html`<li class="quiet">and ${row.headers.length + row.headers_more - 4} more</li>`}</ul>` : "" },
      { name: "Batch", cell: (row) => html`${row.transaction && html`<${Tag} text=${row.transaction} /> `}${row.compression && row.compression !== "none" && html`<${Tag} text=${row.compression} />`}` },
    ]} />
    ${open && html`<${Whole} topic=${topic} row=${open} onClose=${() => set(null)} />`}`;
}

function Whole({ topic, row, onClose }) {
  const [found, set] = useState({});
  useEffect(() => {
    get(at("api", "topics", topic, "records", row.partition, row.offset)).then((data) => set({ data }), (trouble) => set({ trouble }));
  }, []);
  const one = found.data;
  return html`<${Dialog} title=${`${topic}, partition ${row.partition}, offset ${count(row.offset)}`} onClose=${onClose}>
    <${Problem} trouble=${found.trouble} />
    ${!one && !found.trouble && html`<p role="status">Reading …</p>`}
    ${one && html`<dl class="facts"><dt>Time</dt><dd>${time(one.time)}${one.append_time ? ", when the leader wrote it" : ", by the producer"}</dd>
        ${one.producer && html`<dt>Producer</dt><dd>${one.producer.id}, epoch ${one.producer.epoch}</dd>`}
        ${one.transaction && html`<dt>Transaction</dt><dd><${Tag} text=${one.transaction} /></dd>`}
        ${one.control && html`<dt>Marker</dt><dd>${one.control}</dd>`}
        ${one.unreadable && html`<dt>Unreadable</dt><dd>${one.unreadable}</dd>`}
        ${one.compression && html`<dt>Compression</dt><dd>${one.compression}</dd>`}</dl>
      ${one.headers && html`<${Part} title="Key" part=${one.key} /><${Part} title="Value" part=${one.value} />
        ${one.headers.length > 0 && html`<h3>Headers</h3><${Table} caption="Headers" rows=${one.headers} columns=${[{ name: "Name", cell: ([name]) => html`<span class="text">${name}</span>` }, { name: "Value", cell: ([, value]) => html`<${Value} part=${value} />` }]} />`}`}`}
  </${Dialog}>`;
}

const VIEWS = ["decoded", "text", "json", "hex"];

/** A key or a value: by its schema, as JSON where it is some, as text, as hex. What is hidden from this person never came here. */
function Part({ title, part }) {
  const json = part?.text === undefined || part.cut ? undefined : parsed(part.text);
  const [view, set] = useState(null);
  if (part === null) return html`<h3>${title}</h3><p class="quiet">null</p>`;
  const shown = view ?? (part.decoded !== undefined ? "decoded" : json !== undefined ? "json" : part.text !== undefined ? "text" : "hex");
  const can = { decoded: part.decoded !== undefined, text: part.text !== undefined, json: json !== undefined, hex: part.text !== undefined || part.hex !== undefined };
  const copy = () => navigator.clipboard?.writeText(shown === "decoded" ? part.decoded : (part.text ?? part.hex));
  return html`<div class="part"><h3>${title} <small>${bytes(part.size)}${part.cut ? ", cut" : ""}${part.as ? `, ${part.as} ${part.schema}` : ""}${part.masked ? ", fields are hidden from you" : ""}</small></h3>
    ${part.why && html`<p class="quiet">Not decoded: ${part.why}</p>`}
    <div class="buttons" role="group" aria-label=${`Show the ${title.toLowerCase()} as`}>${VIEWS.filter((name) => can[name]).map((name) => html`<button type="button" aria-pressed=${shown === name} onClick=${() => set(name)}>${name === "decoded" ? part.as || "shown" : name}</button>`)}<button type="button" onClick=${copy}>Copy</button></div>
    <pre tabindex="0" aria-label=${title}>${shown === "decoded" ? part.decoded : shown === "json" ? JSON.stringify(json, null, 2) : shown === "text" ? part.text : dump(part)}</pre></div>`;
}

function parsed(text) {
  if (!/^\s*[[{"]/.test(text)) return undefined;
  if (/(?<![\w"])-?\d{16,}/.test(text)) return undefined; // JavaScript would round such numbers
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const HEX_MAX = 16384;

function dump(part) {
  const data = part.hex === undefined ? Array.from(new TextEncoder().encode(part.text.slice(0, HEX_MAX))) : part.hex.match(/../g)?.slice(0, HEX_MAX).map((pair) => parseInt(pair, 16)) ?? [];
  const lines = [];
  for (let start = 0; start < data.length; start += 16) {
    const row = data.slice(start, start + 16);
    const hex = row.map((one) => one.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    lines.push(`${start.toString(16).padStart(6, "0")}  ${hex}  ${row.map((one) => (one >= 32 && one < 127 ? String.fromCharCode(one) : ".")).join("")}`);
  }
  return lines.join("\n") + (part.size > data.length ? "\n…" : "");
}

function Produce({ topic, onClose }) {
  const [form, set] = useState({ key: "", value: "", partition: "", headers: "", how: "text", noKey: true, noValue: false });
  const [sent, setSent] = useState(null);
  const field = (name) => ({ value: form[name], onInput: (event) => set({ ...form, [name]: event.target.value }) });
  const act = async () => {
    const headers = form.headers.split("\n").filter((line) => line.trim()).map((line) => [line.split("=")[0], { text: line.split("=").slice(1).join("=") }]);
    const one = (text, none) => (none ? null : { [form.how]: text });
    setSent(await post(at("api", "topics", topic, "records"), { key: one(form.key, form.noKey), value: one(form.value, form.noValue), partition: form.partition || null, headers }));
  };
  if (sent) return html`<${Dialog} title="It was written" onClose=${onClose}><p role="status">Partition ${sent.partition}, offset ${count(sent.offset)}.</p>
    <div class="buttons"><button type="button" onClick=${() => setSent(null)}>Another</button><a class="button" href=${`${at("topics", topic, "messages")}?from=offset&partition=${sent.partition}&at=${sent.offset}`}>Look at it</a></div></${Dialog}>`;
  return html`<${ActDialog} title=${`Produce to ${topic}`} button="Send" stay onClose=${onClose} act=${act}>
    <p class="quiet">Consumers will see it. It cannot be taken back.</p>
    <label class="check"><input type="checkbox" checked=${form.noKey} onChange=${(event) => set({ ...form, noKey: event.target.checked })} /> without a key</label>
    ${!form.noKey && html`<${Field} label="Key"><input spellcheck="false" ...${field("key")} /></${Field}>`}
    <label class="check"><input type="checkbox" checked=${form.noValue} onChange=${(event) => set({ ...form, noValue: event.target.checked })} /> without a value (a tombstone)</label>
    ${!form.noValue && html`<${Field} label="Value"><textarea rows="6" spellcheck="false" ...${field("value")}></textarea></${Field}>`}
    <${Field} label="Key and value are"><select ...${field("how")}><option>text</option><option>hex</option><option>base64</option></select></${Field}>
    <${Field} label="Headers" hint="One a line, as name=value."><textarea rows="2" spellcheck="false" ...${field("headers")}></textarea></${Field}>
    <${Field} label="Partition" hint="Empty: by the key."><input inputmode="numeric" pattern="[0-9]*" ...${field("partition")} /></${Field}></${ActDialog}>`;
}
