// Consumer groups, and one group: lag, members, reset with a preview.
import { at, count, duration, html, navigate, plural, post, useHistory, useLive, useState } from "../lib.js";
import { ActDialog, Chart, Field, Live, Opens, Pager, Problem, Search, Table, Tag } from "../ui.js";

export function Groups({ address }) {
  const found = useLive(`/api/groups?${address.query}`);
  return html`<h1>Groups</h1><div class="bar"><${Search} label="Search by name" query=${address.query} /></div>
    <${Live} found=${found}>${(data) => html`<${Pager} about=${data} noun="group" />
      <${Table} caption="Groups" about=${data} rows=${data.groups} rowKey=${(one) => one.name} empty=${data.total ? "No group has such a name." : "There is no group yet."} columns=${[
        { name: "Group", sort: "name", cell: (one) => html`<a class="name" href=${at("groups", one.name)}>${one.name || "(without a name)"}</a>` },
        { name: "State", sort: "state", cell: (one) => html`<${Tag} text=${one.state} />` },
        { name: "Protocol", cell: (one) => `${one.type}${one.protocol && one.protocol !== "consumer" ? `, ${one.protocol}` : ""}` },
        { name: "Lag", num: true, cell: (one) => count(one.lag) },
      ]} />`}</${Live}>`;
}

const MEANS = {
  Stable: "Every partition has its reader.", Empty: "It has no members; its offsets are kept.", Dead: "It is gone.",
  PreparingRebalance: "Members are joining; nobody reads meanwhile.", CompletingRebalance: "The assignment is being handed out.",
  Assigning: "The assignment is being made.", Reconciling: "Members are moving to a new assignment.",
};

export function Group({ rest }) {
  const [name] = rest;
  const found = useLive(at("api", "groups", name));
  const lag = useHistory(`group ${name}`, found.data?.lag === null ? undefined : found.at, found.data ? [found.data.lag] : null);
  const seconds = useHistory(`group seconds ${name}`, found.data?.lag_s === undefined || found.data?.lag_s === null ? undefined : found.at, found.data ? [found.data.lag_s] : null);
  return html`<p class="trail"><a href="/groups">Groups</a></p><h1 class="name">${name}</h1><${Live} found=${found}>${(data) => html`
    <p><${Tag} text=${data.state} /> ${MEANS[data.state] ?? ""} <span class="quiet">Coordinator: node ${data.coordinator}${data.assignor && `; assignor: ${data.assignor}`}</span></p>
    <div class="charts"><${Chart} title="Lag" names=${["records"]} points=${lag} show=${count} /><${Chart} title="Oldest record not read" names=${["age"]} points=${seconds} show=${duration} /></div>
    <div class="buttons">
      <${Opens} label="Reset offsets">${(close) => html`<${Reset} group=${name} data=${data} onClose=${close} />`}</${Opens}>
      <${Opens} label="Forget a topic">${(close) => html`<${Forget} group=${name} data=${data} onClose=${close} />`}</${Opens}>
      <${Opens} label="Delete group" danger>${(close) => html`<${ActDialog} title=${`Delete ${name}`} button="Delete it" danger typed=${name} what="Name of the group" onClose=${close} act=${(confirm) => post(at("api", "groups", name, "delete"), { confirm })} onDone=${() => navigate("/groups")}><p>Its committed offsets go with it.</p></${ActDialog}>`}</${Opens}></div>
    <h2>Partitions</h2>
    <${Table} caption="Partitions" rows=${data.partitions} rowKey=${(one) => `${one.topic}-${one.partition}`} empty="Nothing is committed and nobody reads." columns=${[
      { name: "Partition", cell: (one) => html`<a class="name" href=${at("topics", one.topic)}>${one.topic}-${one.partition}</a>` },
      { name: "Committed", num: true, cell: (one) => count(one.committed) },
      { name: "End", num: true, cell: (one) => count(one.end) },
      { name: "Lag", num: true, cell: (one) => count(one.lag) },
      { name: "Lag as time", num: true, cell: (one) => duration(one.lag_s) },
      { name: "Reader", cell: (one) => one.client ? html`<span class="name">${one.client}</span> <span class="quiet">${one.host}</span>` : "–" },
    ]} />
    ${data.more > 0 && html`<p class="quiet">and ${plural(data.more, "row")} more</p>`}
    <h2>Members</h2>
    <${Table} caption="Members" rows=${data.members} rowKey=${(one) => one.id} empty="It has no members." columns=${[
      { name: "Member", cell: (one) => html`<span class="name">${one.id}</span>` },
      { name: "Client", cell: (one) => html`<span class="name">${one.client}</span>` },
      { name: "Instance", cell: (one) => one.instance ?? "–" },
      { name: "Host", cell: (one) => one.host },
      { name: "Partitions", num: true, cell: (one) => count(one.partitions) },
      { name: "Assignment", cell: (one) => html`<details><summary>${plural(one.assignment.length, "partition")}</summary>${one.assignment.join(", ")}</details>` },
    ]} />`}</${Live}>`;
}

