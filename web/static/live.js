// Replaces the content of elements, by their ids, by what the server sends to the page around them.
const nameOf = (element) => element.getAttribute("href") || element.value || element.getAttribute("aria-label");

function replace(part, html) {
  const draft = document.createElement("template");
  draft.innerHTML = html;
  if (draft.innerHTML === part.innerHTML) return; // as it is at first: nobody's click goes to an element that is gone
  const inside = part.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  const ticked = new Set([...part.querySelectorAll("input:checked")].map((input) => input.value));
  const moved = [...part.querySelectorAll(".scroll")].map((region) => region.scrollLeft);
  part.innerHTML = html;
  part.querySelectorAll("input").forEach((input) => { input.checked = ticked.has(input.value); });
  part.querySelectorAll(".scroll").forEach((region, i) => { region.scrollLeft = moved[i] || 0; });
  if (inside) [...part.querySelectorAll("a, button, input, [tabindex]")].find((e) => nameOf(e) === inside)?.focus();
}

for (const page of document.querySelectorAll("[data-live]")) {
  const source = new EventSource(page.dataset.live), stale = document.getElementById("stale");
  source.onmessage = (event) => {
    stale.hidden = true;
    for (const [id, html] of Object.entries(JSON.parse(event.data))) replace(document.getElementById(id), html);
  };
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) location.reload(); // the session has ended: to the login
    else setTimeout(() => { stale.hidden = source.readyState === EventSource.OPEN; }, 5000);
  };
}
