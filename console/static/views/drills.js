// Drills: a fault on purpose, watched as it goes, with its verdict.
import { at, html, post, time, useLive, useState } from "../lib.js";
import { ActDialog, Field, Live, Opens, Problem, Table, Tag } from "../ui.js";

export function Drills() {
  const found = useLive("/api/drills");
  const [trouble, setTrouble] = useState(null);
  const stop = () => post("/api/drill-stop").then(() => setTrouble(null), setTrouble);
  return html`<h1>Drills</h1><p class="quiet">A fault on purpose: nodes are killed, watched, brought back, and the clients' loss is counted.</p>
    <${Live} found=${found}>${(data) => data.on ? html`
      ${data.held && html`<${Held} held=${data.held} stop=${stop} />`}<${Problem} trouble=${trouble} />
      <h2>Which there are</h2><${Table} caption="Drills" rows=${data.drills} rowKey=${(one) => one.name} columns=${[
        { name: "Drill", cell: (one) => html`<span class="name">${one.name}</span>` }, { name: "What it does", cell: (one) => one.summary },
        { name: "", cell: (one) => html`<${Opens} label="Start">${(close) => html`<${Start} one=${one} cluster=${data.cluster} onClose=${close} />`}</${Opens}>` },
      ]} />` : html`<p class="note">Drills stop nodes' processes on the console's machine, so it offers them only if it was started with <code>tidelog console --drills</code>.</p>`}</${Live}>`;
}

function Start({ one, cluster, onClose }) {
  const [here, set] = useState(false);
  const [id, setId] = useState("");
  return html`<${ActDialog} title=${`Drill: ${one.name}`} button="Start" danger=${here} onClose=${onClose} ready=${!here || id === cluster} act=${() => post(at("api", "drills", one.name), here ? { here, confirm: id } : {})}>
    <p>${one.summary}</p>
    <fieldset><legend>On</legend><label class="check"><input type="radio" name="where" checked=${!here} onChange=${() => set(false)} /> a cluster of its own, made for it on this machine and removed</label>
      <label class="check"><input type="radio" name="where" checked=${here} disabled=${!cluster} onChange=${() => set(true)} /> this cluster, whose nodes go away for a while</label></fieldset>
    ${here && html`<p>Type the cluster's id, <code class="name">${cluster}</code>, to confirm.</p><${Field} label="Cluster id"><input autocomplete="off" spellcheck="false" value=${id} onInput=${(event) => setId(event.target.value)} /></${Field}>`}</${ActDialog}>`;
}

function Held({ held, stop }) {
  const verdict = held.verdict;
  const word = held.running ? "running" : held.stopped && !verdict ? "stopped" : verdict ? (verdict.met ? "met" : "missed") : "not held";
  return html`<section class="card" aria-label="The drill that was started last"><div class="head"><h2><${Tag} text=${word} kind=${held.running ? "busy" : undefined} /> ${held.name} <small>on ${held.where}, since ${time(held.began).slice(0, 19)}</small></h2>
      ${held.running && html`<button type="button" disabled=${held.stopped} onClick=${stop}>${held.stopped ? "It undoes what it did …" : "Stop"}</button>`}</div>
    <pre class="lines" tabindex="0" aria-label="What it says" aria-live="polite">${held.lines.join("\n") || "It begins …"}</pre>
    ${verdict && html`<${Table} caption="Objectives" rows=${verdict.objectives} columns=${[
      { name: "Objective", cell: (one) => one.measure.replace(/_s$/, " (s)").replaceAll("_", " ") }, { name: "Found", num: true, cell: (one) => one.found ?? "–" }, { name: "At most", num: true, cell: (one) => one.limit ?? "–" },
      { name: "", cell: (one) => html`<${Tag} text=${one.met ? "met" : "missed"} />` }]} />`}</section>`;
}
