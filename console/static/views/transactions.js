// Transactions, those that hang, and moves of replicas under way.
import { at, bytes, count, duration, get, html, percent, plural, post, time, useLive, useState } from "../lib.js";
import { ActDialog, Live, Meter, Opens, Pager, Problem, Search, Table, Tag } from "../ui.js";

const OPEN = ["Ongoing", "Prepared", "PrepareCommit", "PrepareAbort"];

export function Transactions({ address }) {
  const found = useLive(`/api/transactions?${address.query}`);
  return html`<h1>Transactions</h1><div class="bar"><${Search} label="Search by id" query=${address.query} /></div>
    <${Live} found=${found}>${(data) => html`<${Pager} about=${data} noun="transactional id" />
      <${Table} caption="Transactions" about=${data} rows=${data.transactions} rowKey=${(one) => one.name} empty=${data.total ? "No id is like that." : "Nobody has used a transaction yet."} columns=${[
        { name: "Transactional id", sort: "name", cell: (one) => html`<span class="name">${one.name}</span>` },
        { name: "State", sort: "state", cell: (one) => html`<${Tag} text=${one.state} />` },
        { name: "Open for", num: true, cell: (one) => (one.since === null || one.since < 0 ? "–" : html`<span title=${time(one.since)}>${duration((Date.now() - one.since) / 1000)}</span>`) },
        { name: "Timeout", num: true, cell: (one) => duration(one.timeout_ms === null ? null : one.timeout_ms / 1000) },
        { name: "Producer", num: true, cell: (one) => one.producer },
        { name: "Coordinator", num: true, cell: (one) => one.coordinator },
        { name: "Partitions", cell: (one) => one.partitions.length ? html`<details><summary>${plural(one.partitions.length, "partition")}</summary>${one.partitions.join(", ")}</details>` : "–" },
        { name: "", cell: (one) => OPEN.includes(one.state) && html`<${Opens} label="Abort" danger>${(close) => html`<${ActDialog} title=${`Abort ${one.name}`} button="Abort it" danger typed=${one.name} what="Transactional id" onClose=${close} act=${(confirm) => post(at("api", "transactions", one.name, "terminate"), { confirm })}>
            <p>Its open transaction is aborted${one.state === "Prepared" ? ", although it is prepared and somebody else may want to commit it," : ""} and its producer fenced.</p></${ActDialog}>`}</${Opens}>` },
      ]} />`}</${Live}>
    <h2>Hanging transactions</h2><p class="quiet">Open in a partition, and no coordinator will ever end them. Readers of committed records wait for them.</p><${Hanging} />`;
}

function Hanging() {
  const [found, set] = useState({});
  const [busy, setBusy] = useState(false);
  const look = () => {
    setBusy(true);
    get("/api/transactions-hanging").then((data) => set({ data }), (trouble) => set({ trouble })).finally(() => setBusy(false));
  };
  return html`<p><button type="button" disabled=${busy} onClick=${look}>${busy ? "Asking every leader …" : "Look for them"}</button></p><${Problem} trouble=${found.trouble} />
    ${found.data && html`<p role="status">${plural(found.data.looked_at, "partition")} looked at, ${plural(found.data.hanging.length, "transaction")} hanging for more than ${duration(found.data.quiet_ms / 1000)}.</p>
      ${found.data.hanging.length > 0 && html`<${Table} caption="Hanging transactions" rows=${found.data.hanging} columns=${[
        { name: "Partition", cell: (one) => html`<span class="name">${one.topic}-${one.partition}</span>` }, { name: "Began at", num: true, cell: (one) => count(one.start) },
        { name: "Producer", num: true, cell: (one) => `${one.producer}, epoch ${one.epoch}` }, { name: "Quiet since", cell: (one) => time(one.since) },
        { name: "", cell: (one) => html`<${Opens} label="Abort" danger>${(close) => html`<${ActDialog} title="Abort a hanging transaction" button="Write the marker" danger onClose=${close} act=${() => post("/api/transactions-hanging", one)} onDone=${look}><p>An abort marker for producer ${one.producer} goes into ${one.topic}-${one.partition}.</p></${ActDialog}>`}</${Opens}>` },
      ]} />`}`}`;
}

export function Moves() {
  const found = useLive("/api/moves");
  return html`<h1>Reassignments</h1><${Live} found=${found}>${(data) => html`
    <${Table} caption="Reassignments" rows=${data.moves} rowKey=${(one) => `${one.topic}-${one.partition}`} empty="No replica is on the move. tidelog reassign, rebalance and brokers drain begin moves." columns=${[
      { name: "Partition", cell: (one) => html`<a class="name" href=${at("topics", one.topic)}>${one.topic}-${one.partition}</a>` },
      { name: "Comes to", cell: (one) => one.adding.join(", ") || "–" }, { name: "Leaves", cell: (one) => one.removing.join(", ") || "–" },
      { name: "Copied", cell: (one) => one.adding.map((node) => html`<${Meter} share=${one.size ? Math.min(1, one.copied[node] / one.size) : 1} warn=${2} bad=${2} label=${`node ${node}: ${percent(one.size ? Math.min(1, one.copied[node] / one.size) : 1)} of ${bytes(one.size)}`} />`) },
      { name: "", cell: (one) => html`<${Opens} label="Cancel">${(close) => html`<${ActDialog} title="Cancel a move" button="Cancel it" danger onClose=${close} act=${() => post("/api/moves/cancel", { topic: one.topic, partition: one.partition })}><p>${one.topic}-${one.partition} stays where it was.</p></${ActDialog}>`}</${Opens}>` },
    ]} />`}</${Live}>`;
}
