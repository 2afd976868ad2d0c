// Replaces the content of each element with data-live by what the server sends.
for (const part of document.querySelectorAll("[data-live]")) {
  new EventSource(part.dataset.live).onmessage = (event) => { part.innerHTML = JSON.parse(event.data); };
}
