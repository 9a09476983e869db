// Users with passwords, access control lists, quotas.
import { at, count, html, post, useOnce, useState } from "../lib.js";
import { ActDialog, Field, Live, Opens, Pager, Problem, Search, Table, Tabs, Tag } from "../ui.js";

export function Security({ address, rest }) {
  const [view = "acls"] = rest;
  return html`<h1>Users and rights</h1><${Tabs} label="Parts" here=${at("security", view)} items=${[["/security/acls", "Access control lists"], ["/security/users", "Users"], ["/security/quotas", "Quotas"]]} />
    ${view === "users" ? html`<${Users} />` : view === "quotas" ? html`<${Quotas} />` : html`<${Acls} address=${address} />`}`;
}

function form(first) {
  const [values, set] = useState(first);
  return [values, (name) => ({ value: values[name], onInput: (event) => set({ ...values, [name]: event.target.value }) })];
}

const TYPES = ["TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN", "USER"];
const DEEDS = ["READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "CLUSTER_ACTION", "IDEMPOTENT_WRITE", "CREATE_TOKENS", "DESCRIBE_TOKENS", "TWO_PHASE_COMMIT", "ALL"];
const choices = (names) => names.map((name) => html`<option>${name}</option>`);

function Acls({ address }) {
  const [turn, set] = useState(0);
  const again = () => set(turn + 1);
  const found = useOnce(`/api/acls?${address.query}`, turn);
  if (found.trouble) return html`<${Problem} trouble=${found.trouble} />`;
  return html`<div class="bar"><${Search} label="Search" query=${address.query} /><${Opens} label="New entry">${(close) => html`<${NewAcl} onClose=${close} onDone=${again} />`}</${Opens}></div>
    <${Live} found=${found}>${(data) => data.off ? html`<p class="note">This cluster has no access control: everybody may do everything. <code>authorizer.class.name</code> turns it on.</p>` : html`<${Pager} about=${data} noun="entry" /><${Table} caption="Access control lists" about=${data} rows=${data.acls} empty="There is no entry: only super users may do anything." columns=${[
      { name: "Who", sort: "principal", cell: (one) => html`<span class="name">${one.principal}</span>` },
      { name: "May", cell: (one) => html`<${Tag} text=${one.permission.toLowerCase()} kind=${one.permission === "DENY" ? "bad" : "good"} /> ${one.operation}` },
      { name: "On", sort: "resource", cell: (one) => html`${one.resource_type} <span class="name">${one.resource_name}</span>${one.pattern_type === "PREFIXED" && html` <${Tag} text="and what begins so" />`}` },
      { name: "From", cell: (one) => (one.host === "*" ? "anywhere" : one.host) },
      { name: "", cell: (one) => html`<${Opens} label="Remove" danger>${(close) => html`<${ActDialog} title="Remove an entry" button="Remove it" danger onClose=${close} act=${() => post("/api/acls/remove", one)} onDone=${again}><p>${one.permission} ${one.principal}: ${one.operation} on ${one.resource_type} ${one.resource_name}</p></${ActDialog}>`}</${Opens}>` },
    ]} />`}</${Live}>`;
}

function NewAcl({ onClose, onDone }) {
  const [values, field] = form({ principal: "User:", permission: "ALLOW", operation: "READ", resource_type: "TOPIC", resource_name: "", pattern_type: "LITERAL", host: "*" });
  return html`<${ActDialog} title="New entry" button="Add" onClose=${onClose} onDone=${onDone} act=${() => post("/api/acls", values)}>
    <${Field} label="Who" hint="User:name; User:* is everybody."><input required spellcheck="false" ...${field("principal")} /></${Field}>
    <${Field} label="Permission"><select ...${field("permission")}>${choices(["ALLOW", "DENY"])}</select></${Field}>
    <${Field} label="Operation"><select ...${field("operation")}>${choices(DEEDS)}</select></${Field}>
    <${Field} label="Kind of resource"><select ...${field("resource_type")}>${choices(TYPES)}</select></${Field}>
    <${Field} label="Name of the resource" hint="* is all; kafka-cluster for the cluster."><input required spellcheck="false" ...${field("resource_name")} /></${Field}>
    <${Field} label="The name is meant"><select ...${field("pattern_type")}><option value="LITERAL">as it is</option><option value="PREFIXED">as a beginning</option></select></${Field}>
    <${Field} label="From the address"><input spellcheck="false" ...${field("host")} /></${Field}></${ActDialog}>`;
}

function Users() {
  const [turn, set] = useState(0);
  const again = () => set(turn + 1);
  const found = useOnce("/api/users", turn);
  if (found.trouble) return html`<${Problem} trouble=${found.trouble} />`;
  return html`<div class="bar"><${Opens} label="New user or password">${(close) => html`<${Password} onClose=${close} onDone=${again} />`}</${Opens}></div>
    <${Live} found=${found}>${(data) => html`<${Table} caption="Users" rows=${data.users} rowKey=${(one) => one.name} empty="No user logs in by password." columns=${[
      { name: "User", cell: (one) => html`<span class="name">${one.name}</span>` },
      { name: "Logs in by", cell: (one) => one.mechanisms.map(([name, rounds]) => `${name}, ${count(rounds)} rounds`).join("; ") },
      { name: "", cell: (one) => one.mechanisms.map(([mechanism]) => html`<${Opens} label="Delete" danger>${(close) => html`<${ActDialog} title=${`Delete ${one.name}`} button="Delete it" danger typed=${one.name} what="User" onClose=${close} act=${(confirm) => post(at("api", "users", one.name, "delete"), { confirm, mechanism })} onDone=${again}><p>${one.name} can then no longer log in by ${mechanism}.</p></${ActDialog}>`}</${Opens}>`) },
    ]} />`}</${Live}>`;
}

function Password({ onClose, onDone }) {
  const [values, field] = form({ name: "", password: "", mechanism: "SCRAM-SHA-512" });
  return html`<${ActDialog} title="New user or password" button="Set it" onClose=${onClose} onDone=${onDone} ready=${values.password !== ""} act=${() => post(at("api", "users", values.name, "password"), values)}>
    <${Field} label="User"><input required autocomplete="off" spellcheck="false" ...${field("name")} /></${Field}>
    <${Field} label="Password"><input required type="password" autocomplete="new-password" ...${field("password")} /></${Field}>
    <${Field} label="Mechanism"><select ...${field("mechanism")}>${choices(["SCRAM-SHA-512", "SCRAM-SHA-256"])}</select></${Field}></${ActDialog}>`;
}

const QUOTAS = ["producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate", "connection_creation_rate"];

function Quotas() {
  const [turn, set] = useState(0);
  const again = () => set(turn + 1);
  const found = useOnce("/api/quotas", turn);
  if (found.trouble) return html`<${Problem} trouble=${found.trouble} />`;
  return html`<div class="bar"><${Opens} label="New quota">${(close) => html`<${Quota} onClose=${close} onDone=${again} />`}</${Opens}></div>
    <${Live} found=${found}>${(data) => html`<${Table} caption="Quotas" rows=${data.quotas} rowKey=${(one) => one.name} empty="Nobody is bounded." columns=${[
      { name: "Whom", cell: (one) => html`<span class="name">${one.name}</span>` },
      { name: "Quotas", cell: (one) => html`<ul class="headers">${Object.entries(one.values).map(([name, value]) => html`<li><code>${name}</code> ${count(value)}</li>`)}</ul>` },
      { name: "", cell: (one) => html`<${Opens} label="Remove" danger>${(close) => html`<${ActDialog} title="Remove quotas" button="Remove them" danger onClose=${close} onDone=${again} act=${() => post("/api/quotas", { user: one.user, client: one.client, ip: one.ip, values: Object.fromEntries(Object.keys(one.values).map((name) => [name, null])) })}><p>${one.name} is then bounded by nothing of its own.</p></${ActDialog}>`}</${Opens}>` },
    ]} />`}</${Live}>`;
}

function Quota({ onClose, onDone }) {
  const [values, field] = form({ kind: "user", name: "", quota: QUOTAS[0], amount: "" });
  const act = () => post("/api/quotas", { user: null, client: null, ip: null, [values.kind]: values.name, values: { [values.quota]: Number(values.amount) } });
  return html`<${ActDialog} title="New quota" button="Set it" onClose=${onClose} onDone=${onDone} ready=${values.amount !== ""} act=${act}>
    <${Field} label="Of a"><select ...${field("kind")}><option value="user">user</option><option value="client">client id</option><option value="ip">address</option></select></${Field}>
    <${Field} label="Name" hint="Empty: all that have none of their own."><input spellcheck="false" ...${field("name")} /></${Field}>
    <${Field} label="Quota"><select ...${field("quota")}>${choices(QUOTAS)}</select></${Field}>
    <${Field} label="At most" hint="Bytes a second; per cent for requests."><input type="number" min="0" step="any" ...${field("amount")} /></${Field}></${ActDialog}>`;
}
