// The frame: who is logged in, where one is, and what is drawn there.
import { at, h, html, loadSession, navigate, post, render, setSession, useAddress, useEffect, useSession, useState } from "./lib.js";
import { Field, Problem } from "./ui.js";
import { Cluster, Node } from "./views/cluster.js";
import { Drills } from "./views/drills.js";
import { Group, Groups } from "./views/groups.js";
import { Plan } from "./views/plan.js";
import { Security } from "./views/security.js";
import { Sinks } from "./views/sinks.js";
import { Topic, Topics } from "./views/topics.js";
import { Moves, Transactions } from "./views/transactions.js";

const PAGES = [
  ["", "Cluster"], ["topics", "Topics"], ["groups", "Groups"], ["transactions", "Transactions"], ["sinks", "Sinks"], ["moves", "Reassignments"],
  ["security", "Users and rights"], ["drills", "Drills"], ["plan", "Plan"],
];
const THEMES = ["auto", "light", "dark"];

function Frame() {
  const session = useSession();
  const address = useAddress();
  useEffect(() => {
    loadSession();
  }, []);
  const [first, ...rest] = address.parts;
  const page = PAGES.find(([name]) => name === (first ?? ""));
  useEffect(() => {
    document.title = [rest.join(" / "), page?.[1], "Tidelog"].filter(Boolean).join(" – ");
  }, [address.path]);
  if (session === null) return html`<main class="alone"><p role="status">Loading …</p></main>`;
  if (session.away) return html`<main class="alone"><h1>Tidelog</h1><${Problem} trouble=${{ message: session.away, code: "AWAY" }} /><button type="button" onClick=${loadSession}>Try again</button></main>`;
  if (!session.csrf) return html`<${Login} session=${session} />`;
  return html`<a class="skip" href="#content" onClick=${(event) => (event.preventDefault(), document.querySelector("main").focus())}>To the content</a>
    <header class="side"><a class="brand" href="/"><img src="/static/icon.svg" alt="" width="28" height="28" />Tidelog</a>
      <nav aria-label="Pages"><ul>${PAGES.map(([name, title]) => html`<li><a href=${name ? at(name) : "/"} aria-current=${page?.[0] === name ? "page" : undefined}>${title}</a></li>`)}</ul></nav>
      <div class="who"><p class="quiet" title="The brokers that the console asked first">${session.bootstrap.replaceAll(",", ", ")}</p>
        ${session.user && html`<p>as <b>${session.user}</b></p>`}
        <div class="buttons"><${Theme} />${session.way !== "open" && html`<button type="button" class="plain" onClick=${logOut}>Log out</button>`}</div></div>
    </header>
    <main id="content" tabindex="-1"><${Page} key=${address.path} address=${address} first=${first ?? ""} rest=${rest} page=${page} /></main>`;
}

function Page({ address, first, rest, page }) {
  const found = { "": Cluster, topics: rest.length ? Topic : Topics, groups: rest.length ? Group : Groups, transactions: Transactions, sinks: Sinks, moves: Moves, security: Security, drills: Drills, plan: Plan, nodes: Node }[first];
  if (!found) return html`<h1>There is no such page</h1><p><a href="/">To the cluster</a></p>`;
  return h(found, { address, rest, title: page?.[1] });
}

function Theme() {
  const [theme, set] = useState(document.documentElement.dataset.theme ?? "auto");
  const turn = () => {
    const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    set(next);
    localStorage.setItem("theme", next);
    wear(next);
    dispatchEvent(new Event("themed"));
  };
  return html`<button type="button" class="plain" onClick=${turn}>Colours: ${theme}</button>`;
}

function wear(theme) {
  if (theme === "auto" || !THEMES.includes(theme)) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

async function logOut() {
  try {
    await post("/api/logout");
  } finally {
    setSession(null);
    navigate("/", true);
    loadSession();
  }
}

function Login({ session }) {
  const token = session.way === "token";
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const [trouble, setTrouble] = useState(null);
  const [busy, setBusy] = useState(false);
  const logIn = async (event) => {
    event?.preventDefault();
    setBusy(true);
    setTrouble(null);
    try {
      setSession(await post("/api/login", { user, password }));
    } catch (failed) {
      setTrouble(failed);
      setBusy(false);
    }
  };
  useEffect(() => {
    const given = location.hash.match(/^#token=(.+)$/)?.[1];
    if (!token || !given) return;
    history.replaceState(null, "", location.pathname);
    post("/api/login", { user: "", password: given }).then(setSession, setTrouble);
  }, []);
  return html`<main class="alone"><form class="card" onSubmit=${logIn}><h1><img src="/static/icon.svg" alt="" width="28" height="28" /> Tidelog</h1>
    <p class="quiet">${token ? "The console prints an address with a token when it starts." : `Log in as a user of the cluster at ${session.bootstrap}.`}</p>
    ${!token && html`<${Field} label="User"><input autocomplete="username" autofocus required value=${user} onInput=${(event) => setUser(event.target.value)} /></${Field}>`}
    <${Field} label=${token ? "Token" : "Password"}><input type="password" autocomplete="current-password" required value=${password} onInput=${(event) => setPassword(event.target.value)} /></${Field}>
    ${trouble && html`<div class="problem" role="alert">${trouble.message}</div>`}
    <button type="submit" class="main" disabled=${busy}>${busy ? "Asking a broker …" : "Log in"}</button></form></main>`;
}

wear(localStorage.getItem("theme") ?? "auto");
render(html`<${Frame} />`, document.getElementById("app"));