const topicsOf = (data) => [...new Set(data.partitions.map((one) => one.topic))];

function Reset({ group, data, onClose }) {
  const [form, set] = useState({ to: "earliest", at: "", topic: "" });
  const [plan, setPlan] = useState(null);
  const field = (name) => ({ value: form[name], onChange: (event) => (set({ ...form, [name]: event.target.value }), setPlan(null)) });
  const preview = () => {
    const value = form.to === "time" ? String(new Date(form.at).getTime()) : form.at;
    return post(at("api", "groups", group, "preview"), { ...form, at: value }).then((data) => setPlan({ data }), (trouble) => setPlan({ trouble }));
  };
  const moves = plan?.data?.moves ?? [];
  return html`<${ActDialog} title=${`Reset ${group}`} button=${moves.length ? `Move ${plural(moves.length, "offset")}` : "Move"} danger onClose=${onClose} ready=${moves.length > 0} act=${() => post(at("api", "groups", group, "reset"), { moves })}>
    ${data.members.length > 0 && html`<div class="problem">It has members. Stop them first: while they read, the cluster refuses.</div>`}
    <${Field} label="To"><select ...${field("to")}><option value="earliest">the first record</option><option value="latest">the end</option><option value="offset">an offset</option><option value="shift">forward or back by</option><option value="time">a time</option></select></${Field}>
    ${["offset", "shift"].includes(form.to) && html`<${Field} label=${form.to === "offset" ? "Offset" : "Records (negative: back)"}><input inputmode="numeric" ...${field("at")} /></${Field}>`}
    ${form.to === "time" && html`<${Field} label="Time"><input type="datetime-local" step="1" ...${field("at")} /></${Field}>`}
    <${Field} label="Topic"><select ...${field("topic")}><option value="">all that have offsets</option>${topicsOf(data).map((topic) => html`<option value=${topic}>${topic}</option>`)}</select></${Field}>
    <p><button type="button" onClick=${preview}>Preview</button></p>
    <${Problem} trouble=${plan?.trouble} />
    ${plan?.data && html`<${Table} caption="What would change" rows=${moves} columns=${[
      { name: "Partition", cell: (one) => `${one.topic}-${one.partition}` }, { name: "From", num: true, cell: (one) => count(one.from) }, { name: "To", num: true, cell: (one) => count(one.to) },
      { name: "Change", num: true, cell: (one) => (one.from === null ? "new" : `${one.to >= one.from ? "+" : ""}${count(one.to - one.from)}`) }]} />
      ${plan.data.notes.map((note) => html`<p class="quiet">${note}</p>`)}`}</${ActDialog}>`;
}

function Forget({ group, data, onClose }) {
  const topics = topicsOf(data);
  const [topic, set] = useState(topics[0] ?? "");
  return html`<${ActDialog} title=${`Forget a topic of ${group}`} button="Forget it" danger typed=${group} what="Name of the group" onClose=${onClose} ready=${topic !== ""} act=${(confirm) => post(at("api", "groups", group, "forget"), { confirm, topic })}>
    <${Field} label="Topic"><select value=${topic} onChange=${(event) => set(event.target.value)}>${topics.map((one) => html`<option value=${one}>${one}</option>`)}</select></${Field}></${ActDialog}>`;
}
