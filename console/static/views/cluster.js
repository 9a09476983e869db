// The cluster at a glance, and a node's settings.
import { at, byteRate, bytes, count, html, percent, plural, time, useHistory, useLive } from "../lib.js";
import { Chart, Live, Meter, Table, Tag } from "../ui.js";
import { Settings } from "./settings.js";

export function Cluster() {
  const found = useLive("/api/cluster");
  return html`<h1>Cluster</h1><${Live} found=${found}>${(data) => html`<${Shown} data=${data} at=${found.at} />`}</${Live}>`;
}

function Shown({ data, at: now }) {
  const { health, rates } = data;
  const traffic = useHistory("cluster", rates ? now : undefined, rates && [rates.bytes_in, rates.bytes_out]);
  const busiest = Math.max(...data.nodes.map((node) => node.busy ?? 0));
  const busy = useHistory("busy", rates ? now : undefined, data.nodes.map((node) => node.busy));
  return html`<section class=${`health ${health.status}`} aria-label="Health"><p class="verdict"><${Tag} text=${health.status} /> ${health.summary}</p>
      ${health.findings.map((one, at) => html`<${Finding} key=${one.what} one=${one} open=${at === 0 || one.severity === "critical"} />`)}
      ${health.more_findings > 0 && html`<p>and ${plural(health.more_findings, "finding")} more: <code>tidelog status</code> names all.</p>`}
      ${health.groups_not_judged > 0 && html`<p class="quiet">Not judged yet: ${plural(health.groups_not_judged, "group")} behind. It takes some looks to see whether they get on.</p>`}
      ${Object.keys(health.not_checked).length > 0 && html`<details><summary>Not checked: ${Object.keys(health.not_checked).join(", ")}</summary><ul>${Object.entries(health.not_checked).map(([part, why]) => html`<li><b>${part}</b>: ${why}</li>`)}</ul></details>`}</section>
    <dl class="tiles">
      <div><dt>In</dt><dd>${byteRate(rates?.bytes_in)}<small>${count(rates?.records_in)} records/s</small></dd></div>
      <div><dt>Out</dt><dd>${byteRate(rates?.bytes_out)}<small>to consumers</small></dd></div>
      <div><dt>Partitions</dt><dd>${count(data.partitions)}<small>${data.leaderless ? `${count(data.leaderless)} without a leader` : data.out_of_sync ? `${count(data.out_of_sync)} not whole` : "all whole"}</small></dd></div>
      <div><dt>Groups</dt><dd>${count(data.groups)}<small><a href="/groups">with their lag</a></small></dd></div>
      <div><dt>Busiest loop</dt><dd>${percent(busiest)}<small>of the time</small></dd></div>
    </dl>
    <div class="charts"><${Chart} title="Traffic" names=${["in", "out"]} points=${traffic} show=${byteRate} />
      <${Chart} title="Loop busy" names=${data.nodes.map((node) => `node ${node.node}`)} points=${busy} show=${percent} /></div>
    <h2>Nodes</h2>
    <${Table} caption="Nodes" rows=${data.nodes} rowKey=${(node) => node.node} columns=${[
      { name: "Node", cell: (node) => (node.state === "controller" ? node.node : html`<a href=${at("nodes", node.node)}>${node.node}</a>`) },
      { name: "State", cell: (node) => html`<${Tag} text=${node.state} />` },
      { name: "Controller", cell: (node) => (node.active ? html`<${Tag} text="active" kind="busy" />` : node.controller ? "votes" : "–") },
      data.nodes.some((node) => node.rack) && { name: "Rack", cell: (node) => node.rack ?? "–" },
      { name: "Loop", cell: (node) => html`<${Meter} share=${node.busy} label=${percent(node.busy)} warn=${0.6} bad=${0.85} />` },
      { name: "Disk in use", cell: (node) => node.disks.map((disk) => disk.failed ? html`<${Tag} text="failed" />` : html`<${Meter} share=${1 - disk.free / disk.total} label=${`${bytes(disk.free)} free`} warn=${0.85} bad=${0.95} />`) },
      { name: "Memory", num: true, cell: (node) => bytes(node.memory) },
      { name: "Leads", num: true, cell: (node) => count(node.leads) },
      { name: "Replicas", num: true, cell: (node) => count(node.replicas) },
      { name: "In", num: true, cell: (node) => byteRate(node.rates?.bytes_in) },
      { name: "Out", num: true, cell: (node) => byteRate(node.rates?.bytes_out) },
    ]} />`;
}

const Finding = ({ one, open }) => html`<details class="finding" open=${open}><summary><h2><${Tag} text=${one.severity} kind=${one.severity === "note" ? "busy" : undefined} /> ${one.what} <small>since ${time(one.since_ms ?? one.before_ms).slice(0, 19)}${one.since_ms === null ? " or before" : ""}</small></h2></summary>
  <dl><dt>Why</dt><dd>${one.why}</dd><dt>Do</dt><dd>${one.do.split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part))}</dd></dl></details>`;

export function Node({ rest }) {
  return html`<p class="trail"><a href="/">Cluster</a></p><h1>Node ${rest[0]}</h1><${Settings} path=${at("api", "nodes", rest[0], "settings")} />`;
}
