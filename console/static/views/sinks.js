// Sinks: the batch that is decided last, the one being written, and what has not ended.
import { at, count, duration, html, plural, post, time, useLive } from "../lib.js";
import { ActDialog, Live, Opens, Pager, Search, Table, Tag } from "../ui.js";

const ago = (ms) => (ms === null || ms < 0 ? "–" : html`<span title=${time(ms)}>${duration((Date.now() - ms) / 1000)}</span>`);

export function Sinks({ address }) {
  const found = useLive(`/api/sinks?${address.query}`);
  return html`<h1>Sinks</h1><p class="quiet">Programs that write batches exactly once, as the Spark connector does. The ledger of each says which batch is decided.</p>
    <div class="bar"><${Search} label="Search by name" query=${address.query} /></div>
    <${Live} found=${found}>${(data) => html`<${Pager} about=${data} noun="sink" />
      <${Table} caption="Sinks" about=${data} rows=${data.sinks} rowKey=${(one) => one.name} empty=${data.total ? "No sink is like that." : "No program has written to a sink yet."} columns=${[
        { name: "Sink", sort: "name", cell: (one) => html`<span class="name">${one.name}</span>` },
        { name: "Last batch", sort: "last", num: true, cell: (one) => (one.last ? html`<span title=${`job ${one.last.job}`}>${count(one.last.batch)}</span>` : "none") },
        { name: "Decided ago", num: true, cell: (one) => ago(one.decided_ms) },
        { name: "Writes now", cell: (one) => (one.current ? html`batch ${count(one.current.batch)} <small class="quiet">job ${one.current.job}</small>` : "–") },
        { name: "Superseded jobs", num: true, cell: (one) => count(one.fenced.length) },
        { name: "Open transactions", sort: "transactions", cell: (one) => one.open.length ? html`<details><summary>${plural(one.transactions, "transaction")}</summary><ul>${one.open.map((each) => html`<li><span class="name">${each.id}</span> <${Tag} text=${each.state} /> ${ago(each.since)}, ${plural(each.partitions, "partition")}</li>`)}</ul></details>` : "–" },
        { name: "Coordinator", num: true, cell: (one) => one.coordinator },
        { name: "", cell: (one) => html`${one.current && html`<${Opens} label="Abort the job" danger>${(close) => html`<${ActDialog} title=${`Abort the job of ${one.name}`} button="Abort it" danger typed=${one.name} what="Name of the sink" onClose=${close} act=${(confirm) => post(at("api", "sinks", one.name, "abort"), { confirm, ...one.current })}>
            <p>What it has written of batch ${count(one.current.batch)} is aborted, prepared or not, and it can write no more. Its program may begin the batch again with a new job.</p></${ActDialog}>`}</${Opens}>`}
          ${one.transactions === 0 && html`<${Opens} label="Forget" danger>${(close) => html`<${ActDialog} title=${`Forget ${one.name}`} button="Forget it" danger typed=${one.name} what="Name of the sink" onClose=${close} act=${(confirm) => post(at("api", "sinks", one.name, "delete"), { confirm })}>
            <p>If its program still runs, or runs again, it writes all its batches once more.</p></${ActDialog}>`}</${Opens}>`}` },
      ]} />`}</${Live}>`;
}
