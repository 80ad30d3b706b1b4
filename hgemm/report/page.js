// The page is whole without this: it adds sorting by a click on a heading, and a filter above the tables.
"use strict";

function value(row, column) {
  const cell = row.cells[column];
  const sort = cell.dataset.sort;
  return sort === undefined ? cell.textContent.trim() : Number(sort);
}

// Numbers before text, and what is empty last, whichever way it goes.
function compare(a, b, direction) {
  if ((a === "") !== (b === "")) return a === "" ? 1 : -1;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return direction * (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      // What is large is what one looks for first, among numbers.
      const first = heading.classList.contains("number") ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = heading.getAttribute("aria-sort") === first ? other : first;
      headings.forEach((each) => each.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", order);
      const direction = order === "ascending" ? 1 : -1;
      const body = table.tBodies[0];
      const rows = [...body.rows].map((row) => [value(row, column), row]);
      rows.sort(([a], [b]) => compare(a, b, direction));
      body.append(...rows.map(([, row]) => row));
    });
  });
}

for (const form of document.querySelectorAll("form.filter")) {
  const section = form.closest("section");
  const rows = [...section.querySelectorAll("tr[data-words]")];
  const tables = [...section.querySelectorAll("details[data-words]")];
  const apply = () => {
    const wanted = form.elements.words.value.toLowerCase().split(/\s+/);
    for (const each of [...rows, ...tables]) each.hidden = !wanted.every((word) => each.dataset.words.includes(word));
    form.querySelector("output").value = `${rows.filter((row) => !row.hidden).length} of ${rows.length} shown`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
}
