// Topics, and one topic: partitions, messages, settings.
import { at, bytes, count, html, navigate, plural, post, useLive, useState, withQuery } from "../lib.js";
import { ActDialog, Field, Live, Opens, Pager, ReplicaKey, Replicas, Search, Table, Tabs, Tag } from "../ui.js";
import { Messages } from "./messages.js";
import { Settings } from "./settings.js";

export function Topics({ address }) {
  const found = useLive(`/api/topics?${address.query}`);
  const internal = address.query.get("internal") === "yes";
  return html`<div class="head"><h1>Topics</h1><${Opens} label="New topic">${(close) => html`<${NewTopic} onClose=${close} />`}</${Opens}></div>
    <div class="bar"><${Search} label="Search by name" query=${address.query} />
      <label class="check"><input type="checkbox" checked=${internal} onChange=${(event) => navigate(withQuery({ internal: event.target.checked ? "yes" : "", page: "" }), true)} /> internal ones too</label></div>
    <${Live} found=${found}>${(data) => html`<${Pager} about=${data} noun="topic" />
      <${Table} caption="Topics" about=${data} rows=${data.topics} rowKey=${(one) => one.name} empty=${data.total ? "No topic has such a name." : "There is no topic yet."} columns=${[
        { name: "Topic", sort: "name", cell: (one) => html`<a class="name" href=${at("topics", one.name)}>${one.name}</a>${one.internal && html` <${Tag} text="internal" />`}` },
        { name: "Partitions", sort: "partitions", num: true, cell: (one) => count(one.partitions) },
        { name: "Copies", num: true, cell: (one) => count(one.copies) },
        { name: "State", cell: (one) => one.leaderless ? html`<${Tag} text=${`${one.leaderless} without a leader`} kind="bad" />` : one.out_of_sync ? html`<${Tag} text=${`${one.out_of_sync} not whole`} kind="warn" />` : html`<${Tag} text="whole" kind="good" />` },
        { name: "Size of a copy", sort: "size", num: true, cell: (one) => bytes(one.size) },
        { name: "", cell: (one) => html`<a href=${at("topics", one.name, "messages")} aria-label=${`Messages of ${one.name}`}>Messages</a>` },
      ]} />`}</${Live}>`;
}

function NewTopic({ onClose }) {
  const [form, set] = useState({ name: "", partitions: "6", copies: "3", configs: "" });
  const field = (name) => ({ value: form[name], onInput: (event) => set({ ...form, [name]: event.target.value }) });
  const act = () => {
    const configs = Object.fromEntries(form.configs.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => [line.split("=")[0].trim(), line.split("=").slice(1).join("=").trim()]));
    return post("/api/topics", { name: form.name, partitions: form.partitions || -1, copies: form.copies || -1, configs });
  };
  return html`<${ActDialog} title="New topic" button="Create" onClose=${onClose} act=${act} onDone=${(made) => navigate(at("topics", made.name))}>
    <${Field} label="Name"><input required autofocus autocomplete="off" spellcheck="false" ...${field("name")} /></${Field}>
    <${Field} label="Partitions"><input type="number" min="1" ...${field("partitions")} /></${Field}>
    <${Field} label="Copies of each" hint="Empty: as the cluster's default says."><input type="number" min="1" ...${field("copies")} /></${Field}>
    <${Field} label="Settings" hint="One a line, as retention.ms=3600000."><textarea rows="3" spellcheck="false" ...${field("configs")}></textarea></${Field}></${ActDialog}>`;
}

export function Topic({ address, rest }) {
  const [name, view = "partitions"] = rest;
  return html`<p class="trail"><a href="/topics">Topics</a></p><h1 class="name">${name}</h1>
    <${Tabs} label="Parts of the topic" here=${at(...["topics", name, ...(view === "partitions" ? [] : [view])])} items=${[[at("topics", name), "Partitions"], [at("topics", name, "messages"), "Messages"], [at("topics", name, "settings"), "Settings"]]} />
    ${view === "messages" ? html`<${Messages} topic=${name} address=${address} />` : view === "settings" ? html`<${Settings} path=${at("api", "topics", name, "settings")} />` : html`<${Partitions} topic=${name} address=${address} />`}`;
}

