// Settings of a topic or a node: each with where its value comes from; one is changed at a time, with the difference shown.
import { html, post, useOnce, useState } from "../lib.js";
import { ActDialog, Field, Live, Problem, Table, Tag } from "../ui.js";

const SOURCES = {
  DYNAMIC_TOPIC_CONFIG: "this topic", DYNAMIC_BROKER_CONFIG: "this node", DYNAMIC_DEFAULT_BROKER_CONFIG: "all nodes",
  STATIC_BROKER_CONFIG: "the node's file", DEFAULT_CONFIG: "default",
};
const OWN = ["DYNAMIC_TOPIC_CONFIG", "DYNAMIC_BROKER_CONFIG"];

export function Settings({ path }) {
  const [turn, setTurn] = useState(0);
  const [search, setSearch] = useState("");
  const [all, setAll] = useState(false);
  const [editing, setEditing] = useState(null);
  const found = useOnce(path, turn);
  return html`<${Live} found=${found}>${({ settings }) => {
    const shown = settings.filter((one) => one.name.includes(search.trim()) && (all || search || one.source !== "DEFAULT_CONFIG" || settings.length < 60));
    return html`<div class="bar"><label class="field"><span>Search settings</span><input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)} /></label>
        ${settings.length >= 60 && html`<label class="check"><input type="checkbox" checked=${all} onChange=${(event) => setAll(event.target.checked)} /> those with their defaults too</label>`}</div>
      <${Table} caption="Settings" rows=${shown} rowKey=${(one) => one.name} columns=${[
        { name: "Setting", cell: (one) => html`<details class="doc"><summary><code>${one.name}</code></summary><p>${one.doc}</p></details>` },
        { name: "Value", cell: (one) => (one.sensitive ? html`<span class="quiet">hidden</span>` : html`<code class="name">${one.value === "" || one.value === null ? "(empty)" : one.value}</code>`) },
        { name: "From", cell: (one) => html`<${Tag} text=${SOURCES[one.source] ?? one.source} kind=${OWN.includes(one.source) ? "busy" : ""} />` },
        { name: "", cell: (one) => (one.read_only ? html`<span class="quiet">fixed</span>` : html`<button type="button" aria-label=${`Change ${one.name}`} onClick=${() => setEditing(one)}>Change</button>`) },
      ]} empty="No setting has such a name." />
      ${editing && html`<${Edit} one=${editing} path=${path} onClose=${() => setEditing(null)} onDone=${() => setTurn(turn + 1)} />`}`;
  }}</${Live}>`;
}

function Edit({ one, path, onClose, onDone }) {
  const [value, setValue] = useState(one.value ?? "");
  const [toDefault, setDefault] = useState(false);
  const wanted = toDefault ? null : value;
  const change = { name: one.name, value: wanted, expected: one.value };
  const same = wanted === (one.value ?? "");
  const [checked, setChecked] = useState(null);
  const check = () => post(path, { ...change, only_check: true }).then(() => setChecked({ good: true }), (trouble) => setChecked({ trouble }));
  return html`<${ActDialog} title=${`Change ${one.name}`} button="Change it" ready=${!same} onClose=${onClose} onDone=${onDone} act=${() => post(path, change)}>
    <p>${one.doc}</p>
    <${Field} label="New value" hint=${`a ${one.type.toLowerCase()}`}><input value=${value} disabled=${toDefault} spellcheck="false" onInput=${(event) => (setValue(event.target.value), setChecked(null))} /></${Field}>
    ${OWN.includes(one.source) && html`<label class="check"><input type="checkbox" checked=${toDefault} onChange=${(event) => (setDefault(event.target.checked), setChecked(null))} /> back to what it is without a value of its own</label>`}
    <div class="diff" aria-label="Difference"><p class="minus"><span>is</span> <code>${one.sensitive ? "hidden" : one.value}</code></p>
      <p class="plus"><span>will be</span> <code>${toDefault ? "what the cluster or its default says" : value}</code></p></div>
    <p><button type="button" disabled=${same} onClick=${check}>Only check it</button> ${checked?.good && html`<span role="status">The cluster would take it.</span>`}</p>
    <${Problem} trouble=${checked?.trouble} /></${ActDialog}>`;
}
