// The capacity planner: inputs, what they take, and what changes it.
import { bytes, count, duration, html, navigate, percent, plural, useOnce, useState, withQuery } from "../lib.js";
import { Chart, Field, Live, Meter, Table } from "../ui.js";

export function Plan({ address }) {
  const inputs = useOnce("/api/plan-inputs");
  const found = useOnce(`/api/plan?${address.query}`);
  return html`<h1>Capacity plan</h1><p class="quiet">How many nodes a load takes, what binds, and for how long that will do. It asks no cluster; <code>tidelog plan</code> says the same.</p>
    <${Live} found=${inputs}>${(data) => html`<${Inputs} data=${data} query=${address.query} />`}</${Live}>
    <${Live} found=${found}>${(data) => html`<${Answer} data=${data} />`}</${Live}>`;
}

function Inputs({ data, query }) {
  const all = [...data.demand, ...data.machine];
  const [form, set] = useState(() => Object.fromEntries(all.map((one) => [one.name, query.get(one.name) ?? (one.yes_no ? "" : String(one.default))])));
  const submit = (event) => {
    event.preventDefault();
    const changed = all.map((one) => [one.name, form[one.name] === String(one.default) ? "" : form[one.name]]);
    navigate(withQuery(Object.fromEntries(changed)), true);
  };
  const field = (one) => one.yes_no
    ? html`<label class="check"><input type="checkbox" checked=${form[one.name] === "yes"} onChange=${(event) => set({ ...form, [one.name]: event.target.checked ? "yes" : "" })} /> ${one.doc}</label>`
    : html`<${Field} label=${one.name.replaceAll("_", " ")} hint=${one.doc}><input inputmode="decimal" value=${form[one.name]} onInput=${(event) => set({ ...form, [one.name]: event.target.value })} /></${Field}>`;
  return html`<form class="inputs" onSubmit=${submit} aria-label="Inputs"><div class="grid">${data.demand.slice(0, 8).map(field)}</div>
    <details><summary>More of the load</summary><div class="grid">${data.demand.slice(8).map(field)}</div></details>
    <details><summary>The machines</summary><div class="grid">${data.machine.map(field)}</div></details>
    <p><button type="submit" class="main">Plan</button></p></form>`;
}

function Answer({ data }) {
  const curve = Object.entries(data.load_times).filter(([, nodes]) => nodes !== null).map(([times, nodes]) => [Number(times), nodes]);
  const last = data.growth.at(-1) ?? {};
  const growing = Object.keys(last).sort((one, other) => last[other] - last[one]).slice(0, 3);
  const changes = Object.entries(data.what_if).filter(([, { less, more }]) => less !== data.nodes || more !== data.nodes);
  return html`<section aria-label="The plan"><dl class="tiles">
      <div><dt>Nodes</dt><dd>${count(data.nodes)}<small>${data.away} may be away</small></dd></div>
      <div><dt>What binds</dt><dd>${data.binds}<small>${percent(data.uses[data.binds].away_share)} of it with ${data.away} away</small></dd></div>
      <div><dt>Busiest hour</dt><dd>${count(data.load.records_a_second)}<small>records a second, ${bytes(data.load.peak_mb_s * 1e6)}/s</small></dd></div>
      <div><dt>Partitions</dt><dd>${count(data.partitions)}<small>${plural(data.files_a_node, "file")} on a node</small></dd></div>
      <div><dt>A lost disk</dt><dd>${duration(data.rebuild_hours * 3600)}<small>until it is copied anew</small></dd></div>
      ${data.price > 0 && html`<div><dt>Price</dt><dd>${count(data.price)}<small>a month</small></dd></div>`}</dl>
    <${Table} caption="What a node uses" rows=${Object.entries(data.uses)} columns=${[
      { name: "Of a node", cell: ([name]) => name }, { name: "All there", cell: ([, use]) => html`<${Meter} share=${use.now_share / use.limit_share} label=${percent(use.now_share)} warn=${0.8} bad=${1} />` },
      { name: `${data.away} away`, cell: ([, use]) => html`<${Meter} share=${use.away_share / use.limit_share} label=${percent(use.away_share)} warn=${0.8} bad=${1} />` },
      { name: "At most", num: true, cell: ([, use]) => percent(use.limit_share) }, { name: "Reached in", num: true, cell: ([, use]) => (use.days_until === null ? "–" : plural(Math.round(use.days_until), "day")) }]} />
    <div class="charts"><${Chart} title="Nodes for several times the load" names=${["nodes"]} points=${curve} show=${count} x="times" />
      ${data.growth.length > 0 && html`<${Chart} title="Bounds used as the load grows" names=${growing} points=${data.growth.map((shares, month) => [month, ...growing.map((name) => shares[name])])} show=${percent} x="months" />`}</div>
    <h2>What would change it</h2><${Table} caption="What would change the number of nodes" rows=${changes} empty="No input, a fifth more or less, changes the number of nodes." columns=${[
      { name: "Input", cell: ([name]) => name.replaceAll("_", " ") }, { name: "A fifth less", num: true, cell: ([, one]) => (one.less ? plural(one.less, "node") : "none will do") }, { name: "A fifth more", num: true, cell: ([, one]) => (one.more ? plural(one.more, "node") : "none will do") }]} />
    <h2>Settings of the nodes</h2><pre tabindex="0" aria-label="Settings of the nodes">${Object.entries(data.settings).map(([name, value]) => `${name}=${value}`).join("\n")}</pre></section>`;
}