function Partitions({ topic, address }) {
  const found = useLive(`${at("api", "topics", topic)}?${address.query}`);
  return html`<${Live} found=${found}>${(data) => html`
    <div class="bar"><${Pager} about=${data} noun="partition" /><span class="buttons">
      <${Opens} label="Grow">${(close) => html`<${Grow} topic=${topic} count=${data.total} onClose=${close} />`}</${Opens}>
      <${Opens} label="Delete records">${(close) => html`<${DeleteRecords} topic=${topic} partitions=${data.partitions} onClose=${close} />`}</${Opens}>
      <${Opens} label="Delete topic" danger>${(close) => html`<${ActDialog} title=${`Delete ${topic}`} button="Delete it" danger typed=${topic} what="Name of the topic" onClose=${close} act=${(confirm) => post(at("api", "topics", topic, "delete"), { confirm })} onDone=${() => navigate("/topics")}>
        <p>The topic goes with all its records, on every node.</p></${ActDialog}>`}</${Opens}></span></div>
    <${ReplicaKey} />
    <${Table} caption="Partitions" about=${data} rows=${data.partitions} rowKey=${(one) => one.partition} columns=${[
      { name: "Partition", sort: "partition", cell: (one) => one.partition },
      { name: "Replicas", sort: "in_sync", cell: (one) => html`<${Replicas} one=${one} />` },
      { name: "Leader", sort: "leader", num: true, cell: (one) => one.leader < 0 ? html`<${Tag} text="none" kind="bad" />` : one.leader },
      { name: "Epoch", num: true, cell: (one) => count(one.epoch) },
      { name: "First offset", num: true, cell: (one) => count(one.first) },
      { name: "Next offset", num: true, cell: (one) => count(one.end) },
      { name: "Offsets", num: true, cell: (one) => count(one.end === null || one.first === null ? null : one.end - one.first) },
      { name: "", cell: (one) => html`<a href=${`${at("topics", topic, "messages")}?partition=${one.partition}`} aria-label=${`Messages of partition ${one.partition}`}>Messages</a>` },
    ]} />`}</${Live}>`;
}

function Grow({ topic, count: before, onClose }) {
  const [partitions, set] = useState(String(before + 1));
  return html`<${ActDialog} title=${`Grow ${topic}`} button="Grow" onClose=${onClose} ready=${Number(partitions) > before} act=${() => post(at("api", "topics", topic, "partitions"), { partitions })}>
    <p>It has ${plural(before, "partition")}. Partitions cannot be taken away again, and from then on keys go to other partitions than before.</p>
    <${Field} label="Partitions in all"><input type="number" min=${before + 1} value=${partitions} onInput=${(event) => set(event.target.value)} /></${Field}></${ActDialog}>`;
}

function DeleteRecords({ topic, partitions, onClose }) {
  const [partition, setPartition] = useState(String(partitions[0]?.partition ?? 0));
  const [before, setBefore] = useState("");
  const one = partitions.find((each) => String(each.partition) === partition);
  return html`<${ActDialog} title="Delete records" button="Delete them" danger typed=${topic} what="Name of the topic" onClose=${onClose} ready=${before !== ""} act=${(confirm) => post(at("api", "topics", topic, "delete-records"), { confirm, partition, before })}>
    <${Field} label="Partition"><select value=${partition} onChange=${(event) => setPartition(event.target.value)}>${partitions.map((each) => html`<option value=${each.partition}>${each.partition}</option>`)}</select></${Field}>
    <${Field} label="Before the offset" hint=${one ? `It has offsets from ${count(one.first)} up to ${count(one.end)}.` : ""}><input inputmode="numeric" value=${before} onInput=${(event) => setBefore(event.target.value)} /></${Field}></${ActDialog}>`;
}
