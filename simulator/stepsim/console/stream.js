// Follows the lab's events, and says whether it is there. The browser reconnects by itself; where it gives up, we do.

const SILENT_MS = 4000; // a state comes every second
const DEAF_MS = 10000; // then the connection is given up, as after a sleep
const AGAIN_MS = 2000;

/** ``handlers``: opening, state and lap are called with what came, link with "live" or "gone" when that has changed, and
    when the lab was heard last. */
export function follow(handlers) {
  let source = null;
  let heard = performance.now();
  let at = Date.now();
  let state = "connecting";

  const become = (next) => {
    if (state !== next) handlers.link(next, at);
    state = next;
  };
  const hear = (name) => (event) => {
    heard = performance.now();
    at = Date.now();
    handlers[name](JSON.parse(event.data));
    become("live");
  };
  const connect = () => {
    source?.close();
    source = new EventSource("/events");
    for (const name of ["opening", "state", "lap"]) source.addEventListener(name, hear(name));
    source.onerror = () => {
      become("gone");
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, AGAIN_MS);
    };
  };

  connect();
  let tried = 0;
  setInterval(() => {
    const silent = performance.now() - heard;
    if (silent > SILENT_MS) become("gone");
    if (silent > DEAF_MS && performance.now() - tried > DEAF_MS) {
      tried = performance.now();
      connect();
    }
  }, 1000);
}
