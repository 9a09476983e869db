// What all pages share: addresses, questions to the server, live answers, and numbers for people.
import { useEffect, useState } from "./vendor/htm-preact.js";

export { h, html, render, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";

// --- Addresses --------------------------------------------------------------------------------------

const watchers = new Set();

export function navigate(to, replace = false) {
  if (to !== location.pathname + location.search) history[replace ? "replaceState" : "pushState"](null, "", to);
  watchers.forEach((tell) => tell());
  if (!replace) {
    scrollTo(0, 0);
    document.querySelector("main")?.focus({ preventScroll: true });
  }
}

addEventListener("popstate", () => watchers.forEach((tell) => tell()));

addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='/']");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  navigate(link.getAttribute("href"));
});

export function useAddress() {
  const [address, set] = useState(location.pathname + location.search);
  useEffect(() => {
    const tell = () => set(location.pathname + location.search);
    watchers.add(tell);
    return () => watchers.delete(tell);
  }, []);
  const [path, query] = address.split("?");
  return { path, parts: path.split("/").filter(Boolean).map(safeDecode), query: new URLSearchParams(query ?? "") };
}

const safeDecode = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};

/** An address of its parts, each encoded: names may hold anything. */
export const at = (...parts) => "/" + parts.map((part) => encodeURIComponent(part)).join("/");

/** The address with these fields of the query changed; empty ones are left out. */
export function withQuery(changes) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === null || value === undefined) query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  return location.pathname + (text ? `?${text}` : "");
}

// --- Questions --------------------------------------------------------------------------------------

export class Trouble extends Error {
  constructor(status, code, message) {
    super(message || code);
    this.status = status;
    this.code = code;
  }
}

let session = null;
const sessionWatchers = new Set();

export function setSession(found) {
  session = found;
  sessionWatchers.forEach((tell) => tell(found));
}

export function useSession() {
  const [found, set] = useState(session);
  useEffect(() => {
    sessionWatchers.add(set);
    return () => sessionWatchers.delete(set);
  }, []);
  return found;
}

export async function loadSession() {
  try {
    setSession(await ask("GET", "/api/session"));
  } catch (trouble) {
    setSession({ away: trouble.message });
  }
}

async function ask(method, path, body) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: body === undefined ? {} : { "Content-Type": "application/json", "X-CSRF-Token": session?.csrf ?? "" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Trouble(0, "AWAY", "The console does not answer. Does it still run?");
  }
  let found = {};
  try {
    found = await answer.json();
  } catch {
    // an answer without JSON has its status only
  }
  if (answer.ok) return found;
  if (answer.status === 401 && session?.csrf) loadSession();
  throw new Trouble(answer.status, found.error ?? String(answer.status), found.message);
}

export const get = (path) => ask("GET", path);
export const post = (path, body = {}) => ask("POST", path, body);

/** What an address shows, once; asked again when it or `turn` changes. */
export function useOnce(path, turn = 0) {
  const [found, set] = useState({});
  useEffect(() => {
    let wanted = true;
    if (path) {
      get(path).then(
        (data) => wanted && set({ data }),
        (trouble) => wanted && set({ trouble }),
      );
    }
    return () => (wanted = false);
  }, [path, turn]);
  return found;
}

/** What an address shows, live while somebody looks: no stream is open in a hidden tab. */
export function useLive(path) {
  const [found, set] = useState({});
  useEffect(() => {
    let source = null;
    let again = 0;
    set({});
    const close = () => {
      source?.close();
      source = null;
      clearTimeout(again);
    };
    const open = () => {
      close();
      if (document.hidden) return;
      source = new EventSource(path);
      source.onmessage = (event) => set({ data: JSON.parse(event.data), at: Date.now() });
      source.addEventListener("trouble", (event) => {
        const told = JSON.parse(event.data);
        set((before) => ({ ...before, trouble: new Trouble(told.status, told.error, told.message) }));
      });
      source.addEventListener("over", () => (close(), loadSession()));
      source.onerror = () => {
        set((before) => ({ ...before, lost: true }));
        if (source?.readyState !== EventSource.CLOSED) return; // it tries again by itself
        close();
        get(path).then(
          () => (again = setTimeout(open, 3000)),
          (trouble) => {
            set((before) => ({ ...before, trouble }));
            if (trouble.status !== 401 && trouble.status !== 404) again = setTimeout(open, 3000);
          },
        );
      };
    };
    const look = () => (document.hidden ? close() : source ?? open());
    open();
    document.addEventListener("visibilitychange", look);
    return () => {
      document.removeEventListener("visibilitychange", look);
      close();
    };
  }, [path]);
  return found;
}

const kept = new Map();
const POINTS_MAX = 600;

/** The points of a chart so far, kept while the page is open: the server remembers none. */
export function useHistory(key, time, values) {
  const points = kept.get(key) ?? [];
  if (time === undefined || values === null || points.at(-1)?.[0] === time / 1000) return points;
  const more = [...points.filter((point) => point.length === values.length + 1), [time / 1000, ...values]].slice(-POINTS_MAX);
  kept.set(key, more);
  return more;
}

// --- Numbers for people -----------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const some = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));
export const plural = (value, noun) => `${count(value)} ${value === 1 ? noun : /[^aeiou]y$/.test(noun) ? noun.slice(0, -1) + "ies" : noun + "s"}`;
export const percent = (share) => (share === null || share === undefined ? "–" : `${tenths.format(share * 100)} %`);

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  let amount = Math.abs(value);
  while (amount >= 999.5 && unit < 5) [amount, unit] = [amount / 1000, unit + 1];
  return `${value < 0 ? "-" : ""}${some.format(amount)} ${["B", "kB", "MB", "GB", "TB", "PB"][unit]}`;
}

export const byteRate = (value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`);

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  for (const [name, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= size * 2) return `${some.format(seconds / size)} ${name}`;
  }
  return `${some.format(seconds)} s`;
}

const two = (number) => String(number).padStart(2, "0");

export function time(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  const found = new Date(ms);
  if (Number.isNaN(found.getTime())) return String(ms);
  const day = `${found.getFullYear()}-${two(found.getMonth() + 1)}-${two(found.getDate())}`;
  return `${day} ${two(found.getHours())}:${two(found.getMinutes())}:${two(found.getSeconds())}.${String(found.getMilliseconds()).padStart(3, "0")}`;
}
